#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "device/device.h"
#include "engine/model/open_model.h"
#include "engine/runtime/engine.h"
#include "engine/runtime/step_plan.h"
#include "engine/text/tokenizer.h"
#include "parallel/plan.h"

namespace lockstep::engine {

/// How a model is to be run; every rank gives the same.
struct SessionOptions {
  std::filesystem::path model;
  std::optional<device::DType> dtype;            // F32, F16 or BF16: what all matrices are converted to; absent: as stored
  std::optional<device::Activation> activation;  // of products with block-quantised weights: kFloat32 or kInt8Blocks; absent: the device's
  std::optional<device::DType> kv_dtype;         // absent: dtype; without it BF16 for BF16 weights, else F16
  device::KvQuantisation kv_quantised = device::KvQuantisation::kNone;  // in place of kv_dtype: 8 bits
  std::optional<std::uint64_t> kv_cache_bytes;  // budget of one rank; absent: of a device with memory of its own, what is free then
  double memory_utilization = 0.9;              // share of that free memory which is used
  std::size_t block_size = 32;                  // tokens of a KV block; a multiple of 16
  std::optional<std::size_t> max_model_len;     // absent: the model's, or what the budget holds
  std::size_t max_num_seqs = 32;
  std::size_t max_num_batched_tokens = 512;
  bool for_scoring = false;       // room for the logits of as many prompt positions of a step as 256 MiB hold
  std::size_t prefill_chunk = 0;  // tokens of one sequence's prefill in a step; 0: what the step has room for
  bool prefix_caching = true;     // requests that begin with the same tokens share the KV blocks of those
  std::size_t preempt_every = 0;  // test aid
  bool one_leaf = false;          // for measurements: see parallel::plan
};

/// A model that is ready to answer on one rank of a group: opened, cut, loaded, with its KV cache. Rank 0 drives engine(); the others
/// serve().
class Session {
 public:
  /// Told at the start of each phase: "open model", "load weights", "ready". May be empty.
  using OnPhase = std::function<void(const std::string& phase)>;

  /// Collective. The number of ranks is checked before weights are read. Device and communicator must outlive the session.
  /// @throws std::invalid_argument or std::runtime_error with one sentence for the user.
  Session(const SessionOptions& options, device::Device& device, comm::Communicator& communicator, const OnPhase& on_phase = {});
  ~Session();

  Engine& engine();  // rank 0
  /// The other ranks: work until rank 0 calls stop(). Returns the number of steps. @throws what ended the job.
  std::uint64_t serve();
  void stop();                          // rank 0: ends serve() on the others
  void abort(std::string_view reason);  // rank 0: ends it with an error

  const ModelSpec& spec() const;
  const OpenedModel& model() const;
  const parallel::RankGraph& plan() const;
  /// @throws std::runtime_error that says why the model has no usable tokenizer; token-id prompts work without.
  const text::Tokenizer& tokenizer() const;
  const text::Tokenizer* tokenizer_or_null() const;
  const std::vector<std::int32_t>& eos_ids() const;  // of model and tokenizer together
  std::size_t weight_bytes() const;                  // of this rank
  std::size_t kv_bytes() const;
  std::size_t kv_tokens() const;       // that the cache holds
  std::string kv_type() const;         // "F16", "fp8"
  std::size_t kv_token_bytes() const;  // of a token's keys and values, those of all heads of the model

  /// Rank 0, with nothing in flight: runs a prompt once, in pieces as the options say, and shows the logits of every position in order.
  using OnLogits = std::function<void(std::size_t position, std::span<const float> logits)>;
  /// The named values of Runner::Tap, piece by piece.
  using OnHidden = std::function<void(const std::string& name, std::size_t rows, std::size_t columns, std::span<const float> values)>;
  void forward(std::span<const std::int32_t> prompt, const OnLogits& on_logits, const OnHidden& on_hidden = {});

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// What `lockstep inspect` shows without loading weights: the graph of a model, bound to its files.
parallel::Graph graph_of(const OpenedModel& model, std::optional<device::DType> dtype);

}  // namespace lockstep::engine
