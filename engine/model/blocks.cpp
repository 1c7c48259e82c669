#include "engine/model/blocks.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "engine/model/rope.h"

namespace lockstep::engine {

namespace {

constexpr std::size_t kOutsideLayers = parallel::kNone;

}  // namespace

using parallel::Op;
using parallel::ShardKind;
using parallel::Width;

AttentionModules AttentionModules::standard(const ModelSpec& spec, const std::string& module) {
  AttentionModules modules{.q = module + ".q_proj", .k = module + ".k_proj", .v = module + ".v_proj", .o = module + ".o_proj"};
  if (spec.head_norms) modules.q_norm = module + ".q_norm", modules.k_norm = module + ".k_norm";
  if (spec.attention_sinks) modules.sinks = module + ".sinks";
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
  const bool projected = spec_.embedding_size != 0;
  ValueId x = value(modules.norm.empty() ? "x" : "e", Width::kHidden);
  const ValueId embedded = projected ? value("embedded", Width::kFixed, 0, spec_.embedding_size) : x;
  parallel::Node& embed = node(Op::kEmbed, 0);
  embed.output = embedded;
  embed.weights = {weight_of({.module = modules.tokens,
                              .rows = spec_.vocab_size,
                              .columns = embedding_size(),
                              .shard = ShardKind::kVocabularyRows,
                              .part = {.name = file_name(modules.tokens, "token_embd")}})};
  if (projected) linear(embedded, x, {whole_projection(modules.projection, spec_.hidden_size, spec_.embedding_size)}, false, 0);
  if (spec_.embedding_scale != 1.0f) scale(x, spec_.embedding_scale, 0);
  if (!modules.positions.empty()) {
    parallel::Node& positions = node(Op::kAddPositions, 0);
    positions.output = x;
    positions.weights = {weight_of({.module = modules.positions,
                                    .rows = spec_.max_position_embeddings + modules.position_offset,
                                    .columns = spec_.hidden_size,
                                    .part = {.name = file_name(modules.positions, "position_embd")}})};
    positions.offset = modules.position_offset;
  }
  if (!modules.norm.empty()) x = norm(x, modules.norm, kOutsideLayers, "token_embd_norm", "x");
  graph_.nodes.back().tap = "layer.0.in";
  return x;
}

/// A product that every rank does by itself.
GraphBuilder::Projection GraphBuilder::whole_projection(const std::string& module, std::size_t rows, std::size_t columns) const {
  if (is_gguf() || module.empty()) throw std::logic_error("a projection of the embedding has no name in these files");
  return {.module = module, .rows = rows, .columns = columns, .part = {.name = file_name(module, "")}};
}

std::string GraphBuilder::file_name(const std::string& module, const std::string& gguf) const {
  if (is_gguf()) return gguf;
  return module.starts_with(spec_.absent_prefix) ? module.substr(spec_.absent_prefix.size()) : module;
}

std::string GraphBuilder::file_name(const std::string& module, const std::string& gguf, std::size_t layer) const {
  return file_name(module, layer == kOutsideLayers ? gguf : "blk." + std::to_string(layer) + "." + gguf);
}

GraphBuilder::ValueId GraphBuilder::norm(ValueId x, const std::string& module, std::size_t layer, const std::string& gguf,
                                         const std::string& name) {
  const ValueId h = value(name, Width::kHidden);
  const std::string stored = file_name(module, gguf, layer);
  parallel::Node& made = node(Op::kNorm, layer == kOutsideLayers ? spec_.num_layers : layer);
  made.inputs = {x};
  made.output = h;
  made.norm = spec_.norm.kind;
  made.eps = spec_.norm.eps;
  if (spec_.norm.has_weight) made.weights = {norm_weight(module, stored, spec_.hidden_size)};
  if (spec_.norm.has_bias) {
    parallel::TensorDecl bias{.name = module + ".bias", .columns = spec_.hidden_size};
    bias.stored.name = stored + ".bias";
    made.biases = {tensor(std::move(bias))};
  }
  return h;
}

parallel::TensorId GraphBuilder::norm_weight(const std::string& module, const std::string& stored, std::size_t columns, ShardKind shard,
                                             bool rotary_rows) {
  parallel::TensorDecl decl{.name = module + ".weight", .columns = columns, .shard = shard, .rotary_rows = rotary_rows};
  decl.stored.name = stored + ".weight";
  decl.offset = spec_.norm.weight_offset;
  return tensor(std::move(decl));
}

std::vector<GraphBuilder::Projection> GraphBuilder::query_key_value(const AttentionModules& modules, std::size_t layer) const {
  const std::size_t dim = spec_.head_dim, hidden = spec_.hidden_size;
  const std::size_t query_rows = spec_.num_heads * dim, kv_rows = spec_.num_kv_heads * dim;
  std::vector<Projection> all{{modules.q, query_rows, hidden, ShardKind::kQueryRows, true},
                              {modules.k, kv_rows, hidden, ShardKind::kKvRows, true},
                              {modules.v, kv_rows, hidden, ShardKind::kKvRows}};
  const char* gguf[] = {"attn_q", "attn_k", "attn_v"};
  Fusion fusion = modules.fusion;
  if (is_gguf()) fusion = spec_.joined_qkv.value_or(fusion != Fusion::kNone) ? Fusion::kParts : Fusion::kNone;
  std::size_t first = 0;
  for (std::size_t i = 0; i < all.size(); ++i) {
    parallel::StoredPart& part = all[i].part;
    part.transposed = modules.transposed && !is_gguf();
    part.name = fusion == Fusion::kNone ? file_name(all[i].module, gguf[i], layer) : file_name(modules.fused, "attn_qkv", layer);
    if (fusion == Fusion::kNone) continue;
    part.shape = {query_rows + 2 * kv_rows};
    part.first = first;
    first += fusion == Fusion::kByHead ? dim : all[i].rows;
    if (fusion == Fusion::kByHead) part.run = dim, part.stride = 3 * dim;
  }
  return all;
}

GraphBuilder::Sum GraphBuilder::attention(ValueId h, const AttentionModules& modules, std::size_t layer) {
  const ValueId qkv = value("qkv", Width::kQkv);
  linear(h, qkv, query_key_value(modules, layer), spec_.attention_bias, layer);
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
  if (!modules.sinks.empty()) {
    parallel::TensorDecl sinks{.name = modules.sinks, .columns = spec_.num_heads, .shard = ShardKind::kQueryHeads};
    sinks.stored.name = file_name(modules.sinks, "attn_sinks.weight", layer);
    attend.weights = {tensor(std::move(sinks))};
  }
  const ValueId sum = value("p", Width::kHidden);
  Projection output{modules.o, spec_.hidden_size, spec_.num_heads * spec_.head_dim, ShardKind::kAttentionColumns};
  output.part = {.name = file_name(modules.o, "attn_output", layer), .transposed = modules.transposed && !is_gguf()};
  linear(heads, sum, {output}, false, layer);
  return {sum, spec_.attention_output_bias ? std::optional(bias_of(output)) : std::nullopt};
}

void GraphBuilder::norm_heads(ValueId qkv, const AttentionModules& modules, std::size_t layer) {
  parallel::Node norm{.op = modules.head_norms == HeadNorms::kSpanning ? Op::kNormAllHeads : Op::kNormHeads,
                      .inputs = {qkv},
                      .output = qkv,
                      .layer = layer,
                      .norm = spec_.norm.kind,
                      .eps = spec_.norm.eps};
  for (const bool queries : {true, false}) norm_of_heads(norm, modules, queries, layer);
  graph_.nodes.push_back(std::move(norm));
}

void GraphBuilder::norm_of_heads(parallel::Node& norm, const AttentionModules& modules, bool queries, std::size_t layer) {
  const std::size_t dim = spec_.head_dim, heads = queries ? spec_.num_heads : spec_.num_kv_heads;
  const std::string& module = queries ? modules.q_norm : modules.k_norm;
  const std::string stored = file_name(module, queries ? "attn_q_norm" : "attn_k_norm", layer);
  if (modules.head_norms == HeadNorms::kSpanning) {
    norm.weights.push_back(norm_weight(module, stored, heads * dim, queries ? ShardKind::kQueryRows : ShardKind::kKvRows, true));
    return;
  }
  if (modules.head_norms == HeadNorms::kAlike) {
    norm.weights.push_back(norm_weight(module, stored, dim, ShardKind::kReplicated, true));
    if (!modules.head_norm_bias) return;
    parallel::TensorDecl bias{.name = module + ".bias", .columns = dim, .rotary_rows = true};
    bias.stored.name = stored + ".bias";
    norm.biases.push_back(tensor(std::move(bias)));
    return;
  }
  const bool apart = modules.head_norms == HeadNorms::kEachApart && !is_gguf();
  for (std::size_t head = 0; head < heads; ++head) {
    const std::string part = ".norms." + std::to_string(head);
    const parallel::TensorId weight = norm_weight(module + part, apart ? stored + part : stored, dim, ShardKind::kReplicated, true);
    parallel::StoredPart& place = graph_.tensors[weight].stored;
    if (!apart) place.shape = {heads, dim}, place.first = head * dim;
    norm.weights.push_back(weight);
  }
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

GraphBuilder::ValueId GraphBuilder::inner_product(ValueId h, const FeedForwardModules& modules, std::size_t which, std::size_t layer,
                                                  const std::string& gguf_suffix) {
  const std::size_t rows = graph_.dims.inner_size(which), hidden = spec_.hidden_size;
  const bool gated = !modules.gate.empty();
  const std::string suffix = which == 0 ? "" : "." + std::to_string(which);
  std::vector<Projection> projections;
  for (const auto& [module, gguf] : {std::pair(&modules.gate, "ffn_gate"), std::pair(&modules.up, "ffn_up")}) {
    if (module->empty()) continue;
    Projection projection{*module, rows, hidden, ShardKind::kFeedForwardRows, false, which};
    projection.part = {.name = file_name(*module, gguf + gguf_suffix, layer), .transposed = modules.transposed && !is_gguf()};
    if (!modules.fused.empty()) {
      projection.part.name = file_name(modules.fused, "ffn_up", layer);
      projection.part.shape = {2 * rows};
      projection.part.first = projections.size() * rows;
    }
    projections.push_back(std::move(projection));
  }
  const ValueId up = value((gated ? "gate_up" : "u") + suffix, gated ? Width::kGateUp : Width::kFeedForward, which);
  linear(h, up, projections, spec_.mlp_bias, layer);
  const ValueId inner = value("f" + suffix, Width::kFeedForward, which);
  parallel::Node& activation = node(gated ? Op::kGated : Op::kActivate, layer);
  activation.inputs = {up};
  activation.output = inner;
  activation.gating = gating();
  return inner;
}

GraphBuilder::Sum GraphBuilder::feed_forward(ValueId h, const FeedForwardModules& modules, std::size_t layer) {
  const std::size_t which = inner_of(spec_.intermediate_size);
  const ValueId inner = inner_product(h, modules, which, layer);
  const ValueId sum = value("p", Width::kHidden);
  Projection down{modules.down, spec_.hidden_size, spec_.intermediate_size, ShardKind::kFeedForwardColumns, false, which};
  down.part = {.name = file_name(modules.down, "ffn_down", layer), .transposed = modules.transposed && !is_gguf()};
  linear(inner, sum, {down}, false, layer);
  return {sum, spec_.mlp_bias ? std::optional(bias_of(down)) : std::nullopt};
}

void GraphBuilder::add(ValueId x, const Sum& sum, Branch branch, std::size_t layer, const std::string& post_norm) {
  const std::string prefix = "layer." + std::to_string(layer);
  const bool attends = branch == Branch::kAttention;
  const std::string tap = prefix + (attends ? ".attn_out" : ".mlp_out");
  const bool changed = !post_norm.empty() || spec_.residual_scale != 1.0f;  // what is added is not the sum itself
  if (changed && sum.bias) throw std::logic_error("a bias before a norm or a scale of a branch is not done");
  if (changed) graph_.nodes.back().tap = tap;
  const ValueId delta =
      post_norm.empty() ? sum.value : norm(sum.value, post_norm, layer, attends ? "post_attention_norm" : "post_ffw_norm", "n");
  if (spec_.residual_scale != 1.0f) scale(delta, spec_.residual_scale, layer);
  parallel::Node added{.op = Op::kAdd, .inputs = {delta}, .output = x, .layer = layer};
  if (sum.bias) added.biases = {*sum.bias};
  if (!changed) added.tap_input = tap;
  if (!attends) added.tap = prefix + ".out";
  graph_.nodes.push_back(std::move(added));
}

GraphBuilder::ValueId GraphBuilder::norm_of_sum(ValueId x, const std::string& module, Branch branch, std::size_t layer) {
  // Two values by turns, so that no norm writes where it reads.
  const bool attends = branch == Branch::kAttention;
  const ValueId normed = norm(x, module, layer, attends ? "attn_norm" : "ffn_norm", attends ? "y" : "x");
  if (!attends) std::swap(graph_.nodes.back().tap, graph_.nodes[graph_.nodes.size() - 2].tap);
  return normed;
}

void GraphBuilder::head(ValueId x, const std::string& norm_module, const std::string& head_module, const std::string& projection) {
  const std::size_t after_layers = spec_.num_layers;
  const ValueId selected = value("x.selected", Width::kHidden);
  parallel::Node& select = node(Op::kSelectLogitRows, after_layers);
  select.inputs = {x};
  select.output = selected;
  ValueId h = selected;
  if (spec_.final_norm) {
    h = norm(selected, norm_module, kOutsideLayers, "output_norm", "h.selected");
    graph_.nodes.back().tap = "final_norm";
  }
  if (spec_.embedding_size != 0) {
    const ValueId projected = value("projected", Width::kFixed, 0, spec_.embedding_size);
    linear(h, projected, {whole_projection(projection, spec_.embedding_size, spec_.hidden_size)}, false, after_layers);
    h = projected;
  }
  const ValueId logits = value("logits", Width::kVocabulary);
  linear(h, logits,
         {{.module = head_module,
           .rows = spec_.vocab_size,
           .columns = embedding_size(),
           .shard = ShardKind::kVocabularyRows,
           .part = {.name = file_name(head_module, "output")}}},
         spec_.head_bias, after_layers);
  const float logit_scale = spec_.logit_scale / spec_.logit_divisor;
  if (logit_scale != 1.0f) scale(logits, logit_scale, after_layers);
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
  decl.stored = projection.part;
  parallel::StoredPart& stored = decl.stored;
  stored.name += projection.weight_suffix;
  if (stored.shape.empty() && !projection.stored_as_vector) stored.shape = {projection.rows};
  if (stored.transposed) {
    stored.first_column += projection.stack_place * projection.columns;
  } else if (projection.stack_place != 0) {
    stored.first += projection.stack_place * stored.shape.back();
  }
  stored.shape.push_back(projection.columns);
  if (stored.transposed) std::swap(stored.shape.back(), stored.shape[stored.shape.size() - 2]);
  return tensor(std::move(decl));
}

parallel::TensorId GraphBuilder::bias_of(const Projection& projection) {
  // That of a row-parallel product is added once, to the sum.
  const bool row_parallel = projection.shard == ShardKind::kAttentionColumns || projection.shard == ShardKind::kFeedForwardColumns;
  parallel::TensorDecl decl{projection.module + ".bias", 0, projection.rows, row_parallel ? ShardKind::kReplicated : projection.shard,
                            projection.rotary_rows};
  decl.inner = projection.inner;
  decl.stored = projection.part;
  decl.stored.name += projection.bias_suffix;
  decl.stored.transposed = false;
  if (decl.stored.shape.empty()) decl.stored.shape = {projection.rows};
  decl.stored.first += projection.stack_place * decl.stored.shape.back();
  return tensor(std::move(decl));
}

device::Gating GraphBuilder::gating() const {
  return {.function = spec_.activation, .limit = spec_.activation_limit, .up_offset = spec_.up_offset};
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

parallel::Graph build_decoder(const ModelSpec& spec, const DecoderModules& modules) {
  using Branch = GraphBuilder::Branch;
  GraphBuilder builder(spec);
  auto x = builder.embedding(modules.embedding);
  for (std::size_t layer = 0; layer < spec.num_layers; ++layer) {
    const std::string module = modules.layers + std::to_string(layer);
    const auto named = [&](const std::string& norm) { return norm.empty() ? norm : std::string(module).append(".").append(norm); };
    if (spec.norms_of_sums) {
      builder.add(x, modules.attention(builder, spec, x, module, layer), Branch::kAttention, layer);
      x = builder.norm_of_sum(x, named(modules.attention_norm), Branch::kAttention, layer);
      builder.add(x, modules.feed_forward(builder, spec, x, module, layer), Branch::kFeedForward, layer);
      x = builder.norm_of_sum(x, named(modules.feed_forward_norm), Branch::kFeedForward, layer);
      continue;
    }
    const bool own_norm = !modules.feed_forward_norm.empty();
    const auto h = modules.attention_norm.empty() ? x : builder.norm(x, named(modules.attention_norm), layer, "attn_norm");
    // Side by side, both norms are of the same x: before the attention is added.
    auto fed = spec.parallel_residual ? h : x;
    const auto norm_again = [&] {
      fed = builder.norm(x, named(modules.feed_forward_norm), layer, modules.feed_forward_norm_gguf, spec.parallel_residual ? "h2" : "h");
    };
    if (own_norm && spec.parallel_residual) norm_again();
    builder.add(x, modules.attention(builder, spec, h, module, layer), Branch::kAttention, layer, named(modules.attention_post_norm));
    if (own_norm && !spec.parallel_residual) norm_again();
    builder.add(x, modules.feed_forward(builder, spec, fed, module, layer), Branch::kFeedForward, layer,
                named(modules.feed_forward_post_norm));
  }
  builder.head(x, modules.final_norm, spec.tie_word_embeddings ? modules.embedding.tokens : modules.head, modules.head_projection);
  return builder.take();
}

}  // namespace lockstep::engine
