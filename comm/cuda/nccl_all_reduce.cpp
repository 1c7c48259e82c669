#include "comm/cuda/nccl_all_reduce.h"

#include <stdexcept>

#include "device/cuda/error.h"

namespace lockstep::comm::cuda {
namespace {

using device::cuda::check;

constexpr std::size_t most_buffer_floats = std::size_t{16} << 20;  // 64 MiB: a piece takes far longer than a launch
constexpr std::size_t quad = 4;

std::size_t whole_quads(std::size_t columns) { return (columns + quad - 1) / quad * quad; }
std::size_t divided_up(std::size_t a, std::size_t b) { return (a + b - 1) / b; }

std::size_t buffer_floats(std::size_t ranks, std::size_t max_floats) {
  const std::size_t least = TreeProgram::max_roots * ranks * quad;
  return std::clamp(max_floats == 0 ? most_buffer_floats : 2 * whole_quads(max_floats), least, std::max(least, most_buffer_floats));
}

std::size_t most_roots(const TreeSum& tree) { return *std::max_element(tree.roots_per_rank.begin(), tree.roots_per_rank.end()); }

/// The first error of several calls.
class Result {
 public:
  void operator+=(ncclResult_t result) {
    if (result_ == ncclSuccess || result_ == ncclInProgress) result_ = result;
  }
  ncclResult_t get() const { return result_; }

 private:
  ncclResult_t result_ = ncclSuccess;
};

}  // namespace

NcclAllReduce::NcclAllReduce(Communicator& host, std::chrono::milliseconds deadline, std::size_t max_floats)
    : rank_(host.rank()),
      ranks_(static_cast<std::size_t>(host.size())),
      buffer_(buffer_floats(ranks_, max_floats) * sizeof(float), "the exchange through NCCL"),
      group_(host, deadline) {
  group_.register_memory(buffer_.data(), buffer_.size_bytes());
}

void NcclAllReduce::gather(const Launch& launch, const TreeProgram& program, const TreeSum& tree, float* values, std::size_t count) {
  const std::size_t pad = most_roots(tree), roots = tree.roots_per_rank[static_cast<std::size_t>(rank_)];
  const std::size_t room = buffer_.size_bytes() / sizeof(float) / (pad * ranks_) / quad * quad;  // columns of a piece
  auto* const gathered = buffer_.as<float>();
  const bool even = std::all_of(tree.roots_per_rank.begin(), tree.roots_per_rank.end(), [&](std::uint32_t each) { return each == pad; });
  for (std::size_t at = 0; at < count; at += room) {
    const std::size_t length = std::min(room, count - at);
    const bool direct = even && length == count;  // the roots stand as NCCL sends them
    const std::size_t stride = direct ? count : whole_quads(length), part = pad * stride;
    float* const mine = gathered + static_cast<std::size_t>(rank_) * part;
    for (std::size_t root = 0; !direct && root < roots; ++root) {
      check(cudaMemcpyAsync(mine + root * stride, values + root * count + at, length * sizeof(float), cudaMemcpyDeviceToDevice,
                            launch.stream),
            "copying the roots of an all_reduce");
    }
    group_.run("gathering the roots of an all_reduce",
               [&](ncclComm_t nccl) { return ncclAllGather(direct ? values : mine, gathered, part, ncclFloat32, nccl, launch.stream); });
    sum_gathered(launch, program, {rank_, values + at, count, gathered, stride, pad}, values + at, length);
  }
}

void NcclAllReduce::slices(const Launch& launch, const TreeProgram& program, const TreeSum& tree, float* values, std::size_t count) {
  const std::size_t pad = most_roots(tree);
  const std::size_t room = buffer_.size_bytes() / sizeof(float) / (pad * ranks_) / quad * quad;  // columns of a slice
  for (std::size_t at = 0; at < count;) {
    const std::size_t slice = std::min(room, whole_quads(divided_up(count - at, ranks_)));
    const Piece piece{at, std::min(count - at, slice * ranks_), slice};
    exchange_slices(launch, tree, values, count, piece);
    float* const mine = values + at + piece.begin(rank_);
    sum_gathered(launch, program, {rank_, mine, count, buffer_.as<float>(), slice, pad}, mine, piece.size(rank_));
    exchange_results(launch, values, piece);
    at += piece.length;
  }
}

/// Every root of this rank, cut in slices, to the ranks that add them up; and theirs of this rank's slice into the buffer.
void NcclAllReduce::exchange_slices(const Launch& launch, const TreeSum& tree, const float* values, std::size_t count, const Piece& piece) {
  const std::size_t pad = most_roots(tree);
  group_.run("exchanging the roots of an all_reduce", [&](ncclComm_t nccl) {
    Result result;
    for (int peer = 0; peer < static_cast<int>(ranks_); ++peer) {
      if (peer == rank_) continue;
      const float* from = values + piece.at + piece.begin(peer);
      float* to = buffer_.as<float>() + static_cast<std::size_t>(peer) * pad * piece.slice;
      for (std::uint32_t root = 0; piece.size(peer) != 0 && root < tree.roots_per_rank[static_cast<std::size_t>(rank_)]; ++root)
        result += ncclSend(from + root * count, piece.size(peer), ncclFloat32, peer, nccl, launch.stream);
      for (std::uint32_t root = 0; piece.size(rank_) != 0 && root < tree.roots_per_rank[static_cast<std::size_t>(peer)]; ++root)
        result += ncclRecv(to + root * piece.slice, piece.size(rank_), ncclFloat32, peer, nccl, launch.stream);
    }
    return result.get();
  });
}

void NcclAllReduce::exchange_results(const Launch& launch, float* values, const Piece& piece) {
  float* const mine = values + piece.at + piece.begin(rank_);
  group_.run("gathering the slices of an all_reduce", [&](ncclComm_t nccl) {
    if (piece.length == piece.slice * ranks_) return ncclAllGather(mine, values + piece.at, piece.slice, ncclFloat32, nccl, launch.stream);
    Result result;
    for (int peer = 0; peer < static_cast<int>(ranks_); ++peer) {
      if (peer == rank_) continue;
      if (piece.size(rank_) != 0) result += ncclSend(mine, piece.size(rank_), ncclFloat32, peer, nccl, launch.stream);
      if (piece.size(peer) != 0)
        result += ncclRecv(values + piece.at + piece.begin(peer), piece.size(peer), ncclFloat32, peer, nccl, launch.stream);
    }
    return result.get();
  });
}

void NcclAllReduce::fast(const Launch& launch, const TreeSum& tree, float* values, std::size_t count) {
  const std::uint32_t roots = tree.roots_per_rank[static_cast<std::size_t>(rank_)];
  if (roots == 0) check(cudaMemsetAsync(values, 0, count * sizeof(float), launch.stream), "clearing the share of an all_reduce");
  if (roots > 1) {
    TreeSum chain;
    chain.roots_per_rank = {roots};
    for (std::uint32_t root = 1; root < roots; ++root) chain.merges.push_back({0, root});
    sum_gathered(launch, make_tree_program(chain), {0, values, count, nullptr, 0, 1}, values, count);
  }
  group_.run("ncclAllReduce",
             [&](ncclComm_t nccl) { return ncclAllReduce(values, values, count, ncclFloat32, ncclSum, nccl, launch.stream); });
}

}  // namespace lockstep::comm::cuda
