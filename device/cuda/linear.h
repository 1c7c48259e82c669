#pragma once

#include <memory>

#include "device/cpu/thread_pool.h"
#include "device/cuda/memory.h"
#include "device/cuda/slice_plan.h"
#include "device/cuda/views.h"

/// Weights in device memory, and the products with them.
namespace lockstep::device::cuda {

/// How activations must stand for a product with such a weight: fp32 for F32, fp16 for F16, bf16 for BF16 and the block-quantised types.
Activation activation_for(DType weight);

/// Whether a weight is also kept as it is, where it is F16 or BF16: for `--reduction fast`.
enum class PlainRows : bool { kDrop, kKeep };

/// A weight matrix, repacked at load for the kernels: F32 for the exact family (fused multiply-add, the bits of the CPU device); F16 and
/// BF16 for mma; Q8_0, Q4_0 and Q4_1 as stored (weight-only), expanded to bf16 in the kernel.
class CudaWeight : public Weight {
 public:
  const WeightSpec& spec() const override { return spec_; }
  std::size_t size_bytes() const override { return memory_.size_bytes() + plain_.size_bytes(); }
  const void* data() const { return memory_.data(); }  // in the order of kernels/linear_layout.cuh
  /// The rows as they are, row_stride() apart, for cublas_linear.h; null unless they were kept.
  const void* plain() const { return plain_.data(); }
  const SlicePlan& plan() const { return plan_; }
  const Slice* slices() const { return slices_.as<Slice>(); }  // plan().slices, in device memory

 protected:
  friend std::unique_ptr<CudaWeight> load_cuda_weight(WeightSpec, const ReadRows&, PlainRows, cpu::ThreadPool*);
  WeightSpec spec_;
  SlicePlan plan_;
  DeviceMemory memory_;
  DeviceMemory plain_;
  DeviceMemory slices_;
};

/// Reads, repacks and uploads in pieces, so that the host needs little memory beside; complete on return.
/// @param threads those that read and repack; null: the calling one alone
/// @throws what `read` throws; std::invalid_argument for leaves that make no sense; CudaError.
std::unique_ptr<CudaWeight> load_cuda_weight(WeightSpec spec, const ReadRows& read, PlainRows plain_rows = PlainRows::kDrop,
                                             cpu::ThreadPool* threads = nullptr);

/// How a product is cut into blocks: by which kernel, and how many tokens a block has. No bit depends on it.
enum class Tile : std::uint8_t { kExact4, kExact64, kDecode8, kDecode16, kDecode32, kPrefill32, kPrefill64 };
std::uint32_t tokens_of(Tile tile);

/// The tile for products of `num_tokens` tokens with each of `num_weights` weights of one shape in one launch: the large one where it fills
/// half of the GPU, else a small one: more blocks, each with its columns spread over 8 warps.
Tile choose_tile(const Launch& launch, const CudaWeight& weight, std::size_t num_tokens, std::size_t num_weights = 1);

/// See Device::linear: out [num_roots x num_rows] rows of out.stride floats, the product in columns [out_column, out_column + rows of W).
/// @throws std::invalid_argument for matrices that do not fit the weight.
void linear(const Launch& launch, Rows in, std::size_t num_rows, const CudaWeight& weight, const float* bias, Rows out,
            std::size_t out_column);

/// The same for weights like `first`, in one launch: `grouping`, in device memory, says which rows of `out` are products with which weight.
/// Its `num_tiles` tiles have tokens_of(tile) rows at most; `num_rows` is that of a root in `out`. The caller checks that the weights are
/// alike.
/// @throws std::invalid_argument for matrices that do not fit them.
void grouped_linear(const Launch& launch, Rows in, std::size_t num_rows, const CudaWeight& first, const Grouping& grouping, Tile tile,
                    std::size_t num_tiles, Rows out);

/// See Device::embed. `table` may be null: all rows are +0. @throws std::invalid_argument for a table of several leaves, which has pads.
void embed(const Launch& launch, const CudaWeight* table, std::int32_t first_id, const StepView& step, Rows out);

/// See Device::add_positions.
void add_positions(const Launch& launch, const CudaWeight& table, std::size_t offset, const StepView& step, Rows x);

}  // namespace lockstep::device::cuda
