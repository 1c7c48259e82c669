#include "engine/session.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <stdexcept>

#include "comm/control_channel.h"
#include "engine/runtime/coordinator.h"
#include "engine/runtime/kv_cache.h"
#include "engine/runtime/kv_layout.h"
#include "engine/runtime/runner.h"
#include "engine/runtime/worker.h"
#include "engine/weights/loader.h"

namespace lockstep::engine {
namespace {

/// Carries step plans over comm's control channel.
class PlanChannel final : public PlanSender, public PlanReceiver {
 public:
  explicit PlanChannel(comm::Communicator& communicator) : channel_(communicator) {}
  void send(std::span<const std::byte> plan) override { channel_.send(plan); }
  void receive(std::vector<std::byte>& plan) override { channel_.receive(plan); }

 private:
  comm::ControlChannel channel_;
};

/// Every rank's number, on every rank.
std::vector<std::uint64_t> exchange(comm::Communicator& communicator, std::uint64_t mine) {
  std::vector<std::uint64_t> all(static_cast<std::size_t>(communicator.size()));
  const std::vector<std::size_t> bytes(all.size(), sizeof mine);
  communicator.all_gather(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all)), bytes);
  return all;
}

std::uint64_t smallest(comm::Communicator& communicator, std::uint64_t mine) {
  const auto all = exchange(communicator, mine);
  return *std::min_element(all.begin(), all.end());
}

void require_same_model(comm::Communicator& communicator, const OpenedModel& model) {
  const auto mine = std::hash<std::string>{}(model.model_hash);
  const auto all = exchange(communicator, mine);
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank] != all[0]) {
      throw std::runtime_error("rank " + std::to_string(rank) + " sees another model than rank 0 (this rank opened " + model.spec.source +
                               ", hash " + model.model_hash + "): is the path the same file on every host?");
    }
  }
}

device::DType default_kv_dtype(const parallel::RankGraph& plan, const SessionOptions& options) {
  if (options.kv_dtype) return *options.kv_dtype;
  if (options.dtype) return *options.dtype;
  const bool any_bf16 = std::any_of(plan.tensors.begin(), plan.tensors.end(),
                                    [](const parallel::TensorDecl& tensor) { return tensor.dtype == device::DType::kBF16; });
  return any_bf16 ? device::DType::kBF16 : device::DType::kF16;
}

parallel::ActivationRule activation_rule(const SessionOptions& options, const device::Device& device) {
  return [wanted = options.activation, &device](device::DType weight) {
    if (!wanted || !device::info(weight).block_quantised()) return device.activation_for(weight);
    if (!device.multiplies(weight, *wanted)) {
      throw std::invalid_argument("--activation-dtype " + std::string(device::name_of(*wanted)) + ": this device (" + device.description() +
                                  ") does not multiply " + std::string(device::info(weight).name) + " weights with such activations");
    }
    return *wanted;
  };
}

/// How far back each layer sees; 0: all.
std::vector<std::uint32_t> windows_of(const parallel::RankGraph& graph) {
  std::vector<std::uint32_t> windows(graph.dims.num_layers, 0);
  for (const parallel::RankNode& node : graph.nodes) {
    if (node.op == parallel::RankOp::kAttention) windows.at(node.layer) = graph.attentions[node.attention].window;
  }
  return windows;
}

}  // namespace

parallel::Graph graph_of(const OpenedModel& model, std::optional<device::DType> dtype) {
  parallel::Graph graph = family_of(model.spec.architecture).build(model.spec);
  bind_tensors(graph, model.spec, *model.weights, dtype);
  return graph;
}

struct Session::State {
  State(const SessionOptions& session_options, device::Device& session_device, comm::Communicator& session_communicator)
      : options(session_options), device(session_device), communicator(session_communicator), channel(session_communicator) {}

  bool is_root() const { return communicator.rank() == 0; }
  void open_text();
  void size_cache(const parallel::RankGraph& plan, std::uint64_t budget);
  std::uint64_t free_memory_budget(const parallel::RankGraph& plan) const;
  RunnerOptions runner_options() const;
  void make_engine(parallel::RankGraph plan, LoadedShard shard);

  SessionOptions options;
  device::Device& device;
  comm::Communicator& communicator;
  PlanChannel channel;
  OpenedModel model;
  std::unique_ptr<text::Tokenizer> tokenizer;
  std::string no_tokenizer;  // why there is none
  std::vector<std::int32_t> eos_ids;
  KvLayout kv_layout;
  device::KvCacheSpec kv;
  std::size_t max_model_len = 0;
  std::size_t weight_bytes = 0;
  std::unique_ptr<Runner> runner;
  std::unique_ptr<Coordinator> coordinator;
};

void Session::State::open_text() {
  try {
    if (model.gguf_vocabulary) {
      tokenizer = text::tokenizer_from_gguf(*model.gguf_vocabulary);
    } else if (!model.folder.empty()) {
      tokenizer = text::tokenizer_from_folder(model.folder);
    } else {
      throw std::runtime_error(model.spec.source + ": has no vocabulary; score of token ids and bench work without one");
    }
  } catch (const std::runtime_error& error) {
    no_tokenizer = error.what();
  }
  eos_ids = model.spec.eos_ids;
  if (tokenizer && tokenizer->eos_id() >= 0) eos_ids.push_back(tokenizer->eos_id());
  std::sort(eos_ids.begin(), eos_ids.end());
  eos_ids.erase(std::unique(eos_ids.begin(), eos_ids.end()), eos_ids.end());
}

/// Every rank takes the smallest cache of the group: blocks are numbered by rank 0 for all.
void Session::State::size_cache(const parallel::RankGraph& plan, std::uint64_t budget) {
  kv_layout = engine::kv_layout(windows_of(plan));
  kv.num_layers = plan.dims.num_layers;
  kv.places = kv_layout.places;
  kv.num_kv_heads = plan.shard.kv_heads.size();
  kv.head_dim = plan.dims.head_dim;
  kv.block_size = options.block_size;
  kv.dtype = default_kv_dtype(plan, options);
  kv.quantised = options.kv_quantised;
  const std::size_t wanted_length = options.max_model_len.value_or(model.spec.max_position_embeddings);
  if (wanted_length > model.spec.max_position_embeddings) {
    throw std::invalid_argument("--max-model-len " + std::to_string(wanted_length) + " is more than the model's " +
                                std::to_string(model.spec.max_position_embeddings) + " positions (" + model.spec.source + ")");
  }
  const KvCacheSize size = size_kv_cache(budget, kv, wanted_length, options.max_model_len.has_value(), options.max_num_seqs);
  kv.num_blocks = smallest(communicator, size.num_blocks);
  max_model_len = smallest(communicator, size.max_model_len);
}

RunnerOptions Session::State::runner_options() const {
  constexpr std::size_t kScoringBytes = std::size_t{256} << 20;
  std::size_t logit_rows = options.max_num_seqs;
  if (options.for_scoring) logit_rows = std::max(logit_rows, kScoringBytes / (sizeof(float) * model.spec.vocab_size));
  return {.max_tokens = options.max_num_batched_tokens,
          .max_logit_rows = std::min(logit_rows, options.max_num_batched_tokens),
          .max_sequences = std::min(options.max_num_seqs, options.max_num_batched_tokens),
          .max_positions = max_model_len,
          .kv = kv};
}

/// With the weights in place: what the device has left, but for the activations and the share that is not to be used.
std::uint64_t Session::State::free_memory_budget(const parallel::RankGraph& plan) const {
  const std::uint64_t free = device.free_bytes();
  const auto usable = static_cast<std::uint64_t>(static_cast<double>(free) * options.memory_utilization);
  const std::uint64_t activations = activation_bytes(plan, runner_options(), device);
  if (usable <= activations) {
    throw std::runtime_error("the activations of a step of " + std::to_string(options.max_num_batched_tokens) + " tokens need " +
                             std::to_string(activations) + " bytes, but of the " + std::to_string(free) +
                             " bytes that the device has left only " + std::to_string(usable) +
                             " are to be used: a smaller --max-num-batched-tokens or more ranks help");
  }
  return usable - activations;
}

void Session::State::make_engine(parallel::RankGraph plan, LoadedShard shard) {
  weight_bytes = shard.size_bytes();
  runner = std::make_unique<Runner>(std::move(plan), std::move(shard), runner_options(), device, communicator);
  if (!is_root()) return;
  const auto& rotaries = runner->graph().rotaries;
  CoordinatorOptions coordinator_options{
      .scheduler = {.max_num_seqs = options.max_num_seqs,
                    .max_num_batched_tokens = options.max_num_batched_tokens,
                    .prefill_chunk = options.prefill_chunk,
                    .num_blocks = kv.num_blocks,
                    .block_size = kv.block_size,
                    .max_logit_rows = runner->max_logit_rows(),
                    .tables = kv_layout.tables,
                    .window = kv_layout.window,
                    .prefix_caching = options.prefix_caching,
                    .preempt_every = options.preempt_every},
      .max_model_len = max_model_len,
      .vocab_size = model.spec.vocab_size,
      .eos_ids = eos_ids,
      .angles_depend_on_length =
          std::any_of(rotaries.begin(), rotaries.end(), [](const parallel::Rotary& each) { return each.depends_on_length(); }),
      .tokenizer = tokenizer.get()};
  coordinator = std::make_unique<Coordinator>(std::move(coordinator_options), *runner, communicator.size() > 1 ? &channel : nullptr);
}

Session::Session(const SessionOptions& options, device::Device& device, comm::Communicator& communicator, const OnPhase& on_phase)
    : state_(std::make_unique<State>(options, device, communicator)) {
  const auto phase = [&](const std::string& name) {
    comm::Position position;
    std::memcpy(position.node, name.data(), std::min(name.size(), sizeof position.node - 1));
    communicator.set_position(position);
    if (on_phase) on_phase(name);
  };
  phase("open model");
  state_->model = open_model(options.model);
  require_same_model(communicator, state_->model);
  const parallel::Graph graph = graph_of(state_->model, options.dtype);
  parallel::RankGraph plan =
      parallel::plan(graph, static_cast<std::size_t>(communicator.rank()), static_cast<std::size_t>(communicator.size()),
                     activation_rule(options, device), options.one_leaf);
  state_->open_text();
  // A budget that is known is checked before gigabytes are read.
  if (options.kv_cache_bytes) state_->size_cache(plan, *options.kv_cache_bytes);
  phase("load weights");
  LoadedShard shard = load_shard(plan, state_->model.spec, *state_->model.weights, device);
  if (!options.kv_cache_bytes) state_->size_cache(plan, state_->free_memory_budget(plan));
  state_->make_engine(std::move(plan), std::move(shard));
  communicator.barrier();
  phase("ready");
}

Session::~Session() = default;

Engine& Session::engine() {
  if (!state_->coordinator) throw std::logic_error("only rank 0 has an engine");
  return *state_->coordinator;
}

std::uint64_t Session::serve() { return engine::serve(state_->channel, *state_->runner); }
void Session::stop() { state_->coordinator->stop(); }
void Session::abort(std::string_view reason) { state_->coordinator->abort(reason); }

const ModelSpec& Session::spec() const { return state_->model.spec; }
const OpenedModel& Session::model() const { return state_->model; }
const parallel::RankGraph& Session::plan() const { return state_->runner->graph(); }
const text::Tokenizer* Session::tokenizer_or_null() const { return state_->tokenizer.get(); }
const std::vector<std::int32_t>& Session::eos_ids() const { return state_->eos_ids; }
std::size_t Session::weight_bytes() const { return state_->weight_bytes; }
std::size_t Session::kv_bytes() const { return state_->kv.num_blocks * state_->kv.bytes_per_block(); }
std::size_t Session::kv_tokens() const { return state_->kv.num_blocks / state_->kv.num_tables() * state_->kv.block_size; }
std::size_t Session::kv_token_bytes() const {
  device::KvCacheSpec all = state_->kv;
  all.num_kv_heads = state_->model.spec.num_kv_heads;
  all.places.clear();  // without the places that no layer has
  return all.bytes_per_token();
}
std::string Session::kv_type() const {
  const device::KvCacheSpec& kv = state_->kv;
  return std::string(kv.quantised == device::KvQuantisation::kNone ? device::info(kv.dtype).name : device::name_of(kv.quantised));
}

const text::Tokenizer& Session::tokenizer() const {
  if (!state_->tokenizer) throw std::runtime_error(state_->no_tokenizer);
  return *state_->tokenizer;
}

void Session::forward(std::span<const std::int32_t> prompt, const OnLogits& on_logits, const OnHidden& on_hidden) {
  State& state = *state_;
  if (prompt.empty() || prompt.size() > state.max_model_len) {
    throw std::invalid_argument("a prompt of " + std::to_string(prompt.size()) + " tokens; 1 to " + std::to_string(state.max_model_len) +
                                " are possible");
  }
  std::size_t chunk = state.runner->max_logit_rows();
  if (state.options.prefill_chunk > 0) chunk = std::min(chunk, state.options.prefill_chunk);
  if (on_hidden) state.runner->set_tap(on_hidden);
  StepPlan plan;
  StepResult result;
  for (std::size_t first = 0; first < prompt.size(); first += chunk) {
    const std::size_t count = std::min(chunk, prompt.size() - first);
    plan.clear();
    plan.batch.token_ids.assign(prompt.begin() + static_cast<std::ptrdiff_t>(first),
                                prompt.begin() + static_cast<std::ptrdiff_t>(first + count));
    plan.batch.positions.resize(count);
    std::iota(plan.batch.positions.begin(), plan.batch.positions.end(), static_cast<std::int32_t>(first));
    plan.batch.sequences = {{.first_token = 0,
                             .num_tokens = static_cast<std::uint32_t>(count),
                             .first_position = static_cast<std::uint32_t>(first),
                             .block_table = 0,
                             .prompt_length = static_cast<std::uint32_t>(prompt.size())}};
    plan.batch.num_tables = static_cast<std::uint32_t>(state.kv.num_tables());
    const std::size_t blocks = (first + count + state.kv.block_size - 1) / state.kv.block_size;
    for (std::size_t i = 0; i < plan.batch.num_tables * blocks; ++i) {  // block b of a table: the b-th one of those that are its own
      plan.batch.block_tables.push_back(static_cast<std::uint32_t>(i % blocks * plan.batch.num_tables + i / blocks));
    }
    plan.batch.logit_rows.resize(count);
    std::iota(plan.batch.logit_rows.begin(), plan.batch.logit_rows.end(), 0u);
    plan.wanted.assign(count, RowWants::kLogits);
    state.coordinator->run_when_idle(plan, result);
    for (std::size_t row = 0; row < count; ++row) on_logits(first + row, result.logits[row]);
  }
  state.runner->set_tap({});
}

}  // namespace lockstep::engine
