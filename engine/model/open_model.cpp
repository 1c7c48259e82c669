#include "engine/model/open_model.h"

#include <algorithm>
#include <array>
#include <map>
#include <stdexcept>
#include <vector>

#include "engine/model/gguf_config.h"
#include "engine/model/hf_config.h"
#include "engine/model/registry.h"
#include "engine/weights/fnv128.h"
#include "engine/weights/gguf.h"
#include "engine/weights/quantisation.h"
#include "engine/weights/quote.h"
#include "engine/weights/safetensors.h"

namespace lockstep::engine {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kMaxConfigBytes = std::uint64_t{8} << 20;
constexpr std::uint64_t kMaxTokenizerConfigBytes = std::uint64_t{64} << 20;

/// Size, both ends and a few places between: enough to tell another checkpoint of the same shape, without reading it.
void add_samples(const InputFile& file, Fnv128& hash) {
  constexpr std::uint64_t kSampleBytes = 512;
  constexpr std::uint64_t kSamples = 8;
  hash.add(file.size());
  std::array<std::byte, kSampleBytes> sample{};
  const auto bytes = static_cast<std::size_t>(std::min(file.size(), kSampleBytes));
  for (std::uint64_t i = 0; i < kSamples; ++i) {
    file.read((file.size() - bytes) * i / (kSamples - 1), std::span(sample).first(bytes), "sample");
    hash.add(std::span<const std::byte>(sample).first(bytes));
  }
}

void add_tensors(const WeightSource& weights, Fnv128& hash) {
  for (const StoredTensor& tensor : weights.tensors()) {
    hash.add(tensor.name);
    hash.add(device::info(tensor.dtype).name);
    if (!tensor.format.empty()) hash.add(tensor.format);
    hash.add(std::uint64_t{tensor.shape.size()});
    for (const std::size_t axis : tensor.shape) hash.add(std::uint64_t{axis});
  }
  for (const UnsupportedTensor& tensor : weights.unsupported()) {
    hash.add(tensor.name);
    hash.add(tensor.type);
  }
  for (const InputFile& file : weights.files()) add_samples(file, hash);
}

std::string describe(const ModelSpec& spec, const WeightSource& weights, const std::string& container) {
  std::map<std::string_view, std::size_t> types;
  for (const StoredTensor& tensor : weights.tensors()) ++types[tensor.format.empty() ? device::info(tensor.dtype).name : tensor.format];
  std::string text = spec.architecture + ", " + std::to_string(spec.num_layers) + " layers, " + std::to_string(spec.num_heads) +
                     " heads (" + std::to_string(spec.num_kv_heads) + " KV) of " + std::to_string(spec.head_dim) + ", hidden " +
                     std::to_string(spec.hidden_size) + ", inner " + std::to_string(spec.intermediate_size) + ", vocabulary " +
                     std::to_string(spec.vocab_size) + ", " + container + ", " + std::to_string(weights.tensors().size()) + " tensors (";
  std::string separator;
  for (const auto& [type, count] : types) {
    text += separator + std::to_string(count) + " " + std::string(type);
    separator = ", ";
  }
  return text + ")";
}

OpenedModel open_gguf(const fs::path& path) {
  GgufFile file = read_gguf(path);
  OpenedModel model;
  model.spec = spec_from_gguf(file);
  model.gguf_vocabulary = vocabulary_from_gguf(file.metadata);
  if (const std::string* chat_template = file.metadata.text("tokenizer.chat_template")) model.chat_template = *chat_template;
  Fnv128 hash;
  hash.add(std::string_view("gguf"));
  hash.add(file.header_hash);
  model.weights = std::move(file.tensors);
  add_tensors(*model.weights, hash);
  model.model_hash = hash.hex();
  const std::size_t parts = model.weights->files().size();
  model.description = describe(model.spec, *model.weights, parts == 1 ? "GGUF" : "GGUF in " + std::to_string(parts) + " parts");
  return model;
}

/// The text of a file of the folder, nullopt if it is not there.
std::optional<std::string> optional_text(const fs::path& path, std::uint64_t max_bytes) {
  std::error_code ignored;
  if (!fs::exists(path, ignored)) return std::nullopt;
  return read_text_file(path, max_bytes);
}

OpenedModel open_folder(const fs::path& folder) {
  const fs::path config_path = folder / "config.json";
  const fs::path generation_path = folder / "generation_config.json";
  const fs::path tokenizer_path = folder / "tokenizer_config.json";
  const std::string config = read_text_file(config_path, kMaxConfigBytes);
  const auto generation = optional_text(generation_path, kMaxConfigBytes);
  const auto tokenizer_config = optional_text(tokenizer_path, kMaxTokenizerConfigBytes);
  const auto template_file = optional_text(folder / "chat_template.jinja", kMaxConfigBytes);

  OpenedModel model;
  model.folder = folder;
  model.spec = spec_from_hf_config(config, config_path.string());
  if (generation) {
    const GenerationConfig read = generation_config_from_json(*generation, generation_path.string());
    merge_generation_config(read, generation_path.string(), model.spec);
    model.defaults = read.defaults;
  }
  if (template_file) {
    model.chat_template = *template_file;
  } else if (tokenizer_config) {
    model.chat_template = chat_template_from_tokenizer_config(*tokenizer_config, tokenizer_path.string());
  }
  const auto quantisation = quantisation_from_config(config, config_path.string());
  model.weights = read_safetensors_folder(folder);
  if (quantisation) model.weights = unite_quantised(std::move(model.weights), *quantisation);
  const std::string_view prefix = family_of(model.spec.architecture).base_prefix;
  const auto& tensors = model.weights->tensors();
  if (std::none_of(tensors.begin(), tensors.end(), [&](const StoredTensor& tensor) { return tensor.name.starts_with(prefix); }))
    model.spec.absent_prefix = prefix;

  Fnv128 hash;
  hash.add(std::string_view("safetensors"));
  for (const std::string& text : {config, generation.value_or(""), tokenizer_config.value_or(""), template_file.value_or("")})
    hash.add(text);
  std::error_code ignored;
  const auto add_if_there = [&](const char* name) {
    const bool is_there = fs::exists(folder / name, ignored);
    if (is_there) add_samples(InputFile(folder / name), hash);
    return is_there;
  };
  bool has_tokenizer = add_if_there("tokenizer.json");
  has_tokenizer = add_if_there("tokenizer.model") || has_tokenizer;
  add_if_there("added_tokens.json");
  if (!has_tokenizer) {
    for (const char* name : {"vocab.json", "merges.txt"}) add_if_there(name);
  }
  add_tensors(*model.weights, hash);
  model.model_hash = hash.hex();
  model.description = describe(model.spec, *model.weights, "safetensors");
  return model;
}

/// The GGUF files of a folder.
std::vector<fs::path> gguf_files(const fs::path& folder) {
  std::vector<fs::path> found;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    if (entry->path().extension() == ".gguf") found.push_back(entry->path());
  }
  if (error) throw std::runtime_error(folder.string() + ": the folder cannot be read: " + error.message());
  std::sort(found.begin(), found.end());
  return found;
}

OpenedModel open_any(const fs::path& path) {
  constexpr std::string_view kWanted =
      "; a model is a .gguf file, a folder with config.json and safetensors, or a folder with one .gguf file or the parts of one";
  const auto fail = [&](const std::string& message) { throw std::runtime_error(path.string() + ": " + message + std::string(kWanted)); };
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (!fs::exists(status)) fail(error ? "there is no model: " + error.message() : "there is no such file or folder");
  if (!fs::is_directory(status)) {
    if (path.extension() != ".gguf") fail("this file is no .gguf file");
    return open_gguf(path);
  }
  if (fs::exists(path / "config.json", error)) return open_folder(path);
  const std::vector<fs::path> files = gguf_files(path);
  if (files.empty()) fail("this folder has neither config.json nor a .gguf file");
  if (files.size() > 1 && gguf_parts(files[0]) != files) {
    fail("this folder has " + std::to_string(files.size()) + " .gguf files, " + quote(files[0].filename().string()) +
         " and others: name one");
  }
  return open_gguf(files[0]);
}

}  // namespace

OpenedModel open_model(const fs::path& path) {
  OpenedModel model = open_any(path);
  head_tensor_name(model.spec, *model.weights);
  return model;
}

std::string head_tensor_name(const ModelSpec& spec, const WeightSource& weights) {
  const parallel::Graph graph = family_of(spec.architecture).build(spec);
  const auto head =
      std::find_if(graph.nodes.rbegin(), graph.nodes.rend(), [](const parallel::Node& node) { return node.op == parallel::Op::kLinear; });
  std::string name = graph.tensors[head->weights.front()].file_name();
  if (!spec.tie_word_embeddings && !weights.contains(name)) {
    throw std::runtime_error(weights.files().at(0).path().string() + ": tensor " + quote(name) + " is missing, and " + spec.source +
                             " does not tie the head to the embedding (tie_word_embeddings)");
  }
  return name;
}

}  // namespace lockstep::engine
