#include "engine/model/blocks.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "engine/model/rope.h"

namespace lockstep::engine {

using parallel::Op;
using parallel::ShardKind;
using parallel::StoredPart;
using parallel::Width;

AttentionModules AttentionModules::standard(const ModelSpec& spec, const std::string& module) {
  AttentionModules modules{.q = module + ".q_proj", .k = module + ".k_proj", .v = module + ".v_proj", .o = module + ".o_proj"};
  if (spec.head_norms) modules.q_norm = module + ".q_norm", modules.k_norm = module + ".k_norm";
  return modules;
}

FeedForwardModules FeedForwardModules::standard(const std::string& module) {
  return {.gate = module + ".gate_proj", .up = module + ".up_proj", .down = module + ".down_proj"};
}

GraphBuilder::GraphBuilder(const ModelSpec& spec) : spec_(spec) {
  graph_.dims = {.num_layers = spec.num_layers,
                 .hidden = spec.hidden_size,
                 .num_heads = spec.num_heads,
                 .num_kv_heads = spec.num_kv_heads,
                 .head_dim = spec.head_dim,
                 .vocabulary = spec.vocab_size};
  // Inner sizes that some layer uses, each once; the first is the one of dims.feed_forward.
  std::vector<std::size_t> sizes;
  for (std::size_t layer = 0; layer < spec.num_layers; ++layer) {
    for (const std::size_t size : {spec.has_experts(layer) ? spec.experts.intermediate_size : spec.intermediate_size,
                                   spec.has_experts(layer) ? spec.experts.shared_intermediate_size : 0}) {
      if (size != 0 && std::find(sizes.begin(), sizes.end(), size) == sizes.end()) sizes.push_back(size);
    }
  }
  if (sizes.empty()) throw std::invalid_argument(spec.source + ": the model has no inner size");
  graph_.dims.feed_forward = sizes.front();
  graph_.dims.more_feed_forwards.assign(sizes.begin() + 1, sizes.end());
}

GraphBuilder::ValueId GraphBuilder::embedding(const EmbeddingModules& modules) {
  ValueId x = value(modules.norm.empty() ? "x" : "e", Width::kHidden);
  parallel::Node& embed = node(Op::kEmbed, 0);
  embed.output = x;
  embed.weights = {tensor({modules.tokens + ".weight", spec_.vocab_size, spec_.hidden_size, ShardKind::kVocabularyRows})};
  if (spec_.embedding_scale != 1.0f) scale(x, spec_.embedding_scale, 0);
  if (!modules.positions.empty()) {
    parallel::Node& positions = node(Op::kAddPositions, 0);
    positions.output = x;
    positions.weights = {
        tensor({modules.positions + ".weight", spec_.max_position_embeddings + modules.position_offset, spec_.hidden_size})};
    positions.offset = modules.position_offset;
  }
  if (!modules.norm.empty()) x = norm(x, modules.norm, 0, "x");
  graph_.nodes.back().tap = "layer.0.in";
  return x;
}

GraphBuilder::ValueId GraphBuilder::norm(ValueId x, const std::string& module, std::size_t layer, const std::string& name) {
  const ValueId h = value(name, Width::kHidden);
  parallel::Node made{.op = Op::kNorm, .inputs = {x}, .output = h, .layer = layer, .norm = spec_.norm.kind, .eps = spec_.norm.eps};
  if (spec_.norm.has_weight) made.weights = {norm_weight(module, spec_.hidden_size, ShardKind::kReplicated)};
  if (spec_.norm.has_bias) made.biases = {tensor({module + ".bias", 0, spec_.hidden_size})};
  graph_.nodes.push_back(std::move(made));
  return h;
}

parallel::TensorId GraphBuilder::norm_weight(const std::string& module, std::size_t columns, ShardKind shard, bool rotary_rows) {
  parallel::TensorDecl decl{module + ".weight", 0, columns, shard, rotary_rows};
  decl.offset = spec_.norm.weight_offset;
  return tensor(std::move(decl));
}

std::vector<GraphBuilder::Projection> GraphBuilder::query_key_value(const AttentionModules& modules) const {
  const std::size_t dim = spec_.head_dim, hidden = spec_.hidden_size;
  const std::size_t query_rows = spec_.num_heads * dim, kv_rows = spec_.num_kv_heads * dim;
  std::vector<Projection> all{{modules.q, query_rows, hidden, ShardKind::kQueryRows, true},
                              {modules.k, kv_rows, hidden, ShardKind::kKvRows, true},
                              {modules.v, kv_rows, hidden, ShardKind::kKvRows}};
  std::size_t first = 0;
  for (Projection& projection : all) {
    projection.part.transposed = modules.transposed;
    if (modules.fusion == Fusion::kNone) continue;
    projection.part.name = modules.fused;
    projection.part.shape = {query_rows + 2 * kv_rows};
    projection.part.first = first;
    first += modules.fusion == Fusion::kByHead ? dim : projection.rows;
    if (modules.fusion == Fusion::kByHead) projection.part.run = dim, projection.part.stride = 3 * dim;
  }
  return all;
}

GraphBuilder::Sum GraphBuilder::attention(ValueId h, const AttentionModules& modules, std::size_t layer) {
  const ValueId qkv = value("qkv", Width::kQkv);
  linear(h, qkv, query_key_value(modules), spec_.attention_bias, layer);
  if (!modules.q_norm.empty()) norm_heads(qkv, modules, layer);
  const std::size_t attention = attention_of(layer);
  parallel::Node& rotate = node(Op::kRotateAndAppend, layer);
  rotate.inputs = {qkv};
  rotate.output = qkv;
  rotate.attention = attention;
  const ValueId heads = value("a", Width::kAttention);
  parallel::Node& attend = node(Op::kAttention, layer);
  attend.inputs = {qkv};
  attend.output = heads;
  attend.attention = attention;
  const ValueId sum = value("p", Width::kHidden);
  Projection output{modules.o, spec_.hidden_size, spec_.num_heads * spec_.head_dim, ShardKind::kAttentionColumns};
  output.part.transposed = modules.transposed;
  linear(heads, sum, {output}, false, layer);
  return {sum, spec_.attention_output_bias ? modules.o : ""};
}

void GraphBuilder::norm_heads(ValueId qkv, const AttentionModules& modules, std::size_t layer) {
  const bool all = modules.norms_span_heads;
  const std::size_t dim = spec_.head_dim;
  const parallel::TensorId q =
      norm_weight(modules.q_norm, all ? spec_.num_heads * dim : dim, all ? ShardKind::kQueryRows : ShardKind::kReplicated, true);
  const parallel::TensorId k =
      norm_weight(modules.k_norm, all ? spec_.num_kv_heads * dim : dim, all ? ShardKind::kKvRows : ShardKind::kReplicated, true);
  parallel::Node& norm = node(all ? Op::kNormAllHeads : Op::kNormHeads, layer);
  norm.inputs = {qkv};
  norm.output = qkv;
  norm.weights = {q, k};
  norm.norm = spec_.norm.kind;
  norm.eps = spec_.norm.eps;
}

std::size_t GraphBuilder::attention_of(std::size_t layer) {
  parallel::Attention attention;
  attention.scale = spec_.attention_scale != 0.0f ? spec_.attention_scale : 1.0f / std::sqrt(static_cast<float>(spec_.head_dim));
  attention.window = spec_.window_of(layer);
  attention.soft_cap = spec_.attention_soft_cap;
  attention.slopes = spec_.slopes;
  const RopeSpec& rope = spec_.local_rope && attention.window != 0 ? *spec_.local_rope : spec_.rope;
  if (rope.rotary_dim > 0 && spec_.is_rotated(layer)) attention.rotary = rotary_of(rope);
  auto& all = graph_.attentions;
  const auto known = std::find(all.begin(), all.end(), attention);
  if (known != all.end()) return static_cast<std::size_t>(known - all.begin());
  all.push_back(std::move(attention));
  return all.size() - 1;
}

std::size_t GraphBuilder::rotary_of(const RopeSpec& rope) {
  parallel::Rotary rotary = engine::rotary_of(rope);
  auto& all = graph_.rotaries;
  const auto known = std::find(all.begin(), all.end(), rotary);
  if (known != all.end()) return static_cast<std::size_t>(known - all.begin());
  all.push_back(std::move(rotary));
  return all.size() - 1;
}

std::size_t GraphBuilder::inner_of(std::size_t size) const {
  for (std::size_t which = 0; which < graph_.dims.num_inner_sizes(); ++which) {
    if (graph_.dims.inner_size(which) == size) return which;
  }
  throw std::logic_error("no layer has the inner size " + std::to_string(size));
}

GraphBuilder::ValueId GraphBuilder::inner_product(ValueId h, const FeedForwardModules& modules, std::size_t which, std::size_t layer) {
  const std::size_t rows = graph_.dims.inner_size(which), hidden = spec_.hidden_size;
  const bool gated = !modules.gate.empty();
  const std::string suffix = which == 0 ? "" : "." + std::to_string(which);
  std::vector<Projection> projections;
  for (const std::string& module : {modules.gate, modules.up}) {
    if (module.empty()) continue;
    projections.push_back({module, rows, hidden, ShardKind::kFeedForwardRows, false, which});
    projections.back().part.transposed = modules.transposed;
    if (modules.fused.empty()) continue;
    projections.back().part.name = modules.fused;
    projections.back().part.shape = {2 * rows};
    projections.back().part.first = projections.size() == 1 ? 0 : rows;
  }
  const ValueId up = value((gated ? "gate_up" : "u") + suffix, gated ? Width::kGateUp : Width::kFeedForward, which);
  linear(h, up, projections, spec_.mlp_bias, layer);
  const ValueId inner = value("f" + suffix, Width::kFeedForward, which);
  parallel::Node& activation = node(gated ? Op::kGated : Op::kActivate, layer);
  activation.inputs = {up};
  activation.output = inner;
  activation.function = spec_.activation;
  return inner;
}

GraphBuilder::Sum GraphBuilder::feed_forward(ValueId h, const FeedForwardModules& modules, std::size_t layer) {
  const std::size_t which = inner_of(spec_.intermediate_size);
  const ValueId inner = inner_product(h, modules, which, layer);
  const ValueId sum = value("p", Width::kHidden);
  Projection down{modules.down, spec_.hidden_size, spec_.intermediate_size, ShardKind::kFeedForwardColumns, false, which};
  down.part.transposed = modules.transposed;
  linear(inner, sum, {down}, false, layer);
  return {sum, spec_.mlp_bias ? modules.down : ""};
}

GraphBuilder::Sum GraphBuilder::experts(ValueId h, const ExpertModules& modules, std::size_t layer) {
  const ExpertSpec& spec = spec_.experts;
  const std::size_t inner = inner_of(spec.intermediate_size);
  const ValueId logits = value("router", Width::kFixed, 0, spec.count), weights = value("routing", Width::kFixed, 0, spec.count);
  linear(h, logits, {{modules.router, spec.count, spec_.hidden_size}}, false, layer);
  parallel::Node& route = node(Op::kRoute, layer);
  route.inputs = {logits};
  route.output = weights;
  route.routing = {.per_token = spec.per_token, .renormalised = spec.renormalised};
  const ValueId sum = value("p", Width::kHidden);
  parallel::Node mixture{.op = Op::kExperts, .inputs = {h, weights}, .output = sum, .layer = layer, .function = spec_.activation};
  for (std::size_t expert = 0; expert < spec.count; ++expert) {
    const std::string module = modules.experts + "." + std::to_string(expert) + ".";
    mixture.weights.push_back(
        weight_of({module + modules.gate, spec.intermediate_size, spec_.hidden_size, ShardKind::kFeedForwardRows, false, inner}));
    mixture.weights.push_back(
        weight_of({module + modules.up, spec.intermediate_size, spec_.hidden_size, ShardKind::kFeedForwardRows, false, inner}));
    mixture.weights.push_back(
        weight_of({module + modules.down, spec_.hidden_size, spec.intermediate_size, ShardKind::kFeedForwardColumns, false, inner}));
  }
  graph_.nodes.push_back(std::move(mixture));
  if (modules.shared.empty()) return {sum, ""};

  const FeedForwardModules shared = FeedForwardModules::standard(modules.shared);
  const std::size_t shared_size = inner_of(spec.shared_intermediate_size);
  const ValueId of_all = value("p.shared", Width::kHidden);
  const ValueId shared_inner = inner_product(h, shared, shared_size, layer);
  linear(shared_inner, of_all,
         {{shared.down, spec_.hidden_size, spec.shared_intermediate_size, ShardKind::kFeedForwardColumns, false, shared_size}}, false,
         layer);
  const ValueId gate = value("shared.gate", Width::kFixed, 0, 1);
  linear(h, gate, {{modules.shared_gate, 1, spec_.hidden_size}}, false, layer);
  parallel::Node& gated = node(Op::kGateRows, layer);
  gated.inputs = {gate};
  gated.output = of_all;
  parallel::Node& both = node(Op::kAdd, layer);
  both.inputs = {of_all};
  both.output = sum;
  return {sum, ""};
}

void GraphBuilder::add(ValueId x, const Sum& sum, Branch branch, std::size_t layer, const std::string& post_norm) {
  const std::string prefix = "layer." + std::to_string(layer);
  const std::string tap = prefix + (branch == Branch::kAttention ? ".attn_out" : ".mlp_out");
  const bool changed = !post_norm.empty() || spec_.residual_scale != 1.0f;  // what is added is not the sum itself
  if (changed && !sum.bias.empty()) throw std::logic_error("a bias before a norm or a scale of a branch is not done");
  if (changed) graph_.nodes.back().tap = tap;
  const ValueId delta = post_norm.empty() ? sum.value : norm(sum.value, post_norm, layer, "n");
  if (spec_.residual_scale != 1.0f) scale(delta, spec_.residual_scale, layer);
  parallel::Node added{.op = Op::kAdd, .inputs = {delta}, .output = x, .layer = layer};
  if (!sum.bias.empty()) added.biases = {tensor({sum.bias + ".bias", 0, spec_.hidden_size})};
  if (!changed) added.tap_input = tap;
  if (branch == Branch::kFeedForward) added.tap = prefix + ".out";
  graph_.nodes.push_back(std::move(added));
}

void GraphBuilder::head(ValueId x, const std::string& norm_module, const std::string& head_module) {
  const std::size_t after_layers = spec_.num_layers;
  const ValueId selected = value("x.selected", Width::kHidden);
  parallel::Node& select = node(Op::kSelectLogitRows, after_layers);
  select.inputs = {x};
  select.output = selected;
  const ValueId h = norm(selected, norm_module, after_layers, "h.selected");
  graph_.nodes.back().tap = "final_norm";
  const ValueId logits = value("logits", Width::kVocabulary);
  linear(h, logits, {{head_module, spec_.vocab_size, spec_.hidden_size, ShardKind::kVocabularyRows}}, spec_.head_bias, after_layers);
  if (spec_.logit_scale != 1.0f) scale(logits, spec_.logit_scale, after_layers);
  if (spec_.logit_soft_cap != 0.0f) {
    parallel::Node& cap = node(Op::kSoftCap, after_layers);
    cap.output = logits;
    cap.factor = spec_.logit_soft_cap;
  }
}

void GraphBuilder::linear(ValueId in, ValueId out, const std::vector<Projection>& projections, bool bias, std::size_t layer) {
  parallel::Node product{.op = Op::kLinear, .inputs = {in}, .output = out, .layer = layer};
  for (const Projection& projection : projections) {
    product.weights.push_back(weight_of(projection));
    if (bias) product.biases.push_back(bias_of(projection));
  }
  graph_.nodes.push_back(std::move(product));
}

parallel::TensorId GraphBuilder::weight_of(const Projection& projection) {
  parallel::TensorDecl decl{projection.module + ".weight", projection.rows, projection.columns, projection.shard, projection.rotary_rows};
  decl.inner = projection.inner;
  const StoredPart& part = projection.part;
  if (!part.name.empty() || part.transposed) {
    decl.stored = part;
    decl.stored.name = (part.name.empty() ? projection.module : part.name) + ".weight";
    const std::size_t stored_rows = part.shape.empty() ? projection.rows : part.shape.front();
    decl.stored.shape = {stored_rows, projection.columns};
    if (part.transposed) std::swap(decl.stored.shape[0], decl.stored.shape[1]);
  }
  return tensor(std::move(decl));
}

parallel::TensorId GraphBuilder::bias_of(const Projection& projection) {
  parallel::TensorDecl decl{projection.module + ".bias", 0, projection.rows, projection.shard, projection.rotary_rows};
  decl.inner = projection.inner;
  if (!projection.part.name.empty()) {
    decl.stored = projection.part;
    decl.stored.name += ".bias";
    decl.stored.transposed = false;
  }
  return tensor(std::move(decl));
}

void GraphBuilder::scale(ValueId value, float factor, std::size_t layer) {
  parallel::Node& scaled = node(Op::kScale, layer);
  scaled.output = value;
  scaled.factor = factor;
}

parallel::TensorId GraphBuilder::tensor(parallel::TensorDecl tensor) {
  const auto [known, fresh] = tensors_.try_emplace(tensor.name, graph_.tensors.size());
  if (fresh) graph_.tensors.push_back(std::move(tensor));
  return known->second;
}

GraphBuilder::ValueId GraphBuilder::value(const std::string& name, Width width, std::size_t inner, std::size_t columns) {
  const auto known =
      std::find_if(graph_.values.begin(), graph_.values.end(), [&](const parallel::Value& candidate) { return candidate.name == name; });
  if (known != graph_.values.end()) return static_cast<ValueId>(known - graph_.values.begin());
  graph_.values.push_back({name, width, inner, columns});
  return graph_.values.size() - 1;
}

parallel::Node& GraphBuilder::node(Op op, std::size_t layer) {
  graph_.nodes.push_back({.op = op, .layer = layer});
  return graph_.nodes.back();
}

GraphBuilder::Sum standard_attention(GraphBuilder& builder, const ModelSpec& spec, parallel::ValueId h, const std::string& module,
                                     std::size_t layer) {
  return builder.attention(h, AttentionModules::standard(spec, module + ".self_attn"), layer);
}

GraphBuilder::Sum standard_feed_forward(GraphBuilder& builder, const ModelSpec&, parallel::ValueId h, const std::string& module,
                                        std::size_t layer) {
  return builder.feed_forward(h, FeedForwardModules::standard(module + ".mlp"), layer);
}

parallel::Graph build_decoder(const ModelSpec& spec, BuildBranch attention, BuildBranch feed_forward) {
  using Branch = GraphBuilder::Branch;
  GraphBuilder builder(spec);
  const auto x = builder.embedding({.tokens = "model.embed_tokens"});
  for (std::size_t layer = 0; layer < spec.num_layers; ++layer) {
    const std::string module = "model.layers." + std::to_string(layer);
    const auto h = builder.norm(x, module + ".input_layernorm", layer);
    builder.add(x, attention(builder, spec, h, module, layer), Branch::kAttention, layer);
    const auto after = builder.norm(x, module + ".post_attention_layernorm", layer);
    builder.add(x, feed_forward(builder, spec, after, module, layer), Branch::kFeedForward, layer);
  }
  builder.head(x, "model.norm", spec.tie_word_embeddings ? "model.embed_tokens" : "lm_head");
  return builder.take();
}

parallel::Graph build_parallel_decoder(const ModelSpec& spec, BuildBranch attention, BuildBranch feed_forward,
                                       const std::string& final_norm) {
  using Branch = GraphBuilder::Branch;
  GraphBuilder builder(spec);
  const auto x = builder.embedding({.tokens = "model.embed_tokens"});
  for (std::size_t layer = 0; layer < spec.num_layers; ++layer) {
    const std::string module = "model.layers." + std::to_string(layer);
    const auto h = builder.norm(x, module + ".input_layernorm", layer);
    builder.add(x, attention(builder, spec, h, module, layer), Branch::kAttention, layer);
    builder.add(x, feed_forward(builder, spec, h, module, layer), Branch::kFeedForward, layer);
  }
  builder.head(x, final_norm, spec.tie_word_embeddings ? "model.embed_tokens" : "lm_head");
  return builder.take();
}

}  // namespace lockstep::engine
