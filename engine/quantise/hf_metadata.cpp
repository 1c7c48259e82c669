#include "engine/quantise/hf_metadata.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <stdexcept>

#include "engine/model/registry.h"
#include "engine/model/rope.h"
#include "engine/quantise/hf_vocabulary.h"

namespace lockstep::engine {
namespace {

constexpr const char* kDivisors = "rope_freqs.weight";

/// What the model has that GGUF metadata do not say; empty: nothing.
std::string beyond_gguf(const ModelSpec& spec) {
  const RopeSpec& rope = spec.rope;
  if (!spec.windows.empty()) return "sliding windows";
  if (rope.scaling == RopeScaling::kDynamic) return "rotary scaling of the kind 'dynamic'";
  if (rope.scaling == RopeScaling::kLongrope) return "rotary scaling of the kind 'longrope'";
  if (rope.scaling != RopeScaling::kYarn) return "";
  if (!rope.truncate) return "'truncate': false of YaRN";
  RopeSpec plain = rope;
  plain.attention_factor.reset();
  plain.mscale.reset();
  return rotary_of(plain).factor == rotary_of(rope).factor ? "" : "an attention factor of YaRN of its own (attention_factor, mscale)";
}

/// As convert scripts name the architectures in GGUF files.
std::string gguf_architecture(const ModelSpec& spec) {
  const Family& family = family_of(spec.architecture);
  const bool has_names = !family.gguf.empty() && family.keys.norm == device::Norm::Kind::kRms;
  const std::string beyond = beyond_gguf(spec);
  if (has_names && beyond.empty()) return std::string(family.gguf);
  std::string supported;
  for (const Family* other : all_families()) {
    if (!other->gguf.empty() && other->keys.norm == device::Norm::Kind::kRms)
      supported += (supported.empty() ? "" : ", ") + std::string(other->gguf);
  }
  const std::string what = has_names ? " with " + beyond : "";
  throw std::runtime_error(spec.source + ": a Hugging Face folder of architecture '" + spec.architecture + "'" + what +
                           " cannot be turned into GGUF; supported: " + supported + " (a GGUF file of it can be quantised)");
}

void set_sizes(const ModelSpec& spec, const std::string& architecture, GgufMetadataBuilder& metadata) {
  const auto key = [&](const char* name) { return architecture + "." + name; };
  metadata.set_uint32(key("vocab_size"), spec.vocab_size);
  metadata.set_uint32(key("block_count"), spec.num_layers);
  metadata.set_uint32(key("context_length"), spec.max_position_embeddings);
  metadata.set_uint32(key("embedding_length"), spec.hidden_size);
  metadata.set_uint32(key("feed_forward_length"), spec.intermediate_size);
  metadata.set_uint32(key("attention.head_count"), spec.num_heads);
  metadata.set_uint32(key("attention.head_count_kv"), spec.num_kv_heads);
  metadata.set_uint32(key("attention.key_length"), spec.head_dim);
  metadata.set_uint32(key("attention.value_length"), spec.head_dim);
  metadata.set_float32(key("attention.layer_norm_rms_epsilon"), spec.norm.eps);
  metadata.set_uint32(key("rope.dimension_count"), spec.rope.rotary_dim);
  metadata.set_float32(key("rope.freq_base"), static_cast<float>(spec.rope.theta));
}

/// Llama 3's scaling is no matter of metadata, but of a tensor.
void set_rotary_scaling(const RopeSpec& rope, const std::string& architecture, GgufMetadataBuilder& metadata) {
  const bool is_yarn = rope.scaling == RopeScaling::kYarn;
  if (!is_yarn && rope.scaling != RopeScaling::kLinear) return;
  const std::string prefix = architecture + ".rope.scaling.";
  metadata.set_text(prefix + "type", is_yarn ? "yarn" : "linear");
  metadata.set_float32(prefix + "factor", static_cast<float>(rope.factor));
  if (!is_yarn) return;
  metadata.set_uint32(prefix + "original_context_length", rope.original_positions);
  metadata.set_float32(prefix + "yarn_beta_fast", static_cast<float>(rope.beta_fast));
  metadata.set_float32(prefix + "yarn_beta_slow", static_cast<float>(rope.beta_slow));
}

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

/// The row of a GGUF file that holds a row of this program's order.
std::size_t interleaved_row_of(const ModelSpec& spec, std::size_t row) {
  ModelSpec interleaved;
  interleaved.head_dim = spec.head_dim;
  interleaved.rope.rotary_dim = spec.rope.rotary_dim;
  interleaved.rotary_pairs_interleaved = true;
  return stored_row_of(interleaved, row);
}

}  // namespace

GgufMetadataBuilder metadata_from_folder(const OpenedModel& model) {
  const ModelSpec& spec = model.spec;
  const std::string architecture = gguf_architecture(spec);
  GgufMetadataBuilder metadata;
  metadata.set_text("general.architecture", architecture);
  metadata.set_text("general.name", std::filesystem::absolute(model.folder / "config.json").parent_path().filename().string());
  set_sizes(spec, architecture, metadata);
  set_rotary_scaling(spec.rope, architecture, metadata);
  auto vocabulary = vocabulary_from_folder(model.folder, spec);
  set_special_tokens(model, vocabulary ? &*vocabulary : nullptr, metadata);
  if (vocabulary) set_vocabulary(std::move(*vocabulary), metadata);
  if (!model.chat_template.empty()) metadata.set_text("tokenizer.chat_template", model.chat_template);
  return metadata;
}

std::vector<SourceTensor> tensors_from_folder(const OpenedModel& model) {
  const ModelSpec& spec = model.spec;
  const Family& family = family_of(spec.architecture);
  const parallel::Graph graph = family.build(spec);
  ModelSpec in_gguf = spec;
  in_gguf.naming = NamingScheme::kGguf;
  std::vector<SourceTensor> tensors;
  for (const parallel::TensorDecl& decl : graph.tensors) {
    const std::array<std::size_t, 2> shape{decl.rows, decl.columns};
    const auto wanted = std::span(shape).subspan(decl.is_vector() ? 1 : 0);
    const StoredTensor& stored = model.weights->require(stored_name(family, spec, decl.name), wanted);
    const bool moves = family.gguf_pairs_interleaved && decl.rotary_rows && spec.rope.rotary_dim > 0;
    tensors.push_back({&stored, stored_name(family, in_gguf, decl.name), moves ? spec.head_dim : 0});
  }
  if (spec.rope.scaling == RopeScaling::kLlama3) {
    auto made = std::make_shared<StoredTensor>();
    made->name = kDivisors;
    made->shape = {spec.rope.rotary_dim / 2};
    made->format = "config";
    tensors.push_back({made.get(), kDivisors, 0, made, llama3_divisors(spec.rope)});
  }
  return tensors;
}

void order_rotary_rows(const ModelSpec& spec, const SourceTensor& tensor, std::size_t num_rows, std::span<std::byte> rows) {
  const bool is_vector = tensor.stored->shape.size() == 1;
  const std::size_t count = is_vector ? tensor.stored->columns() : num_rows;
  const std::size_t bytes = rows.size() / count;
  const std::vector<std::byte> given(rows.begin(), rows.end());
  for (std::size_t row = 0; row < count; ++row) std::memcpy(&rows[interleaved_row_of(spec, row) * bytes], &given[row * bytes], bytes);
}

void check_same_model(const ModelSpec& read, const ModelSpec& written) {
  const auto same = [&](const char* what, bool equal) {
    if (!equal) throw std::runtime_error(written.source + ": its " + what + " came out other than in " + read.source);
  };
  same("sizes", read.hidden_size == written.hidden_size && read.num_layers == written.num_layers && read.num_heads == written.num_heads &&
                    read.num_kv_heads == written.num_kv_heads && read.head_dim == written.head_dim &&
                    read.intermediate_size == written.intermediate_size && read.vocab_size == written.vocab_size &&
                    read.max_position_embeddings == written.max_position_embeddings);
  same("norm", read.norm.kind == written.norm.kind && read.norm.eps == written.norm.eps);
  same("rotary table (GGUF keeps rope_theta and factors as fp32 numbers)", rotary_of(read.rope) == rotary_of(written.rope));
  same("biases", read.attention_bias == written.attention_bias && read.attention_output_bias == written.attention_output_bias &&
                     read.mlp_bias == written.mlp_bias);
  same("head", read.tie_word_embeddings == written.tie_word_embeddings);
}

}  // namespace lockstep::engine
