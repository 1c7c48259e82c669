#pragma once

#include <cstddef>
#include <cstdint>

namespace lockstep::comm::cuda {

/// What a rank tells one peer about one block of its kernels. It lies in the memory of the peer, who spins on it; the writer is one thread.
struct Arrival {
  std::uint32_t epoch = 0;        // rounds that the writer's block has published
  std::uint32_t digests[2] = {};  // of the call, by the lowest bit of the epoch
  std::uint32_t padding = 0;
};

/// Words in pinned host memory through which host and kernels talk while a kernel waits.
struct HostWords {
  static constexpr std::size_t max_ranks = 16;
  std::uint32_t abort = 0;                // not 0: every waiting kernel leaves. Written by the host, and by a kernel that found a mismatch
  std::uint32_t mismatch = 0;             // 1 + a peer that made another call
  std::uint32_t waiting[max_ranks] = {};  // by peer: 1 while some block has been waiting for long
};

/// Where the exchange memory of all ranks lies. Passed to kernels by value. See comm/cuda/README.md.
struct IpcView {
  static constexpr std::size_t max_ranks = HostWords::max_ranks;
  static constexpr std::uint32_t max_blocks = 64;

  float* slots[max_ranks] = {};       // of a rank: [max_blocks, 2, slot_floats]; block b uses its own two alone
  Arrival* arrivals[max_ranks] = {};  // in the memory of a rank: [max_blocks, max_ranks], by block and writer
  std::uint32_t* epochs = nullptr;    // of this rank: [max_blocks]
  HostWords* words = nullptr;         // of this rank
  std::uint32_t rank = 0;
  std::uint32_t size = 1;
  std::uint32_t num_blocks = 1;   // the most of a kernel: all of them run at the same time
  std::uint32_t slot_floats = 0;  // a multiple of 4
};

}  // namespace lockstep::comm::cuda
