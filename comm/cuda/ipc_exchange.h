#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <cuda_runtime.h>

#include "comm/communicator.h"
#include "comm/cuda/ipc_view.h"
#include "comm/cuda/rank_card.h"
#include "device/cuda/memory.h"

namespace lockstep::comm::cuda {

/// The exchange memory of this rank, and that of its peers as this rank's GPU sees it: through CUDA IPC, or by plain pointers where peers
/// are threads of this process (which share the ownership, so that no thread frees what a peer's kernel still reads).
class IpcExchange {
 public:
  /// Collective. `words` is in pinned memory. @throws CommError, device::cuda::CudaError where there is no memory.
  IpcExchange(Communicator& host, cudaStream_t stream, std::span<const RankCard> cards, std::size_t slot_bytes, HostWords* words);
  ~IpcExchange();
  IpcExchange(const IpcExchange&) = delete;
  IpcExchange& operator=(const IpcExchange&) = delete;

  /// Why some rank cannot map the memory of another, the same text on every rank; empty if all can. Nothing else may be used if not.
  const std::string& error() const { return error_; }
  const IpcView& view() const { return view_; }
  /// Lets go of the peers' memory. They may free it when every rank has done so.
  void close();

 private:
  struct Offer;

  void allocate(cudaStream_t stream);
  Offer make_offer(std::span<const RankCard> cards);
  std::string map(int peer, const Offer& offer, std::span<const RankCard> cards);
  void point_view_at(int peer, std::byte* memory);

  int rank_;
  int size_;
  IpcView view_;
  std::shared_ptr<device::cuda::DeviceMemory> memory_;
  std::vector<std::shared_ptr<device::cuda::DeviceMemory>> shared_;  // of peers in this process
  std::vector<void*> opened_;
  std::string error_;
};

}  // namespace lockstep::comm::cuda
