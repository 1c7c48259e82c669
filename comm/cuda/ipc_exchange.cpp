#include "comm/cuda/ipc_exchange.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "comm/cuda/all_reduce.h"
#include "device/cuda/error.h"

namespace lockstep::comm::cuda {
namespace {

using device::cuda::check;
using device::cuda::DeviceMemory;

constexpr std::size_t arrivals_bytes = sizeof(Arrival) * IpcView::max_blocks * IpcView::max_ranks;
constexpr std::size_t epochs_bytes = sizeof(std::uint32_t) * IpcView::max_blocks;
constexpr std::size_t slots_offset = arrivals_bytes + epochs_bytes;
constexpr std::size_t granularity = std::size_t{2} << 20;  // smaller allocations share the block that IPC gives away with others

static_assert(slots_offset % 16 == 0);

using Text = std::array<char, 240>;

template <class T>
std::vector<T> gather_from_all(Communicator& host, const T& mine) {
  std::vector<T> all(static_cast<std::size_t>(host.size()));
  const std::vector<std::size_t> sizes(all.size(), sizeof(T));
  host.all_gather(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all)), sizes);
  return all;
}

}  // namespace

/// What a rank needs to map the memory of another.
struct IpcExchange::Offer {
  cudaIpcMemHandle_t handle{};
  Text error{};                                           // why there is no handle
  const std::shared_ptr<DeviceMemory>* memory = nullptr;  // for threads of the same process
};

IpcExchange::IpcExchange(Communicator& host, cudaStream_t stream, std::span<const RankCard> cards, std::size_t slot_bytes, HostWords* words)
    : rank_(host.rank()), size_(host.size()) {
  view_.words = words;
  view_.rank = static_cast<std::uint32_t>(rank_);
  view_.size = static_cast<std::uint32_t>(size_);
  view_.slot_floats = static_cast<std::uint32_t>(std::max(slot_bytes / sizeof(float) / 4 * 4, min_slot_floats));
  view_.num_blocks = IpcView::max_blocks;
  for (const RankCard& card : cards) view_.num_blocks = std::min(view_.num_blocks, static_cast<std::uint32_t>(card.num_multiprocessors));
  allocate(stream);

  const std::vector<Offer> offers = gather_from_all(host, make_offer(cards));
  shared_.resize(offers.size());
  for (std::size_t peer = 0; peer < offers.size(); ++peer) {
    if (cards[peer].process == cards[static_cast<std::size_t>(rank_)].process) shared_[peer] = *offers[peer].memory;
  }
  host.barrier();  // nobody gives up his memory before the threads of his process have their share in it

  Text mine{};
  for (int peer = 0; peer < size_ && mine[0] == '\0'; ++peer) {
    const std::string problem = map(peer, offers[static_cast<std::size_t>(peer)], cards);
    std::copy_n(problem.data(), std::min(problem.size(), mine.size() - 1), mine.data());
  }
  for (const Text& text : gather_from_all(host, mine)) {
    if (error_.empty()) error_ = text.data();
  }
}

IpcExchange::~IpcExchange() { close(); }

void IpcExchange::close() {
  for (void* pointer : opened_) cudaIpcCloseMemHandle(pointer);
  opened_.clear();
  shared_.clear();
}

/// Arrivals and epochs begin at 0; slots need no value.
void IpcExchange::allocate(cudaStream_t stream) {
  const std::size_t slots = std::size_t{2} * view_.num_blocks * view_.slot_floats * sizeof(float);
  const std::size_t bytes = (slots_offset + slots + granularity - 1) / granularity * granularity;
  memory_ = std::make_shared<DeviceMemory>(bytes, "the exchange between GPUs");
  check(cudaMemsetAsync(memory_->data(), 0, slots_offset, stream), "clearing the exchange between GPUs");
  check(cudaStreamSynchronize(stream), "clearing the exchange between GPUs");
  point_view_at(rank_, memory_->as<std::byte>());
  view_.epochs = reinterpret_cast<std::uint32_t*>(memory_->as<std::byte>() + arrivals_bytes);
}

IpcExchange::Offer IpcExchange::make_offer(std::span<const RankCard> cards) {
  Offer offer;
  offer.memory = &memory_;
  const std::uint64_t process = cards[static_cast<std::size_t>(rank_)].process;
  if (std::all_of(cards.begin(), cards.end(), [&](const RankCard& card) { return card.process == process; })) return offer;
  const cudaError_t code = cudaIpcGetMemHandle(&offer.handle, memory_->data());
  if (code != cudaSuccess) {
    (void)cudaGetLastError();
    std::strncpy(offer.error.data(), cudaGetErrorString(code), offer.error.size() - 1);
  }
  return offer;
}

/// @return what went wrong
std::string IpcExchange::map(int peer, const Offer& offer, std::span<const RankCard> cards) {
  if (peer == rank_) return {};
  const auto problem = [&](const std::string& what) {
    return "rank " + std::to_string(rank_) + " cannot map GPU memory of rank " + std::to_string(peer) + ": " + what;
  };
  const RankCard& mine = cards[static_cast<std::size_t>(rank_)];
  const RankCard& other = cards[static_cast<std::size_t>(peer)];
  const bool in_this_process = other.process == mine.process;
  if (in_this_process && other.ordinal != mine.ordinal) {  // a pointer is valid everywhere, but access must be allowed
    const cudaError_t code = cudaDeviceEnablePeerAccess(other.ordinal, 0);
    if (code != cudaSuccess) (void)cudaGetLastError();
    if (code != cudaSuccess && code != cudaErrorPeerAccessAlreadyEnabled) return problem(cudaGetErrorString(code));
  }
  if (in_this_process) {
    point_view_at(peer, shared_[static_cast<std::size_t>(peer)]->as<std::byte>());
    return {};
  }
  if (offer.error[0] != '\0') return problem(offer.error.data());
  void* memory = nullptr;
  const cudaError_t code = cudaIpcOpenMemHandle(&memory, offer.handle, cudaIpcMemLazyEnablePeerAccess);
  if (code != cudaSuccess) {
    (void)cudaGetLastError();
    return problem(cudaGetErrorString(code));
  }
  opened_.push_back(memory);
  point_view_at(peer, static_cast<std::byte*>(memory));
  return {};
}

void IpcExchange::point_view_at(int peer, std::byte* memory) {
  view_.arrivals[peer] = reinterpret_cast<Arrival*>(memory);
  view_.slots[peer] = reinterpret_cast<float*>(memory + slots_offset);
}

}  // namespace lockstep::comm::cuda
