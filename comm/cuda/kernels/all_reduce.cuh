#pragma once

#include "comm/cuda/kernels/exchange.cuh"
#include "comm/cuda/kernels/tree.cuh"

/// All-reduce over peers whose memory is mapped. R: roots of all ranks, r: of this rank, N: ranks.
namespace lockstep::comm::cuda {

constexpr unsigned reduce_threads = 256;

/// One all_reduce: the roots of this rank are in `values` [roots, count], the sum goes to its first `count`.
struct Reduction {
  float* values = nullptr;
  std::size_t count = 0;
  std::size_t columns_per_block = 0;  // a multiple of 4: block b works on [b, b + 1) times that
  std::uint32_t num_roots = 0;        // of this rank
};

/// What a block goes through piece by piece: as many columns as its slots have room for, the same on all ranks.
struct Pieces {
  std::size_t end;
  std::size_t longest;
  __device__ Pieces(const Reduction& reduction, std::size_t begin, std::size_t room)
      : end(min(reduction.count, begin + reduction.columns_per_block)), longest(room / quad * quad) {}
  __device__ std::size_t length(std::size_t at) const { return min(longest, end - at); }
};

__device__ inline std::size_t whole_quads(std::size_t columns) { return (columns + quad - 1) / quad * quad; }

/// Copies columns [at, at + length) of this rank's roots to `slot` [roots, whole_quads(length)].
__device__ inline void fill_slot(const Reduction& reduction, std::size_t at, std::size_t length, float* slot) {
  const bool wide = is_wide(reduction.values, reduction.count) && at % quad == 0;
  const std::size_t stride = whole_quads(length);
  for (unsigned root = 0; root < reduction.num_roots; ++root) {
    const float* from = reduction.values + root * reduction.count + at;
    for (std::size_t i = threadIdx.x * quad; i < length; i += std::size_t{blockDim.x} * quad)
      store_16(slot + root * stride + i, as_bits(load_quad(from + i, length - i, wide)));
  }
}

/// One shot: every rank reads all roots and adds up all columns. One round a piece. Bytes: 8 r count within the GPU, 4 (R - r) count from
/// peers, 4 count written. Additions: (R - 1) count. Dynamic shared memory: (program.depth - 1) * 16 bytes a thread.
__global__ void __launch_bounds__(reduce_threads, 1)
    one_shot_kernel(const __grid_constant__ IpcView view, const __grid_constant__ TreeProgram program, Reduction reduction) {
  LOCKSTEP_SHARED(unsigned, failed);
  LOCKSTEP_DYNAMIC_SHARED(float4, stacks);
  if (threadIdx.x == 0) failed = 0;
  const bool wide = is_wide(reduction.values, reduction.count);
  unsigned epoch = view.epochs[blockIdx.x];
  const std::size_t begin = blockIdx.x * reduction.columns_per_block;
  const Pieces pieces(reduction, begin, view.slot_floats / program.max_roots_of_a_rank);
  for (std::size_t at = begin; at < pieces.end; at += pieces.longest) {
    const std::size_t length = pieces.length(at);
    ++epoch;
    fill_slot(reduction, at, length, slot_of(view, view.rank, epoch));
    if (!exchange(view, epoch, program.digest ^ static_cast<unsigned>(reduction.count), failed)) return;
    const std::size_t stride = whole_quads(length);
    for (std::size_t i = threadIdx.x * quad; i < length; i += std::size_t{blockDim.x} * quad) {
      const auto load = [&](TreeProgram::Step step) {
        return as_floats(load_16(slot_of(view, step.rank, epoch) + step.root * stride + i));
      };
      store_quad(reduction.values + at + i, tree_sum(program, stacks + threadIdx.x, blockDim.x, load), length - i, wide);
    }
  }
  if (threadIdx.x == 0 && begin < pieces.end) view.epochs[blockIdx.x] = epoch;
}

/// Two shots: each rank adds up its slice of every piece, then all take the finished slices. Two rounds a piece. Bytes: 8 r count within
/// the GPU, 4 (R - r) count / N + 4 count (N - 1) / N from peers, 4 count written. Additions: (R - 1) count / N.
__global__ void __launch_bounds__(reduce_threads, 1)
    two_shot_kernel(const __grid_constant__ IpcView view, const __grid_constant__ TreeProgram program, Reduction reduction) {
  LOCKSTEP_SHARED(unsigned, failed);
  LOCKSTEP_DYNAMIC_SHARED(float4, stacks);
  if (threadIdx.x == 0) failed = 0;
  const bool wide = is_wide(reduction.values, reduction.count);
  const unsigned digest = ~(program.digest ^ static_cast<unsigned>(reduction.count));
  const std::size_t thread_begin = threadIdx.x * quad, step_size = std::size_t{blockDim.x} * quad;
  unsigned epoch = view.epochs[blockIdx.x];
  const std::size_t begin = blockIdx.x * reduction.columns_per_block;
  const Pieces pieces(reduction, begin, view.slot_floats / program.max_roots_of_a_rank);
  for (std::size_t at = begin; at < pieces.end; at += pieces.longest) {
    const std::size_t length = pieces.length(at), stride = whole_quads(length);
    const std::size_t slice = whole_quads((length + view.size - 1) / view.size);
    const auto slice_begin = [&](unsigned rank) { return min(length, rank * slice); };
    ++epoch;
    fill_slot(reduction, at, length, slot_of(view, view.rank, epoch));
    if (!exchange(view, epoch, digest, failed)) return;
    for (std::size_t i = slice_begin(view.rank) + thread_begin; i < slice_begin(view.rank + 1); i += step_size) {
      const auto load = [&](TreeProgram::Step step) {
        return as_floats(load_16(slot_of(view, step.rank, epoch) + step.root * stride + i));
      };
      store_16(slot_of(view, view.rank, epoch + 1) + i, as_bits(tree_sum(program, stacks + threadIdx.x, blockDim.x, load)));
    }
    ++epoch;
    if (!exchange(view, epoch, digest, failed)) return;
    for (unsigned owner = 0; owner < view.size; ++owner) {
      const float* finished = slot_of(view, owner, epoch);
      for (std::size_t i = slice_begin(owner) + thread_begin; i < slice_begin(owner + 1); i += step_size)
        store_quad(reduction.values + at + i, as_floats(load_16(finished + i)), length - i, wide);
    }
  }
  if (threadIdx.x == 0 && begin < pieces.end) view.epochs[blockIdx.x] = epoch;
}

/// Where the roots of one slice lie after NCCL has brought them.
struct GatheredRoots {
  const float* own = nullptr;  // this rank's, [roots, own_stride]
  std::size_t own_stride = 0;
  const float* others = nullptr;  // of all ranks, [ranks, roots_per_rank, stride]; what stands in the place of this rank is not read
  std::size_t stride = 0;
  std::uint32_t roots_per_rank = 1;
  std::uint32_t rank = 0;
};

/// out[i] = the tree's sum, i < count. `out` may be the first of this rank's roots. Bytes: 4 R count read, 4 count written. Additions:
/// (R - 1) count.
__global__ void __launch_bounds__(reduce_threads, 1)
    sum_kernel(const __grid_constant__ TreeProgram program, GatheredRoots roots, float* out, std::size_t count) {
  LOCKSTEP_DYNAMIC_SHARED(float4, stacks);
  const bool own_wide = is_wide(roots.own, roots.own_stride), wide = is_wide(roots.others, roots.stride), out_wide = is_wide(out, 0);
  const std::size_t step_size = std::size_t{gridDim.x} * blockDim.x * quad;
  for (std::size_t i = (std::size_t{blockIdx.x} * blockDim.x + threadIdx.x) * quad; i < count; i += step_size) {
    const auto load = [&](TreeProgram::Step step) {
      if (step.rank == roots.rank) return load_quad(roots.own + step.root * roots.own_stride + i, count - i, own_wide);
      const std::size_t row = std::size_t{step.rank} * roots.roots_per_rank + step.root;
      return load_quad(roots.others + row * roots.stride + i, count - i, wide);
    };
    store_quad(out + i, tree_sum(program, stacks + threadIdx.x, blockDim.x, load), count - i, out_wide);
  }
}

}  // namespace lockstep::comm::cuda
