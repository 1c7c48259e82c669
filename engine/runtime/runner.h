#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "device/device.h"
#include "engine/runtime/rank_selection.h"
#include "engine/runtime/rotary.h"
#include "engine/runtime/step_runner.h"
#include "engine/weights/loader.h"
#include "parallel/plan.h"

namespace lockstep::engine {

struct RunnerOptions {
  std::size_t max_tokens = 0;      // of a step
  std::size_t max_logit_rows = 0;  // of a step
  std::size_t max_sequences = 0;   // of a step
  std::size_t max_positions = 0;   // of a sequence
  device::KvCacheSpec kv;          // layers, heads and head size are filled in from the plan
};

/// Memory of all activations of a step, those included that a device keeps for experts.
std::size_t activation_bytes(const parallel::RankGraph& graph, const RunnerOptions& options, const device::Device& device);

/// Walks one rank's graph for each step: compute nodes go to the device, collective nodes to the communicator. It knows no model, no device
/// and no transport. Memory for all activations is taken once, at construction.
class Runner final : public StepRunner {
 public:
  /// Sees the named values of a step ("layer.0.attn_out"; the names of Node::tap): [rows, columns] fp32.
  using Tap = std::function<void(const std::string& name, std::size_t rows, std::size_t columns, std::span<const float> values)>;

  /// The device and the communicator must outlive the runner.
  Runner(parallel::RankGraph graph, LoadedShard shard, const RunnerOptions& options, device::Device& device,
         comm::Communicator& communicator);
  ~Runner() override;

  void run(const StepPlan& plan, StepResult& result) override;

  void set_tap(Tap tap) { tap_ = std::move(tap); }
  const parallel::RankGraph& graph() const { return graph_; }
  std::size_t max_logit_rows() const { return options_.max_logit_rows; }
  std::size_t max_tokens() const { return options_.max_tokens; }

 private:
  struct StepContext;
  void run_node(const parallel::RankNode& node, const StepContext& step);
  void embed(const parallel::RankNode& node);
  void add_norm(const parallel::RankNode& node, std::size_t rows);
  bool gives_tops(const parallel::RankNode& node) const;
  void sum_experts(const parallel::RankNode& node, std::size_t rows);
  void prepare_attentions();
  const device::RotaryTable* rotary_of(const parallel::RankNode& node) const;
  device::Norm norm_of(const parallel::RankNode& node) const;
  void check_token_ids(const device::StepBatch& batch) const;
  void show(const parallel::RankNode& node, const StepContext& step);
  void deliver(const StepPlan& plan, StepResult& result);
  void gather_tops(std::size_t num_rows, StepResult& result);
  void fetch(const StepPlan& plan, StepResult& result);
  void gather_logits(std::span<const std::uint32_t> rows, std::span<std::span<const float>> logits);
  void allocate_values();
  const float* vector_of(std::size_t vector) const;

  parallel::RankGraph graph_;
  LoadedShard shard_;
  RunnerOptions options_;
  device::Device& device_;
  comm::Communicator& communicator_;
  std::vector<RotaryAngles> angles_;               // [graph rotaries], of positions, or of the tokens of a step
  std::vector<device::RotaryTable> tables_;        // [graph rotaries]
  std::vector<device::AttentionSpec> attentions_;  // [graph attentions]
  std::unique_ptr<device::KvCache> kv_;
  std::vector<std::unique_ptr<device::Buffer>> buffers_;
  std::vector<device::Matrix> values_;  // [graph values]
  Tap tap_;

  std::vector<std::size_t> vocabulary_sizes_;  // [ranks]
  std::unique_ptr<RankSelection> selection_;
  std::size_t num_logit_rows_ = 0;  // of the latest step: what a plan may fetch

  // Scratch of a step, kept for its capacity.
  std::vector<std::size_t> bytes_per_rank_;
  std::vector<device::Top> local_tops_;
  std::vector<device::Top> all_tops_;
  std::vector<std::uint32_t> wanted_rows_;
  std::vector<std::span<const float>> wanted_logits_;
  std::vector<float> local_logits_;     // [rows][local vocabulary]
  std::vector<float> gathered_logits_;  // rank 0: [ranks][rows][local vocabulary]
  std::vector<float> logits_;           // rank 0: [rows][vocabulary]
};

}  // namespace lockstep::engine
