#pragma once

/// The host's side of device/cuda/kernels/portable.h: what a kernel sees of the GPU, on top of the fiber executor. One kernel thread is one
/// fiber; everything that involves other threads takes the place of its call, so that errors can name it.

// CUDA's headers keep these where they are defined already; a host compiler would warn about their attributes.
#undef __host__
#define __host__
#undef __device__
#define __device__
#undef __global__
#define __global__
#undef __constant__
#define __constant__
#undef __grid_constant__
#define __grid_constant__
#undef __forceinline__
#define __forceinline__ inline
#undef __launch_bounds__
#define __launch_bounds__(...)

#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <source_location>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

// Where CUDA's headers came first they have their own.
#undef __host__
#define __host__
#undef __device__
#define __device__
#undef __global__
#define __global__
#undef __constant__
#define __constant__
#undef __grid_constant__
#define __grid_constant__
#undef __forceinline__
#define __forceinline__ inline
#undef __launch_bounds__
#define __launch_bounds__(...)
#undef __shared__
#define __shared__ use_LOCKSTEP_SHARED_instead

/// The last lane to arrive at a collective runs code for the others: to a sanitizer that would be accesses without order.
#define SIMT_UNSANITIZED __attribute__((no_sanitize("thread", "address", "undefined"), noinline))

namespace simt {

using Site = std::source_location;

template <class T>
struct Identity {
  using Type = T;
};
template <class T>
using IdentityType = typename Identity<T>::Type;

/// ------------------------------------------------------------------------------------------------------------------ threads

struct BlockIndices {
  uint3 index{};
  dim3 dimensions;
  dim3 grid;
};

struct ThreadIndices {
  uint3 index{};
  unsigned lane = 0;
  unsigned warp = 0;
  const BlockIndices* block = nullptr;
};

extern thread_local constinit ThreadIndices* current_thread;

/// Ends the kernel with an error that names the place, the kernel, the block and the thread.
[[noreturn]] void fail(Site site, const char* format, ...) __attribute__((format(printf, 2, 3)));

enum class BlockReduction { kNone, kCount, kAnd, kOr };
int block_barrier(BlockReduction reduction, int predicate, Site site);

/// What the lanes of a warp handed in, by lane; null: not in the mask.
struct Collective {
  unsigned mask = 0;
  unsigned arrived = 0;
  void (*compute)(Collective&) = nullptr;
  Site site;
  void* arguments[32] = {};
};

void sync_warp(Collective&);
/// Waits for all lanes of `mask` at this call; the last one to arrive calls `compute`.
void warp_collective(unsigned mask, void* argument, void (*compute)(Collective&), const char* what, Site site);
/// A spin that found nothing: lets the others run.
void poll();

/// ------------------------------------------------------------------------------------------------------------------ memory

void* static_shared(const void* tag, std::size_t bytes, std::size_t alignment);
void* dynamic_shared();
void copy_async(void* shared, const void* global, bool valid, Site site);
void commit_copies();
void wait_copies(int groups_left);
void load_matrices(unsigned (&r)[4], const void* row, bool transposed, Site site);
enum class Half { kBFloat16, kFloat16 };
void multiply_matrices(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1, Half type, Site site);

inline void check_alignment(const void* address, std::size_t bytes, Site site) {
  if (reinterpret_cast<std::uintptr_t>(address) % bytes != 0) [[unlikely]] {
    fail(site, "access of %zu bytes at %p, which is not aligned to them", bytes, address);
  }
}

template <class T>
T& static_shared_object(const void* tag) {
  return *static_cast<T*>(static_shared(tag, sizeof(T), alignof(T) < 16 ? 16 : alignof(T)));
}

/// ------------------------------------------------------------------------------------------------------------------ launches

struct ArgumentBytes {
  const void* bytes = nullptr;
  std::size_t size = 0;
  bool is_pointer = false;
};

struct KernelLaunch {
  dim3 grid;
  dim3 block;
  std::size_t shared_bytes = 0;
  const void* function = nullptr;
  void (*call)(const void* arguments) = nullptr;
  std::shared_ptr<const void> arguments;
};

cudaError_t enqueue_kernel(cudaStream_t stream, const KernelLaunch& launch, const std::vector<ArgumentBytes>& arguments);

template <class... Parameters>
struct BoundKernel {
  void (*kernel)(Parameters...);
  std::tuple<std::remove_cv_t<Parameters>...> arguments;
  static void call(const void* bound) {
    const auto* self = static_cast<const BoundKernel*>(bound);
    std::apply(self->kernel, self->arguments);
  }
};

/// ------------------------------------------------------------------------------------------------------------------ collectives

template <class T>
struct ShuffleArgument {
  T in;
  T out;
  int source;
};

template <class T>
SIMT_UNSANITIZED void shuffle_lanes(Collective& collective) {
  for (unsigned rest = collective.mask; rest != 0; rest &= rest - 1) {
    auto* mine = static_cast<ShuffleArgument<T>*>(collective.arguments[__builtin_ctz(rest)]);
    if ((collective.mask >> mine->source & 1) != 0) {
      mine->out = static_cast<ShuffleArgument<T>*>(collective.arguments[mine->source])->in;
    } else {  // a lane that takes no part: undefined
      auto* bytes = reinterpret_cast<unsigned char*>(&mine->out);
      for (std::size_t i = 0; i < sizeof(T); ++i) bytes[i] = 0xFF;
    }
  }
}

template <class T>
T shuffle(unsigned mask, T value, int source, const char* what, Site site) {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= 8, "CUDA shuffles 4 or 8 bytes");
  ShuffleArgument<T> argument{value, value, source};
  warp_collective(mask, &argument, &shuffle_lanes<T>, what, site);
  return argument.out;
}

enum class Vote { kBallot, kAdd, kMin, kMax, kMinSigned, kMaxSigned, kAnd, kOr, kXor };

struct VoteArgument {
  unsigned in;
  unsigned out;
};

constexpr unsigned combine(Vote vote, unsigned a, unsigned b) {
  const int signed_a = static_cast<int>(a);
  const int signed_b = static_cast<int>(b);
  switch (vote) {
    case Vote::kAdd: return a + b;
    case Vote::kMin: return a < b ? a : b;
    case Vote::kMax: return a < b ? b : a;
    case Vote::kMinSigned: return signed_a < signed_b ? a : b;
    case Vote::kMaxSigned: return signed_a < signed_b ? b : a;
    case Vote::kAnd: return a & b;
    case Vote::kXor: return a ^ b;
    case Vote::kBallot:
    case Vote::kOr: break;
  }
  return a | b;
}

template <Vote vote>
SIMT_UNSANITIZED void count_votes(Collective& collective) {
  unsigned result = 0;
  bool first = true;
  for (unsigned rest = collective.mask; rest != 0; rest &= rest - 1) {
    const int lane = __builtin_ctz(rest);
    const unsigned in = static_cast<VoteArgument*>(collective.arguments[lane])->in;
    const unsigned value = vote == Vote::kBallot ? (in != 0 ? 1u << lane : 0) : in;
    result = first ? value : combine(vote, result, value);
    first = false;
  }
  for (unsigned rest = collective.mask; rest != 0; rest &= rest - 1) {
    static_cast<VoteArgument*>(collective.arguments[__builtin_ctz(rest)])->out = result;
  }
}

template <Vote vote>
unsigned cast_vote(unsigned mask, unsigned value, const char* what, Site site) {
  VoteArgument argument{value, 0};
  warp_collective(mask, &argument, &count_votes<vote>, what, site);
  return argument.out;
}

template <class T, class Choose>
T update_atomically(T* address, Choose choose) {
  std::atomic_ref<T> object(*address);
  T old = object.load(std::memory_order_relaxed);
  while (!object.compare_exchange_weak(old, choose(old), std::memory_order_acq_rel, std::memory_order_relaxed)) {
  }
  return old;
}

inline void thread_fence() {
#if !defined(__SANITIZE_THREAD__)  // which does not know fences
  std::atomic_thread_fence(std::memory_order_seq_cst);
#endif
}

}  // namespace simt

#define LOCKSTEP_SHARED(type, name)         \
  static const char simt_tag_of_##name = 0; \
  auto& name = ::simt::static_shared_object<::simt::IdentityType<type>>(&simt_tag_of_##name)
#define LOCKSTEP_DYNAMIC_SHARED(type, name) type* name = static_cast<type*>(::simt::dynamic_shared())

#define threadIdx (::simt::current_thread->index)
#define blockIdx (::simt::current_thread->block->index)
#define blockDim (::simt::current_thread->block->dimensions)
#define gridDim (::simt::current_thread->block->grid)
constexpr int warpSize = 32;

/// ------------------------------------------------------------------------------------------------------------------ CUDA's names

inline void __syncthreads(simt::Site site = simt::Site::current()) { simt::block_barrier(simt::BlockReduction::kNone, 0, site); }
inline int __syncthreads_count(int predicate, simt::Site site = simt::Site::current()) {
  return simt::block_barrier(simt::BlockReduction::kCount, predicate, site);
}
inline int __syncthreads_and(int predicate, simt::Site site = simt::Site::current()) {
  return simt::block_barrier(simt::BlockReduction::kAnd, predicate, site);
}
inline int __syncthreads_or(int predicate, simt::Site site = simt::Site::current()) {
  return simt::block_barrier(simt::BlockReduction::kOr, predicate, site);
}

inline void __syncwarp(unsigned mask = 0xFFFFFFFFu, simt::Site site = simt::Site::current()) {
  simt::warp_collective(mask, nullptr, &simt::sync_warp, "__syncwarp", site);
}

template <class T>
T __shfl_sync(unsigned mask, T value, int source, int width = 32, simt::Site site = simt::Site::current()) {
  const int lane = static_cast<int>(simt::current_thread->lane);
  return simt::shuffle(mask, value, (lane & ~(width - 1)) | (source & (width - 1)), "__shfl_sync", site);
}

template <class T>
T __shfl_xor_sync(unsigned mask, T value, int lane_mask, int width = 32, simt::Site site = simt::Site::current()) {
  const int lane = static_cast<int>(simt::current_thread->lane);
  const int source = lane ^ lane_mask;
  const bool beyond = source >= (lane & ~(width - 1)) + width;
  return simt::shuffle(mask, value, beyond ? lane : source, "__shfl_xor_sync", site);
}

template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32, simt::Site site = simt::Site::current()) {
  const int lane = static_cast<int>(simt::current_thread->lane);
  const int source = lane + static_cast<int>(delta);
  const bool beyond = source >= (lane & ~(width - 1)) + width;
  return simt::shuffle(mask, value, beyond ? lane : source, "__shfl_down_sync", site);
}

template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32, simt::Site site = simt::Site::current()) {
  const int lane = static_cast<int>(simt::current_thread->lane);
  const int source = lane - static_cast<int>(delta);
  const bool beyond = source < (lane & ~(width - 1));
  return simt::shuffle(mask, value, beyond ? lane : source, "__shfl_up_sync", site);
}

inline unsigned __ballot_sync(unsigned mask, int predicate, simt::Site site = simt::Site::current()) {
  return simt::cast_vote<simt::Vote::kBallot>(mask, predicate != 0, "__ballot_sync", site);
}
inline int __any_sync(unsigned mask, int predicate, simt::Site site = simt::Site::current()) {
  return static_cast<int>(simt::cast_vote<simt::Vote::kOr>(mask, predicate != 0, "__any_sync", site));
}
inline int __all_sync(unsigned mask, int predicate, simt::Site site = simt::Site::current()) {
  return static_cast<int>(simt::cast_vote<simt::Vote::kAnd>(mask, predicate != 0, "__all_sync", site));
}

#define SIMT_REDUCE(name, unsigned_vote, signed_vote)                                                                   \
  inline unsigned name(unsigned mask, unsigned value, simt::Site site = simt::Site::current()) {                        \
    return simt::cast_vote<simt::Vote::unsigned_vote>(mask, value, #name, site);                                        \
  }                                                                                                                     \
  inline int name(unsigned mask, int value, simt::Site site = simt::Site::current()) {                                  \
    return static_cast<int>(simt::cast_vote<simt::Vote::signed_vote>(mask, static_cast<unsigned>(value), #name, site)); \
  }
SIMT_REDUCE(__reduce_add_sync, kAdd, kAdd)
SIMT_REDUCE(__reduce_min_sync, kMin, kMinSigned)
SIMT_REDUCE(__reduce_max_sync, kMax, kMaxSigned)
SIMT_REDUCE(__reduce_and_sync, kAnd, kAnd)
SIMT_REDUCE(__reduce_or_sync, kOr, kOr)
SIMT_REDUCE(__reduce_xor_sync, kXor, kXor)
#undef SIMT_REDUCE

template <class T>
T atomicAdd(T* address, simt::IdentityType<T> value) {
  return simt::update_atomically(address, [=](T old) { return old + value; });
}
template <class T>
T atomicSub(T* address, simt::IdentityType<T> value) {
  return simt::update_atomically(address, [=](T old) { return old - value; });
}
template <class T>
T atomicMax(T* address, simt::IdentityType<T> value) {
  return simt::update_atomically(address, [=](T old) { return old < value ? value : old; });
}
template <class T>
T atomicMin(T* address, simt::IdentityType<T> value) {
  return simt::update_atomically(address, [=](T old) { return value < old ? value : old; });
}
template <class T>
T atomicAnd(T* address, simt::IdentityType<T> value) {
  return simt::update_atomically(address, [=](T old) { return old & value; });
}
template <class T>
T atomicOr(T* address, simt::IdentityType<T> value) {
  return simt::update_atomically(address, [=](T old) { return old | value; });
}
template <class T>
T atomicExch(T* address, simt::IdentityType<T> value) {
  return simt::update_atomically(address, [=](T) { return value; });
}
template <class T>
T atomicCAS(T* address, simt::IdentityType<T> expected, simt::IdentityType<T> value) {
  return simt::update_atomically(address, [=](T old) { return old == expected ? value : old; });
}
inline unsigned atomicInc(unsigned* address, unsigned limit) {
  return simt::update_atomically(address, [=](unsigned old) { return old >= limit ? 0 : old + 1; });
}

inline void __threadfence() { simt::thread_fence(); }
inline void __threadfence_block() { simt::thread_fence(); }
inline void __threadfence_system() { simt::thread_fence(); }
inline void __nanosleep(unsigned) { simt::poll(); }

inline unsigned __float_as_uint(float value) { return __builtin_bit_cast(unsigned, value); }
inline int __float_as_int(float value) { return __builtin_bit_cast(int, value); }
inline float __uint_as_float(unsigned value) { return __builtin_bit_cast(float, value); }
inline float __int_as_float(int value) { return __builtin_bit_cast(float, value); }
inline long long __double_as_longlong(double value) { return __builtin_bit_cast(long long, value); }
inline double __longlong_as_double(long long value) { return __builtin_bit_cast(double, value); }
inline int __popc(unsigned value) { return __builtin_popcount(value); }
inline int __popcll(unsigned long long value) { return __builtin_popcountll(value); }
inline int __clz(int value) { return value == 0 ? 32 : __builtin_clz(static_cast<unsigned>(value)); }
inline int __ffs(int value) { return __builtin_ffs(value); }
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fsqrt_rn(float a) { return std::sqrt(a); }
inline int __float2int_rn(float value) { return static_cast<int>(std::nearbyint(value)); }
inline unsigned __byte_perm(unsigned low, unsigned high, unsigned selector) {
  const std::uint64_t bytes = static_cast<std::uint64_t>(high) << 32 | low;
  unsigned result = 0;
  for (int i = 0; i < 4; ++i) {
    const unsigned pick = selector >> (4 * i) & 15;
    unsigned byte = static_cast<unsigned>(bytes >> (8 * (pick & 7))) & 0xFF;
    if ((pick & 8) != 0) byte = (byte & 0x80) != 0 ? 0xFF : 0;  // its sign
    result |= byte << (8 * i);
  }
  return result;
}
template <class T>
T __ldg(const T* address) {
  return *address;
}
template <class T>
T __ldcs(const T* address) {
  return *address;
}

#define SIMT_MIN_MAX(type)                                  \
  inline type min(type a, type b) { return b < a ? b : a; } \
  inline type max(type a, type b) { return a < b ? b : a; }
SIMT_MIN_MAX(int)
SIMT_MIN_MAX(unsigned)
SIMT_MIN_MAX(long)
SIMT_MIN_MAX(unsigned long)
SIMT_MIN_MAX(long long)
SIMT_MIN_MAX(unsigned long long)
inline float min(float a, float b) { return std::fmin(a, b); }
inline float max(float a, float b) { return std::fmax(a, b); }
#undef SIMT_MIN_MAX

/// ------------------------------------------------------------------------------------------------------------------ our names

namespace lockstep::device::cuda {

template <class... Parameters, class... Arguments>
cudaError_t launch(void (*kernel)(Parameters...), dim3 grid, dim3 block, std::size_t shared_bytes, cudaStream_t stream,
                   Arguments&&... arguments) {
  static_assert((std::is_trivially_copyable_v<std::remove_cv_t<Parameters>> && ...), "arguments of kernels are copied as bytes");
  const auto* function = reinterpret_cast<const void*>(kernel);
  if (shared_bytes > 48 * 1024) {
    const cudaError_t code = cudaFuncSetAttribute(function, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared_bytes));
    if (code != cudaSuccess) return code;
  }
  using Bound = ::simt::BoundKernel<Parameters...>;
  auto bound = std::make_shared<Bound>(Bound{kernel, {static_cast<Parameters>(arguments)...}});
#if __has_builtin(__builtin_clear_padding)
  std::apply([](auto&... value) { (__builtin_clear_padding(&value), ...); }, bound->arguments);  // no old pointers in gaps of structures
#endif
  std::vector<::simt::ArgumentBytes> bytes;
  std::apply(
      [&](const auto&... value) {
        (bytes.push_back({&value, sizeof(value), std::is_pointer_v<std::decay_t<decltype(value)>>}), ...);
      },
      bound->arguments);
  return ::simt::enqueue_kernel(stream, {grid, block, shared_bytes, function, &Bound::call, bound}, bytes);
}

inline void cp_async_16(void* shared, const void* global, ::simt::Site site = ::simt::Site::current()) {
  ::simt::copy_async(shared, global, true, site);
}
inline void cp_async_16_or_zero(void* shared, const void* global, bool valid, ::simt::Site site = ::simt::Site::current()) {
  ::simt::copy_async(shared, global, valid, site);
}
inline void cp_async_commit() { ::simt::commit_copies(); }
template <int N>
void cp_async_wait() {
  ::simt::wait_copies(N);
}

inline void ldmatrix_x4(unsigned (&r)[4], const void* row, ::simt::Site site = ::simt::Site::current()) {
  ::simt::load_matrices(r, row, false, site);
}
inline void ldmatrix_x4_trans(unsigned (&r)[4], const void* row, ::simt::Site site = ::simt::Site::current()) {
  ::simt::load_matrices(r, row, true, site);
}
inline void mma_bf16_16816(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1, ::simt::Site site = ::simt::Site::current()) {
  ::simt::multiply_matrices(d, a, b0, b1, ::simt::Half::kBFloat16, site);
}
inline void mma_f16_16816(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1, ::simt::Site site = ::simt::Site::current()) {
  ::simt::multiply_matrices(d, a, b0, b1, ::simt::Half::kFloat16, site);
}

/// Each load lets other threads run: what spins on it makes progress.
inline unsigned load_acquire_system(const unsigned* address) {
  const unsigned value = __atomic_load_n(address, __ATOMIC_ACQUIRE);
  ::simt::poll();
  return value;
}
inline void store_release_system(unsigned* address, unsigned value) { __atomic_store_n(address, value, __ATOMIC_RELEASE); }
inline unsigned atomic_add_acq_rel(unsigned* address, unsigned value) { return __atomic_fetch_add(address, value, __ATOMIC_ACQ_REL); }

inline uint4 load_16(const void* address, ::simt::Site site = ::simt::Site::current()) {
  ::simt::check_alignment(address, 16, site);
  return *static_cast<const uint4*>(address);
}
inline uint4 load_16_streaming(const void* address, ::simt::Site site = ::simt::Site::current()) { return load_16(address, site); }
inline void store_16(void* address, uint4 value, ::simt::Site site = ::simt::Site::current()) {
  ::simt::check_alignment(address, 16, site);
  *static_cast<uint4*>(address) = value;
}

}  // namespace lockstep::device::cuda
