#include "engine/quantise/hf_metadata.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <set>
#include <stdexcept>

#include "engine/model/gguf_keys.h"
#include "engine/model/registry.h"
#include "engine/quantise/hf_vocabulary.h"
#include "engine/weights/quote.h"

namespace lockstep::engine {
namespace {

[[noreturn]] void refuse(const ModelSpec& spec, const std::string& why) {
  std::set<std::string> known;
  for (const Family* family : all_families()) {
    if (!family->gguf.architecture.empty()) known.insert(std::string(family->architecture));
  }
  std::string names;
  for (const std::string& name : known) names += (names.empty() ? "" : ", ") + name;
  throw std::runtime_error(spec.source + ": a Hugging Face folder of architecture " + quote(spec.architecture) +
                           " cannot be turned into GGUF: " + why + "; supported: " + names + " (a GGUF file of it can be quantised)");
}

class GgufKeyWriter final : public GgufKeys {
 public:
  GgufKeyWriter(const ModelSpec& spec, std::string_view architecture, GgufMetadataBuilder& metadata, std::vector<SourceTensor>& tensors)
      : spec_(spec), prefix_(std::string(architecture) + "."), metadata_(metadata), tensors_(tensors) {}

  bool writing() const override { return true; }
  void size(const std::string& key, std::size_t& value, Range, std::optional<std::size_t> absent) override {
    if (value != 0 || absent != value) metadata_.set_uint32(prefix_ + key, value);
  }
  void number(const std::string& key, double& value, Range, std::optional<double> absent) override {
    if (absent != value) metadata_.set_float32(prefix_ + key, static_cast<float>(value));
  }
  void flag(const std::string& key, bool& value, bool) override { metadata_.set_flag(prefix_ + key, value); }
  void text(const std::string& key, std::string& value, const std::string& absent) override {
    if (absent != value) metadata_.set_text(prefix_ + key, value);
  }
  void layers(const std::string& key, std::vector<bool>& value, const std::vector<bool>& absent) override {
    if (absent != value) metadata_.set_flags(prefix_ + key, value);
  }
  void tensor(const std::string& name, std::vector<float>& values, std::size_t) override {
    if (!values.empty()) tensors_.push_back({.name = name, .shape = {values.size()}, .values = values});
  }
  bool has_tensor(const std::string&, bool value) const override { return value; }
  void fail(const std::string& key, const std::string& message) const override { refuse(spec_, prefix_ + key + " " + message); }

 private:
  const ModelSpec& spec_;
  std::string prefix_;
  GgufMetadataBuilder& metadata_;
  std::vector<SourceTensor>& tensors_;
};

/// GGUF has three keys for what may end an answer.
void set_special_tokens(const OpenedModel& model, const text::GgufVocabulary* vocabulary, GgufMetadataBuilder& metadata) {
  constexpr std::array kEndKeys{"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"};
  const ModelSpec& spec = model.spec;
  std::vector<std::int32_t> ends = spec.eos_ids;
  if (vocabulary != nullptr && vocabulary->eos_id >= 0) {
    std::erase(ends, vocabulary->eos_id);
    ends.insert(ends.begin(), vocabulary->eos_id);
  }
  if (ends.size() > kEndKeys.size()) {
    throw std::runtime_error(spec.source + ": there are " + std::to_string(ends.size()) + " EOS ids, but a GGUF file has room for " +
                             std::to_string(kEndKeys.size()));
  }
  for (std::size_t i = 0; i < ends.size(); ++i) metadata.set_uint32(kEndKeys[i], static_cast<std::uint64_t>(ends[i]));
  const std::int32_t bos = vocabulary != nullptr && vocabulary->bos_id >= 0 ? vocabulary->bos_id : spec.bos_id;
  if (bos >= 0) metadata.set_uint32("tokenizer.ggml.bos_token_id", static_cast<std::uint64_t>(bos));
  if (spec.pad_id >= 0) metadata.set_uint32("tokenizer.ggml.padding_token_id", static_cast<std::uint64_t>(spec.pad_id));
}

void set_vocabulary(text::GgufVocabulary vocabulary, GgufMetadataBuilder& metadata) {
  metadata.set_text("tokenizer.ggml.model", vocabulary.model);
  metadata.set_text("tokenizer.ggml.pre", vocabulary.pre);
  metadata.set_int32s("tokenizer.ggml.token_type", vocabulary.types);
  metadata.set_flag("tokenizer.ggml.add_bos_token", vocabulary.add_bos == 1);
  metadata.set_flag("tokenizer.ggml.add_eos_token", vocabulary.add_eos == 1);
  metadata.set_texts("tokenizer.ggml.tokens", std::move(vocabulary.tokens));
  if (vocabulary.scores.empty()) return metadata.set_texts("tokenizer.ggml.merges", std::move(vocabulary.merges));
  metadata.set_float32s("tokenizer.ggml.scores", vocabulary.scores);
  metadata.set_flag("tokenizer.ggml.add_space_prefix", vocabulary.add_space_prefix == 1);
}

/// Adds rows (or elements) to a tensor of the new file: canonical row r is row `to` in the new file and `from` in the stored one.
void add_rows(const StoredTensor& stored, const parallel::TensorDecl& from, const ModelSpec& spec, const parallel::TensorDecl& to,
              const ModelSpec& in_gguf, std::vector<RowRun>& runs) {
  const auto place = [](const parallel::TensorDecl& decl, const ModelSpec& of, std::size_t row) {
    return decl.stored.row(decl.rotary_rows ? stored_row_of(of, row) : row);
  };
  const std::size_t count = from.is_vector() ? from.columns : from.rows;
  std::map<std::size_t, std::size_t> sources;  // by place in the new file
  for (std::size_t row = 0; row < count; ++row) sources.emplace(place(to, in_gguf, row), place(from, spec, row));
  for (const auto& [row, source] : sources) {
    RowRun* last = runs.empty() ? nullptr : &runs.back();
    const std::size_t first_column = from.stored.transposed ? from.stored.first_column : 0;
    if (last != nullptr && last->stored == &stored && last->first_column == first_column && last->row + last->count == row &&
        last->from + last->count == source) {
      ++last->count;
    } else {
      runs.push_back({&stored, row, 1, source, first_column});
    }
  }
}

void check_complete(SourceTensor& tensor) {
  std::sort(tensor.runs.begin(), tensor.runs.end(), [](const RowRun& a, const RowRun& b) { return a.row < b.row; });
  std::size_t end = 0;
  for (const RowRun& run : tensor.runs) {
    if (run.row != end) throw std::logic_error("the rows of " + tensor.name + " do not fit together");
    end += run.count;
  }
  if (end != tensor.rows() * (tensor.of_elements ? tensor.columns() : 1)) throw std::logic_error("rows of " + tensor.name + " are missing");
}

/// The same graph twice: where the folder has its tensors, and where the file will have them.
void add_tensors(const OpenedModel& model, const ModelSpec& in_gguf, std::vector<SourceTensor>& tensors) {
  const Family& family = family_of(model.spec.architecture);
  const parallel::Graph from = family.build(model.spec), to = family.build(in_gguf);
  if (from.tensors.size() != to.tensors.size()) refuse(model.spec, "it has tensors that such files have not, or the other way round");
  std::map<std::string, std::size_t> known;
  for (std::size_t i = 0; i < from.tensors.size(); ++i) {
    const parallel::TensorDecl &source = from.tensors[i], &target = to.tensors[i];
    const StoredTensor& stored = model.weights->require(source.file_name(), source.file_shape());
    if (source.stored.transposed && (stored.packed || device::info(stored.dtype).block_quantised()))
      refuse(model.spec, "tensor " + quote(stored.name) + " is quantised and stored [in, out]");
    const auto [entry, fresh] = known.emplace(target.file_name(), tensors.size());
    if (fresh) {
      tensors.push_back({.name = target.file_name(),
                         .shape = target.file_shape(),
                         .of_elements = target.is_vector(),
                         .transposed = source.stored.transposed,
                         .offset = source.offset - target.offset});
    }
    add_rows(stored, source, model.spec, target, in_gguf, tensors[entry->second].runs);
  }
  for (SourceTensor& tensor : tensors) {
    if (tensor.values.empty()) check_complete(tensor);
  }
}

}  // namespace

FolderAsGguf folder_as_gguf(const OpenedModel& model) {
  const ModelSpec& spec = model.spec;
  const Family& family = family_of(spec.architecture);
  const std::string architecture(family.gguf.architecture);
  if (architecture.empty()) refuse(spec, "there are no such files");
  FolderAsGguf made;
  GgufMetadataBuilder& metadata = made.metadata;
  metadata.set_text("general.architecture", architecture);
  metadata.set_text("general.name", std::filesystem::absolute(model.folder / "config.json").parent_path().filename().string());
  metadata.set_uint32(architecture + ".vocab_size", spec.vocab_size);
  ModelSpec in_gguf = spec;
  GgufKeyWriter keys(spec, architecture, metadata, made.tensors);
  describe_gguf(keys, family, in_gguf);
  add_tensors(model, in_gguf, made.tensors);
  auto vocabulary = vocabulary_from_folder(model.folder, spec);
  set_special_tokens(model, vocabulary ? &*vocabulary : nullptr, metadata);
  if (vocabulary) set_vocabulary(std::move(*vocabulary), metadata);
  if (!model.chat_template.empty()) metadata.set_text("tokenizer.chat_template", model.chat_template);
  return made;
}

void check_same_model(const ModelSpec& read, const ModelSpec& written) {
  const parallel::Graph from = family_of(read.architecture).build(read), to = family_of(written.architecture).build(written);
  using parallel::Node;
  const auto same = [&](const char* what, bool equal) {
    if (!equal) refuse(read, std::string("a GGUF file of it cannot say its ") + what);
  };
  const auto alike = [&](auto members) {
    return std::equal(from.nodes.begin(), from.nodes.end(), to.nodes.begin(), to.nodes.end(),
                      [&](const parallel::Node& a, const parallel::Node& b) { return members(a) == members(b); });
  };
  same("number of positions", read.max_position_embeddings == written.max_position_embeddings);
  same("layers", alike([](const Node& node) { return std::tuple(node.op, node.inputs, node.output, node.layer); }));
  same("scale, window, soft cap, slopes or rotation of the attention",
       from.attentions == to.attentions && alike([](const Node& node) { return node.attention; }));
  same("rotary embedding (it keeps rope_theta and factors as fp32 numbers)", from.rotaries == to.rotaries);
  same("norms", alike([](const Node& node) { return std::pair(node.norm, node.eps); }));
  same("activation function or its limit", alike([](const Node& node) { return node.gating; }));
  same("choice of experts", alike([](const Node& node) { return std::pair(node.routing.per_token, node.routing.renormalised); }));
  same("scales and soft caps", alike([](const Node& node) { return std::pair(node.factor, node.offset); }));
  same("tensors", alike([](const Node& node) { return std::pair(node.weights, node.biases); }) &&
                      std::equal(from.tensors.begin(), from.tensors.end(), to.tensors.begin(), to.tensors.end(),
                                 [](const parallel::TensorDecl& a, const parallel::TensorDecl& b) {
                                   return std::tie(a.name, a.rows, a.columns) == std::tie(b.name, b.rows, b.columns);
                                 }));
}

}  // namespace lockstep::engine
