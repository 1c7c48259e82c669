#include "device/cuda/attention_launch.h"
#include "device/cuda/error.h"
#include "device/cuda/kernels/attention_prefill.cuh"

namespace lockstep::device::cuda {

void launch_prefill(const Launch& where, const AttentionArguments& arguments, unsigned tiles, Activation out) {
  const dim3 grid(tiles, arguments.heads.num_kv_heads);
  dispatch_mma(arguments, out, [&](auto* element, auto width, auto same_type) {
    using Element = std::remove_pointer_t<decltype(element)>;
    check(launch(attention_prefill<Element, width.value, same_type.value>, grid, dim3(kAttentionThreads), PrefillLayout<width.value>::kEnd,
                 where.stream, arguments),
          "launching attention_prefill");
  });
}

}  // namespace lockstep::device::cuda
