#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "comm/communicator.h"

namespace lockstep::comm::cuda {

/// What ranks must know of each other before they share GPU memory, and what they must have alike. Sent as bytes.
struct RankCard {
  std::array<char, 16> gpu_uuid{};
  std::int32_t pci[3] = {};     // domain, bus, device
  std::int32_t capability = 0;  // of the GPU: 10 * major + minor
  std::array<char, 64> gpu_name{};
  std::int32_t num_multiprocessors = 0;
  std::int32_t ordinal = 0;  // of the GPU in its process
  std::uint64_t process = 0;
  std::uint64_t settings = 0;  // digest of the options
};

/// Of the current device of this thread. @throws device::cuda::CudaError
RankCard make_card(std::uint64_t settings);

/// Collective: the cards of all ranks.
std::vector<RankCard> exchange_cards(Communicator& host, const RankCard& mine);

/// Why these ranks cannot work together; empty if they can. `share_gpu`: two ranks may have the same GPU.
std::string card_error(const std::vector<RankCard>& cards, bool share_gpu);

bool same_gpu(const RankCard& a, const RankCard& b);

}  // namespace lockstep::comm::cuda
