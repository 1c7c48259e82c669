#pragma once

#include <map>
#include <span>
#include <vector>

#include "device/cuda/linear.h"
#include "device/cuda/memory.h"
#include "device/cuda/views.h"

/// Mixtures of experts. See Device::route and Device::experts. @throws CudaError
namespace lockstep::device::cuda {

void route(const Launch& launch, Rows logits, std::size_t num_rows, const Routing& routing, Rows out);

/// The experts of a layer, and what is made of their products.
struct Mixture {
  std::span<const Expert> experts;
  std::size_t per_token = 0;
  Gating gating = {};
  std::span<const Leaf> leaves;
};

/// Sums over experts, with the memory that they need. An expert computes the tokens that chose it, and its weights are not read where there
/// is none. Which tokens those are is known on the GPU alone: one kernel groups them, and each product is one launch for all experts, over
/// as many tiles as there could be. So the launches of a step are the same whatever the routers say, and a recorded step can be replayed.
class ExpertSums {
 public:
  /// @param max_tokens  of a step: memory is taken for so many, once, since recordings hold its addresses
  /// @param max_bytes   of the products of down projections: the tokens of a larger step go through in pieces
  explicit ExpertSums(std::size_t max_tokens = 0, std::size_t max_bytes = std::size_t{256} << 20)
      : max_tokens_(max_tokens), max_bytes_(max_bytes) {}

  /// Memory that run() takes for layers of such experts, besides the addresses of their weights.
  std::size_t memory_bytes(std::size_t per_token, const WeightSpec& gate_up, const WeightSpec& down) const;

  /// @param token_ids  in device memory; rows with a negative one are pads, which no expert computes, and become +0. Null: no pads.
  /// @throws std::invalid_argument if there are more experts or leaves than the kernels take, more rows than max_tokens, or weights of a
  /// layer that differ in shape or type.
  void run(const Launch& launch, Rows h, std::size_t num_rows, Rows routing, const std::int32_t* token_ids, const Mixture& mixture,
           Rows out);

 private:
  /// Addresses of the weights of a layer, in device memory.
  struct Table {
    std::vector<const void*> addresses;  // what was uploaded
    DeviceMemory memory;
    std::size_t num_experts = 0;
    /// [experts] each; the biases of the down projections come in where its products are added up.
    const Grouping::Weight* gate_up() const { return memory.as<Grouping::Weight>(); }
    const Grouping::Weight* down() const { return gate_up() + num_experts; }
    const float* const* down_biases() const { return reinterpret_cast<const float* const*>(down() + num_experts); }
  };
  /// What a piece of a step needs.
  struct Matrices {
    std::size_t most_tokens, most_rows, num_leaves;
    Rows products;  // [tokens * per_token, 2 * inner] gate and up
    Rows inner;     // [tokens * per_token, inner]
    Rows partial;   // [leaves, tokens * per_token, hidden]
  };
  const Table& table_of(const Launch& launch, std::span<const Expert> experts);
  /// Without memory.
  Matrices shapes(std::size_t per_token, const WeightSpec& gate_up, const WeightSpec& down) const;
  Matrices matrices(const Mixture& mixture);
  void multiply(const Launch& launch, Rows h, std::size_t count, Rows routing, const std::int32_t* token_ids, const Mixture& mixture,
                const Table& table, const Matrices& memory);

  std::size_t max_tokens_, max_bytes_;
  DeviceMemory grouping_, products_, inner_, partial_;
  std::map<const Weight*, Table> tables_;  // by the first weight of the layer
};

}  // namespace lockstep::device::cuda
