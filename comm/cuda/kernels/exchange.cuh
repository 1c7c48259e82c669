#pragma once

#include "comm/cuda/ipc_view.h"
#include "device/cuda/kernels/portable.h"

/// The rounds in which the blocks with one number, one on each rank, exchange their slots. See comm/cuda/README.md.
namespace lockstep::comm::cuda {

using device::cuda::load_acquire_system;
using device::cuda::store_release_system;

__device__ inline float* slot_of(const IpcView& view, unsigned rank, unsigned epoch) {
  return view.slots[rank] + (static_cast<std::size_t>(blockIdx.x) * 2 + (epoch & 1)) * view.slot_floats;
}

__device__ inline Arrival* arrival_of(const IpcView& view, unsigned in_memory_of, unsigned writer) {
  return view.arrivals[in_memory_of] + static_cast<std::size_t>(blockIdx.x) * IpcView::max_ranks + writer;
}

/// Spins until the peer's block has published `epoch`. False if the host has given up, here or there.
__device__ inline bool wait_for(const IpcView& view, unsigned peer, unsigned epoch) {
  constexpr unsigned loads_between_looks = 256;  // at host memory, behind a slow bus
  const Arrival* arrival = arrival_of(view, view.rank, peer);
  unsigned loads = 0;
  while (static_cast<int>(load_acquire_system(&arrival->epoch) - epoch) < 0) {
    if (++loads % loads_between_looks != 0) continue;
    if (load_acquire_system(&view.words->abort) != 0) return false;
    store_release_system(&view.words->waiting[peer], 1);
  }
  if (loads >= loads_between_looks) store_release_system(&view.words->waiting[peer], 0);
  return true;
}

/// Ends a round: what this block has written to its slot of `epoch` becomes visible to its peers, and theirs to it. Called by all threads.
/// `failed` is in shared memory and false before the first round. `digest`: of the call, the same on all ranks or it fails.
/// @return false if the kernel has to leave; the same for all threads.
__device__ inline bool exchange(const IpcView& view, unsigned epoch, unsigned digest, unsigned& failed) {
  __syncthreads();  // all of the slot is written; all of the previous round is read
  const unsigned peer = threadIdx.x;
  if (peer < view.size && peer != view.rank) {
    Arrival* there = arrival_of(view, peer, view.rank);
    there->digests[epoch & 1] = digest;
    store_release_system(&there->epoch, epoch);
    if (!wait_for(view, peer, epoch)) {
      atomicExch(&failed, 1u);  // several threads may find fault
    } else if (arrival_of(view, view.rank, peer)->digests[epoch & 1] != digest) {
      store_release_system(&view.words->mismatch, peer + 1);
      store_release_system(&view.words->abort, 1);
      atomicExch(&failed, 1u);  // several threads may find fault
    }
  }
  __syncthreads();
  return failed == 0;
}

}  // namespace lockstep::comm::cuda
