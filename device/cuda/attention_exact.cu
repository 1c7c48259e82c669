#include "device/cuda/attention_launch.h"
#include "device/cuda/error.h"
#include "device/cuda/kernels/attention_exact.cuh"

namespace lockstep::device::cuda {

void launch_exact(const Launch& where, const AttentionArguments& arguments, unsigned tiles) {
  const std::size_t shared_bytes = 4 * std::size_t{exact_layout(arguments.heads.head_dim, arguments.rows_limit).end};
  const dim3 grid(tiles * arguments.parts, arguments.heads.num_kv_heads, arguments.step.num_sequences);
  const auto run = [&](auto kernel) {
    check(launch(kernel, grid, dim3(kAttentionThreads), shared_bytes, where.stream, arguments), "launching attention_exact");
  };
  switch (arguments.cache.type) {
    case CacheType::kFloat32: return run(attention_exact<float>);
    case CacheType::kFloat16: return run(attention_exact<__half>);
    case CacheType::kBFloat16: return run(attention_exact<__nv_bfloat16>);
    case CacheType::kFloat8: return run(attention_exact<Float8>);
    case CacheType::kInt8: return run(attention_exact<Int8>);
  }
}

}  // namespace lockstep::device::cuda
