#include "device/cuda/attention_launch.h"
#include "device/cuda/error.h"
#include "device/cuda/kernels/attention_decode.cuh"

namespace lockstep::device::cuda {

void launch_decode(const Launch& where, const AttentionArguments& arguments, unsigned tiles, Activation out) {
  const dim3 grid(tiles * arguments.parts, arguments.heads.num_kv_heads, arguments.step.num_sequences);
  dispatch_mma(arguments, out, [&](auto* element, auto width, auto same_type) {
    using Element = std::remove_pointer_t<decltype(element)>;
    const std::size_t shared_bytes = decode_layout<width.value>(arguments.heads.head_dim, arguments.rows_limit).end;
    check(launch(attention_decode<Element, width.value, same_type.value>, grid, dim3(kAttentionThreads), shared_bytes, where.stream,
                 arguments),
          "launching attention_decode");
  });
}

}  // namespace lockstep::device::cuda
