#pragma once

#include "device/cuda/kernels/math.cuh"

/// Kernels on rows of activations. Thread t works on columns 4t .. 4t+3 and then every 4 * kRowThreads further on, with 16-byte accesses
/// where all rows are aligned and one by one where not: which of the two changes no bit.
namespace lockstep::device::cuda {

constexpr unsigned kRowThreads = 256;
constexpr unsigned kRowStep = 4 * kRowThreads;  // columns of a block at a time

template <class Element>
struct ConstRows {
  const Element* data;
  std::size_t stride;
  __device__ const Element* row(std::size_t i) const { return data + i * stride; }
};
template <class Element>
struct MutableRows {
  Element* data;
  std::size_t stride;
  __device__ Element* row(std::size_t i) const { return data + i * stride; }
};

/// Columns [at, at + 4) of a row; +0 behind its end.
__device__ inline void load_four(const float* row, unsigned at, unsigned columns, bool aligned, float (&v)[4]) {
  if (aligned) {
    const uint4 four = load_16(row + at);
    v[0] = __uint_as_float(four.x);
    v[1] = __uint_as_float(four.y);
    v[2] = __uint_as_float(four.z);
    v[3] = __uint_as_float(four.w);
    return;
  }
  for (unsigned i = 0; i < 4; ++i) v[i] = at + i < columns ? row[at + i] : 0.0f;
}

__device__ inline void store_aligned(float* to, const float (&v)[4]) {
  store_16(to, make_uint4(__float_as_uint(v[0]), __float_as_uint(v[1]), __float_as_uint(v[2]), __float_as_uint(v[3])));
}
template <class Element>
__device__ inline void store_aligned(Element* to, const float (&v)[4]) {
  *reinterpret_cast<uint2*>(to) = make_uint2(pack_two<Element>(v[0], v[1]), pack_two<Element>(v[2], v[3]));
}

template <class Element>
__device__ inline void store_four(Element* row, unsigned at, unsigned columns, bool aligned, const float (&v)[4]) {
  if (aligned) return store_aligned(row + at, v);
  for (unsigned i = 0; i < 4; ++i) {
    if (at + i < columns) row[at + i] = from_float<Element>(v[i]);
  }
}

/// x += d + bias, or x += d.
__device__ inline void add_to(const float (&d)[4], const float* bias, unsigned at, unsigned columns, bool aligned, float (&x)[4]) {
  float b[4];
  if (bias != nullptr) load_four(bias, at, columns, aligned, b);
  for (unsigned i = 0; i < 4; ++i) x[i] = x[i] + (bias != nullptr ? d[i] + b[i] : d[i]);
}

/// x + (delta + bias), or x + delta.
__device__ inline void add_four(const float* delta, const float* bias, unsigned at, unsigned columns, bool aligned, float (&x)[4]) {
  float d[4];
  load_four(delta, at, columns, aligned, d);
  add_to(d, bias, at, columns, aligned, x);
}

/// A sum over a row that a block goes through in pieces of kRowStep columns: of the numbers, or of their squares. There are two orders,
/// chosen by the type of the output alone: that of docs/numerics.md N3, for fp32; and for 16-bit outputs a wider one: a chain for each
/// thread, then its warp's tree (lanes apart 16, 8, 4, 2, 1), then the warps' sums ascending.
enum class SumOf : unsigned char { kNumbers, kSquares };

template <SumOf kOf>
__device__ inline float add_term(float sum, float v) {
  return kOf == SumOf::kSquares ? fmaf(v, v, sum) : sum + v;
}

template <SumOf kOf, class Out>
class RowSum {
 public:
  /// `v` behind the end of the row is +0, which changes no sum that began with +0.
  __device__ void take(const float (&v)[4], unsigned, unsigned) {
    for (unsigned i = 0; i < 4; ++i) sum_ = add_term<kOf>(sum_, v[i]);
  }
  __device__ float finish() const {
    LOCKSTEP_SHARED(float[kRowThreads / 32], warp_sums);
    float sum = sum_;
    for (int apart = 16; apart > 0; apart /= 2) sum = sum + __shfl_xor_sync(0xFFFFFFFFu, sum, apart);
    if (threadIdx.x % 32 == 0) warp_sums[threadIdx.x / 32] = sum;
    __syncthreads();
    sum = warp_sums[0];
    for (unsigned i = 1; i < kRowThreads / 32; ++i) sum = sum + warp_sums[i];
    return sum;
  }

 private:
  float sum_ = 0.0f;
};

/// N3: 16 lanes (column mod 16), each a chain ascending. The chains are serial, so threads 0 to 15 follow them in shared memory, which the
/// block fills.
template <SumOf kOf>
class RowSum<kOf, float> {
 public:
  __device__ void take(const float (&v)[4], unsigned at, unsigned columns) {
    LOCKSTEP_SHARED(float[kRowStep], piece);
    __syncthreads();  // the previous piece is done with
    store_aligned(piece + 4 * threadIdx.x, v);
    __syncthreads();
    if (threadIdx.x >= 16) return;
    const unsigned first = at - 4 * threadIdx.x, count = min(columns - first, kRowStep);
    for (unsigned i = threadIdx.x; i < count; i += 16) sum_ = add_term<kOf>(sum_, piece[i]);
  }
  __device__ float finish() const {
    LOCKSTEP_SHARED(float, total);
    float sum = sum_;
    if (threadIdx.x < 16) {
      for (unsigned apart = 8; apart > 0; apart /= 2) sum = sum + __shfl_down_sync(0x0000FFFFu, sum, apart, 16);
      if (threadIdx.x == 0) total = sum;
    }
    __syncthreads();
    return total;
  }

 private:
  float sum_ = 0.0f;
};

struct NormArguments {
  MutableRows<float> x;
  ConstRows<float> delta;   // null: only the norm, x is not written
  const float* delta_bias;  // may be null
  const float* weight;      // null: ones
  const float* bias;        // null: zeros
  float eps;
  unsigned columns;
  std::uint64_t aligned;  // 0 or 1. As wide as a pointer: without padding no word happens to look like an address
};

/// x += delta (+ bias) where there is a delta; returns the sum of the sums, or of their squares.
template <SumOf kOf, class Out>
__device__ inline float add_and_sum_row(const NormArguments& arguments, float* x, const float* delta) {
  const unsigned columns = arguments.columns;
  const bool aligned = arguments.aligned;
  RowSum<kOf, Out> sums;
  for (unsigned piece = 0; piece < columns; piece += kRowStep) {  // all threads go round as often: take() has barriers
    const unsigned at = piece + 4 * threadIdx.x;
    float v[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    if (at < columns) {
      load_four(x, at, columns, aligned, v);
      if (delta != nullptr) {
        add_four(delta, arguments.delta_bias, at, columns, aligned, v);
        store_four(x, at, columns, aligned, v);
      }
    }
    sums.take(v, at, columns);
  }
  return sums.finish();
}

/// The sum of (x - mean)^2.
template <class Out>
__device__ inline float sum_deviations(const float* x, float mean, unsigned columns, bool aligned) {
  RowSum<SumOf::kSquares, Out> squares;
  for (unsigned piece = 0; piece < columns; piece += kRowStep) {
    const unsigned at = piece + 4 * threadIdx.x;
    float v[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    if (at < columns) {
      load_four(x, at, columns, aligned, v);
      for (unsigned i = 0; i < 4; ++i) v[i] = at + i < columns ? v[i] - mean : 0.0f;
    }
    squares.take(v, at, columns);
  }
  return squares.finish();
}

/// What a block does to a row: x += delta (+ bias) where there is a delta, out = norm(x).
template <Norm::Kind kKind, class Out>
__device__ inline void norm_row(const NormArguments& arguments, float* x, const float* delta, Out* out) {
  constexpr bool kCentred = kKind == Norm::Kind::kLayer;
  const unsigned columns = arguments.columns;
  const bool aligned = arguments.aligned;
  const float count = static_cast<float>(columns);
  float mean = 0.0f, square;
  if constexpr (kCentred) {
    mean = add_and_sum_row<SumOf::kNumbers, Out>(arguments, x, delta) / count;
    square = sum_deviations<Out>(x, mean, columns, aligned) / count;
  } else {
    square = add_and_sum_row<SumOf::kSquares, Out>(arguments, x, delta) / count;
  }
  const float inverse = 1.0f / sqrtf(square + arguments.eps);
  for (unsigned at = 4 * threadIdx.x; at < columns; at += kRowStep) {
    float v[4], w[4], b[4];
    load_four(x, at, columns, aligned, v);
    if (arguments.weight != nullptr) load_four(arguments.weight, at, columns, aligned, w);
    if (kCentred && arguments.bias != nullptr) load_four(arguments.bias, at, columns, aligned, b);
    for (unsigned i = 0; i < 4; ++i) {
      if constexpr (kCentred) v[i] = v[i] - mean;
      v[i] = v[i] * inverse;
      if (arguments.weight != nullptr) v[i] = v[i] * w[i];
      if (kCentred && arguments.bias != nullptr) v[i] = v[i] + b[i];
    }
    store_four(out, at, columns, aligned, v);
  }
}

/// A block a row. Bytes: 4 n read of x, n of weight (and bias) and out (fp32 weight), and with a delta 8 n more; x is read again from L1 or
/// L2. Operations: 4 n (kLayer: 8 n), with a delta n or 2 n more.
template <Norm::Kind kKind, class Out>
__global__ void __launch_bounds__(kRowThreads) norm_rows(NormArguments arguments, MutableRows<Out> outputs) {
  const float* delta = arguments.delta.data == nullptr ? nullptr : arguments.delta.row(blockIdx.x);
  norm_row<kKind>(arguments, arguments.x.row(blockIdx.x), delta, outputs.row(blockIdx.x));
}

/// Grid (rows, pieces of kRowStep columns). x += delta (+ bias). Bytes: 12 n a row. Operations: n, or 2 n.
template <class Float>
__global__ void __launch_bounds__(kRowThreads)
    add_rows(MutableRows<Float> x, ConstRows<Float> delta, const Float* bias, unsigned columns, bool aligned) {
  const unsigned at = blockIdx.y * kRowStep + 4 * threadIdx.x;
  if (at >= columns) return;
  float v[4];
  load_four(x.row(blockIdx.x), at, columns, aligned, v);
  add_four(delta.row(blockIdx.x), bias, at, columns, aligned, v);
  store_four(x.row(blockIdx.x), at, columns, aligned, v);
}

/// Grid (rows, pieces). out = function(gate) * up, both with their limits (see Gating), or function(gate). Bytes: 8 n, or 4 n, + the size
/// of n outputs a row. Operations: about 22 n; kGelu 45 n.
template <Nonlinearity kFunction, class Out>
__global__ void __launch_bounds__(kRowThreads) activate_rows(ConstRows<float> gate_up, bool has_up, float limit, float up_offset,
                                                             unsigned columns, bool aligned, MutableRows<Out> outputs) {
  const unsigned at = blockIdx.y * kRowStep + 4 * threadIdx.x;
  if (at >= columns) return;
  const float* row = gate_up.row(blockIdx.x);
  float gate[4], up[4];
  load_four(row, at, columns, aligned, gate);
  if (has_up) load_four(row + columns, at, columns, aligned, up);
  const bool limited = has_up && (limit < INFINITY || up_offset != 0.0f);
  for (unsigned i = 0; i < 4 && limited; ++i) {
    gate[i] = limit < gate[i] ? limit : gate[i];  // NaN stays
    up[i] = limit < up[i] ? limit : up[i];
    up[i] = (-limit > up[i] ? -limit : up[i]) + up_offset;
  }
  for (unsigned i = 0; i < 4; ++i) {
    const float activated = activation_of<kFunction>(gate[i]);
    gate[i] = has_up ? activated * up[i] : activated;
  }
  store_four(outputs.row(blockIdx.x), at, columns, aligned, gate);
}

/// Grid (rows, pieces). out row i = from row rows[i], or row i where `rows` is null, rounded to the type of out. Bytes: 4 n + the size of n
/// outputs a row.
template <class Out>
__global__ void __launch_bounds__(kRowThreads)
    copy_rows(ConstRows<float> from, const std::uint32_t* rows, unsigned columns, bool aligned, MutableRows<Out> outputs) {
  const unsigned at = blockIdx.y * kRowStep + 4 * threadIdx.x;
  if (at >= columns) return;
  float v[4];
  load_four(from.row(rows == nullptr ? blockIdx.x : rows[blockIdx.x]), at, columns, aligned, v);
  store_four(outputs.row(blockIdx.x), at, columns, aligned, v);
}

}  // namespace lockstep::device::cuda
