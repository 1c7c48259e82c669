#include "engine/runtime/runner.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <numeric>
#include <stdexcept>

#include "parallel/vocab_merge.h"

namespace lockstep::engine {

using device::Activation;
using device::Matrix;
using parallel::kNone;
using parallel::RankNode;
using parallel::RankOp;

namespace {

/// Rows of every value of the graph. What stands behind the selection of logit rows is sized by those.
std::vector<std::size_t> rows_of_values(const parallel::RankGraph& graph, const RunnerOptions& options) {
  std::vector<std::size_t> rows;
  for (const parallel::RankValue& value : graph.values) rows.push_back(value.row_factor * options.max_tokens);
  bool selected = false;
  for (const RankNode& node : graph.nodes) {
    selected = selected || node.op == RankOp::kSelectLogitRows;
    if (selected && node.output != kNone) rows[node.output] = graph.values[node.output].row_factor * options.max_logit_rows;
  }
  return rows;
}

}  // namespace

std::size_t activation_bytes(const parallel::RankGraph& graph, const RunnerOptions& options, const device::Device& device) {
  const std::vector<std::size_t> rows = rows_of_values(graph, options);
  std::size_t bytes = 0;
  for (std::size_t i = 0; i < rows.size(); ++i) bytes += device.matrix_bytes(graph.values[i].type, rows[i], graph.values[i].columns);
  std::size_t experts = 0;
  for (const RankNode& node : graph.nodes) {
    if (node.op != RankOp::kExperts) continue;
    const auto spec_of = [&](std::size_t i) -> const device::WeightSpec& { return graph.weights[node.experts.at(i)].spec; };
    experts = std::max(experts, device.experts_bytes(options.max_tokens, node.routing.per_token, spec_of(0), spec_of(1)));
  }
  return bytes + experts;
}

struct Runner::StepContext {
  std::uint64_t sequence = 0;
  std::size_t rows = 0;  // of the values that the current node works on: tokens, then logit rows
  std::span<const device::SelectionRow> selections;
};

Runner::Runner(parallel::RankGraph graph, LoadedShard shard, const RunnerOptions& options, device::Device& device,
               comm::Communicator& communicator)
    : graph_(std::move(graph)), shard_(std::move(shard)), options_(options), device_(device), communicator_(communicator) {
  if (static_cast<std::size_t>(communicator.size()) != graph_.shard.num_ranks ||
      static_cast<std::size_t>(communicator.rank()) != graph_.shard.rank) {
    throw std::invalid_argument("runner: the plan is for rank " + std::to_string(graph_.shard.rank) + " of " +
                                std::to_string(graph_.shard.num_ranks) + ", the communicator is rank " +
                                std::to_string(communicator.rank()) + " of " + std::to_string(communicator.size()));
  }
  const parallel::Shard& mine = graph_.shard;
  for (const parallel::Range share : graph_.vocabulary_shares) vocabulary_sizes_.push_back(share.size());
  prepare_attentions();
  options_.kv.num_layers = graph_.dims.num_layers;
  options_.kv.num_kv_heads = mine.kv_heads.size();
  options_.kv.head_dim = graph_.dims.head_dim;
  device_.prepare_steps({.max_tokens = options_.max_tokens,
                         .max_logit_rows = options_.max_logit_rows,
                         .max_sequences = options_.max_sequences,
                         .max_positions = options_.max_positions,
                         .max_sequence_blocks = (options_.max_positions + options_.kv.block_size - 1) / options_.kv.block_size,
                         .num_tables = options_.kv.num_tables()});
  selection_ = std::make_unique<RankSelection>(graph_.vocabulary_shares, options_.max_logit_rows, device_, communicator_);
  kv_ = device_.allocate_kv_cache(options_.kv);
  allocate_values();
}

Runner::~Runner() = default;

void Runner::prepare_attentions() {
  const parallel::Shard& mine = graph_.shard;
  const std::size_t group = graph_.dims.num_heads / graph_.dims.num_kv_heads;
  std::vector<std::uint32_t> kv_head_of;
  for (std::size_t head = mine.heads.begin; head < mine.heads.end; ++head)
    kv_head_of.push_back(static_cast<std::uint32_t>(head / group - mine.kv_heads.begin));
  for (const parallel::Attention& attention : graph_.attentions) {
    attentions_.push_back({.num_heads = mine.heads.size(),
                           .num_kv_heads = mine.kv_heads.size(),
                           .head_dim = graph_.dims.head_dim,
                           .kv_head_of = kv_head_of,
                           .scale = attention.scale,
                           .window = attention.window,
                           .soft_cap = attention.soft_cap,
                           .slopes = attention.slopes});
  }
  for (const parallel::Rotary& rotary : graph_.rotaries)
    angles_.push_back(rotary.depends_on_length() ? RotaryAngles{} : rotary_angles(rotary, options_.max_positions));
  for (std::size_t i = 0; i < angles_.size(); ++i)
    tables_.push_back({angles_[i].cosines, angles_[i].sines, graph_.rotaries[i].dim, graph_.rotaries[i].depends_on_length()});
}

void Runner::allocate_values() {
  const std::vector<std::size_t> rows = rows_of_values(graph_, options_);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const parallel::RankValue& value = graph_.values[i];
    buffers_.push_back(device_.allocate(device_.matrix_bytes(value.type, rows[i], value.columns)));
    values_.push_back({buffers_.back()->data(), value.columns, rows[i], value.type});
  }
}

const float* Runner::vector_of(std::size_t vector) const {
  return vector == kNone ? nullptr : static_cast<const float*>(shard_.vectors[vector]->data());
}

void Runner::run(const StepPlan& plan, StepResult& result) {
  if (plan.kind == StepKind::kFetch) return fetch(plan, result);
  check_blocks(plan.batch, options_.kv.block_size, options_.kv.num_blocks, options_.kv.num_tables());
  if (plan.batch.num_tokens() > options_.max_tokens || plan.batch.logit_rows.size() > options_.max_logit_rows) {
    throw std::runtime_error("runner: a step of " + std::to_string(plan.batch.num_tokens()) + " tokens and " +
                             std::to_string(plan.batch.logit_rows.size()) + " logit rows; there is room for " +
                             std::to_string(options_.max_tokens) + " and " + std::to_string(options_.max_logit_rows));
  }
  check_token_ids(plan.batch);
  for (std::size_t i = 0; i < graph_.rotaries.size(); ++i) {
    if (!graph_.rotaries[i].depends_on_length()) continue;
    angles_of_tokens(graph_.rotaries[i], plan.batch, angles_[i]);
    tables_[i].cosines = angles_[i].cosines;
    tables_[i].sines = angles_[i].sines;
  }
  result.tops.clear();
  result.logits.clear();
  result.selections = nullptr;
  num_logit_rows_ = plan.batch.logit_rows.size();
  const device::StepRows rows = device_.begin_step(plan.batch);
  const auto walk = [&] {
    StepContext step{plan.sequence, rows.tokens, plan.selections};
    for (const RankNode& node : graph_.nodes) {
      if (node.op == RankOp::kSelectLogitRows) {
        step.rows = rows.logits;
        if (step.rows == 0) return;  // the same on every rank: the plan says so
      }
      run_node(node, step);
      if (tap_) show(node, step);
    }
    if (values_[graph_.logits].columns > 0 && !gives_tops(graph_.nodes.back())) device_.top_of_rows(values_[graph_.logits], step.rows);
  };
  if (tap_) {
    walk();  // what a tap sees must be computed now, not replayed
  } else {
    device_.run_step(std::ref(walk));  // a reference: nothing is allocated
  }
  if (!plan.batch.logit_rows.empty()) deliver(plan, result);
}

void Runner::run_node(const RankNode& node, const StepContext& step) {
  comm::Position position{.step = step.sequence};
  std::memcpy(position.node, node.name.data(), std::min(node.name.size(), sizeof position.node - 1));
  communicator_.set_position(position);

  const auto input = [&]() -> const Matrix& { return values_[node.input]; };
  const auto output = [&]() -> const Matrix& { return values_[node.output]; };
  switch (node.op) {
    case RankOp::kEmbed: embed(node); return;
    case RankOp::kAddPositions: device_.add_positions(*shard_.weights[node.weight], node.offset, output()); return;
    case RankOp::kScale: device_.scale(output(), step.rows, node.factor); return;
    case RankOp::kSoftCap: device_.soft_cap(output(), step.rows, node.factor); return;
    case RankOp::kNorm: device_.norm(input(), step.rows, norm_of(node), output()); return;
    case RankOp::kNormHeads:
      device_.norm_heads(output(), step.rows, node.out_column, node.heads, graph_.dims.head_dim, norm_of(node));
      return;
    case RankOp::kSquareHeads:
      device_.square_heads(input(), step.rows, node.out_column, node.heads, graph_.dims.head_dim, output());
      return;
    case RankOp::kNormBySquare:
      device_.norm_by_square(output(), step.rows, node.out_column, node.heads * graph_.dims.head_dim, values_[node.residual],
                             node.norm_columns, vector_of(node.norm_weight), node.eps);
      return;
    case RankOp::kConvert: device_.convert(input(), step.rows, output()); return;
    case RankOp::kLinear:
      if (gives_tops(node)) {
        device_.linear_top(input(), step.rows, *shard_.weights[node.weight], vector_of(node.vector), output(), step.selections);
      } else if (shard_.weights[node.weight]) {
        device_.linear(input(), step.rows, *shard_.weights[node.weight], vector_of(node.vector), output(), node.out_column);
      }
      return;
    case RankOp::kRotateAndAppend:
      device_.rotate_and_append(input(), attentions_[node.attention], rotary_of(node), *kv_, node.layer);
      return;
    case RankOp::kAttention:
      device_.attention(input(), attentions_[node.attention], *kv_, node.layer, output(), vector_of(node.vector));
      return;
    case RankOp::kGated: device_.gated(node.gating, input(), step.rows, output()); return;
    case RankOp::kActivate: device_.activate(node.gating.function, input(), step.rows, output()); return;
    case RankOp::kRoute: device_.route(input(), step.rows, node.routing, output()); return;
    case RankOp::kExperts: sum_experts(node, step.rows); return;
    case RankOp::kGateRows: device_.gate_rows(output(), step.rows, input()); return;
    case RankOp::kAllReduce:
      device_.begin_host_access(input());
      communicator_.all_reduce(graph_.trees[node.tree], static_cast<float*>(input().data), step.rows * input().columns);
      return;
    case RankOp::kAdd: device_.add(output(), input(), step.rows, vector_of(node.vector)); return;
    case RankOp::kAddNorm: add_norm(node, step.rows); return;
    case RankOp::kSelectLogitRows: device_.select_logit_rows(input(), output()); return;
  }
}

/// Whether it is the product that ends the step: then the tops are found with it.
bool Runner::gives_tops(const RankNode& node) const {
  return &node == &graph_.nodes.back() && node.op == RankOp::kLinear && node.output == graph_.logits && node.out_column == 0 &&
         shard_.weights[node.weight];
}

const device::RotaryTable* Runner::rotary_of(const RankNode& node) const {
  const std::size_t rotary = graph_.attentions[node.attention].rotary;
  return rotary == kNone || tables_[rotary].rotary_dim == 0 ? nullptr : &tables_[rotary];
}

device::Norm Runner::norm_of(const RankNode& node) const {
  return {node.norm, vector_of(node.norm_weight), vector_of(node.norm_bias), node.eps};
}

void Runner::sum_experts(const RankNode& node, std::size_t rows) {
  std::vector<device::Expert> experts;
  for (std::size_t i = 0; i < node.experts.size(); i += 2) {
    experts.push_back({shard_.weights[node.experts[i]].get(), shard_.weights[node.experts[i + 1]].get()});
    if (node.expert_biases.empty()) continue;
    experts.back().gate_up_bias = vector_of(node.expert_biases[i]);
    experts.back().down_bias = vector_of(node.expert_biases[i + 1]);
  }
  device_.experts(values_[node.input], rows, values_[node.residual], node.routing.per_token, experts, node.gating, node.leaves,
                  values_[node.output]);
}

void Runner::check_token_ids(const device::StepBatch& batch) const {
  for (const std::int32_t id : batch.token_ids) {
    if (id < 0 || static_cast<std::size_t>(id) >= graph_.dims.vocabulary)
      throw std::runtime_error("runner: token id " + std::to_string(id) + " is not in the vocabulary");
  }
}

void Runner::embed(const RankNode& node) {
  device_.embed(shard_.weights[node.weight].get(), static_cast<std::int32_t>(graph_.shard.vocabulary.begin), values_[node.output]);
}

void Runner::add_norm(const RankNode& node, std::size_t rows) {
  const Matrix& delta = values_[node.input];
  const comm::ResidualNorm then{values_[node.residual], vector_of(node.vector), norm_of(node), values_[node.output], tap_ != nullptr};
  if (node.tree == kNone) return device_.add_norm(then.x, delta, rows, then.bias, then.norm, then.out);
  device_.begin_host_access(delta);
  communicator_.all_reduce_add_norm(device_, graph_.trees[node.tree], delta, rows, then);
}

void Runner::show(const RankNode& node, const StepContext& step) {
  const auto show_value = [&](const std::string& name, std::size_t value, const float* bias) {
    const std::size_t columns = values_[value].columns;
    std::vector<float> floats(step.rows * columns);
    device_.read_floats(values_[value], 0, step.rows, floats);
    if (bias != nullptr) {
      std::vector<float> biases(columns);
      device_.read_floats({const_cast<float*>(bias), columns, 1, Activation::kFloat32}, 0, 1, biases);
      for (std::size_t i = 0; i < floats.size(); ++i) floats[i] += biases[i % columns];
    }
    tap_(name, step.rows, columns, floats);
  };
  if (!node.tap_input.empty()) show_value(node.tap_input, node.input, vector_of(node.vector));
  if (!node.tap.empty()) show_value(node.tap, node.op == RankOp::kAddNorm ? node.residual : node.output, nullptr);
}

void Runner::deliver(const StepPlan& plan, StepResult& result) {
  const std::size_t num_rows = plan.batch.logit_rows.size();
  if (!plan.selections.empty()) selection_->select(values_[graph_.logits], plan.selections, plan.changes);
  gather_tops(num_rows, result);
  if (!plan.selections.empty()) result.selections = selection_->gather(plan.selections, plan.changes, result.tops);
  wanted_rows_.clear();
  for (std::size_t row = 0; row < num_rows; ++row) {
    if (plan.wanted[row] == RowWants::kLogits) wanted_rows_.push_back(static_cast<std::uint32_t>(row));
  }
  if (graph_.shard.rank == 0) result.logits.resize(num_rows);
  if (wanted_rows_.empty()) return;
  wanted_logits_.resize(wanted_rows_.size());
  gather_logits(wanted_rows_, wanted_logits_);
  if (graph_.shard.rank != 0) return;
  for (std::size_t i = 0; i < wanted_rows_.size(); ++i) result.logits[wanted_rows_[i]] = wanted_logits_[i];
}

void Runner::fetch(const StepPlan& plan, StepResult& result) {
  result.tops.clear();
  result.logits.clear();
  result.selections = nullptr;
  if (plan.fetched.back() >= num_logit_rows_) {
    throw std::runtime_error("runner: row " + std::to_string(plan.fetched.back()) + " is to be fetched, but the latest step has " +
                             std::to_string(num_logit_rows_) + " logit rows");
  }
  wanted_logits_.resize(plan.fetched.size());
  gather_logits(plan.fetched, wanted_logits_);
  if (graph_.shard.rank == 0) result.logits = wanted_logits_;
}

void Runner::gather_tops(std::size_t num_rows, StepResult& result) {
  local_tops_.assign(num_rows, device::Top{});
  if (values_[graph_.logits].columns > 0) device_.read_tops(local_tops_);
  const std::size_t num_ranks = graph_.shard.num_ranks;
  const bool root = graph_.shard.rank == 0;
  all_tops_.resize(root ? num_ranks * num_rows : 0);
  bytes_per_rank_.assign(num_ranks, num_rows * sizeof(device::Top));
  communicator_.gather(std::as_bytes(std::span(local_tops_)), std::as_writable_bytes(std::span(all_tops_)), bytes_per_rank_, 0);
  if (!root) return;
  result.tops.resize(num_rows);
  parallel::merge_tops(all_tops_, vocabulary_sizes_, result.tops);
}

/// The rows as they are, on rank 0; `logits` has a place for each.
void Runner::gather_logits(std::span<const std::uint32_t> rows, std::span<std::span<const float>> logits) {
  const Matrix& local = values_[graph_.logits];
  local_logits_.resize(rows.size() * local.columns);
  for (std::size_t first = 0; first < rows.size();) {
    std::size_t end = first + 1;  // of a run of rows: one read each, for which a GPU is waited for
    while (end < rows.size() && rows[end] == rows[end - 1] + 1) ++end;
    const std::size_t count = end - first;
    device_.read_floats(local, rows[first], count, std::span(local_logits_).subspan(first * local.columns, count * local.columns));
    first = end;
  }
  const std::size_t vocabulary = graph_.dims.vocabulary;
  const bool root = graph_.shard.rank == 0;
  if (graph_.shard.num_ranks == 1) {
    std::swap(logits_, local_logits_);
  } else {
    bytes_per_rank_ = parallel::gathered_row_bytes(vocabulary_sizes_, rows.size());
    gathered_logits_.resize(root ? rows.size() * vocabulary : 0);
    logits_.resize(gathered_logits_.size());
    communicator_.gather(std::as_bytes(std::span(local_logits_)), std::as_writable_bytes(std::span(gathered_logits_)), bytes_per_rank_, 0);
    if (root) parallel::assemble_rows(gathered_logits_, vocabulary_sizes_, rows.size(), logits_);
  }
  if (!root) return;
  for (std::size_t i = 0; i < rows.size(); ++i) logits[i] = std::span(logits_).subspan(i * vocabulary, vocabulary);
}

}  // namespace lockstep::engine
