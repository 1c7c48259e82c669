#pragma once

#include "device/cuda/kernels/attention_state.cuh"
#include "device/cuda/views.h"

/// Launches of the kernels of attention: each in a file of its own, because they take the compiler longest. The arguments are complete.
namespace lockstep::device::cuda {

/// tiles: of kTileRows queries of a sequence and KV head.
void launch_exact(const Launch& where, const AttentionArguments& arguments, unsigned tiles);
/// out: kFloat16 or kBFloat16.
void launch_decode(const Launch& where, const AttentionArguments& arguments, unsigned tiles, Activation out);
/// tiles: an upper bound of those of kPrefillRows queries, of all sequences together, for each KV head.
void launch_prefill(const Launch& where, const AttentionArguments& arguments, unsigned tiles, Activation out);

/// Calls `with` with a null pointer of the 16-bit type and, as integral constants, the width of the kernel that head_dim needs and whether
/// the cache is of that type already.
template <class Element, class With>
void dispatch_width(const AttentionArguments& arguments, bool same_type, const With& with) {
  const auto with_width = [&](auto width) {
    if (same_type) return with(static_cast<Element*>(nullptr), width, std::true_type());
    return with(static_cast<Element*>(nullptr), width, std::false_type());
  };
  if (arguments.heads.head_dim <= 64) return with_width(std::integral_constant<unsigned, 64>());
  if (arguments.heads.head_dim <= 128) return with_width(std::integral_constant<unsigned, 128>());
  return with_width(std::integral_constant<unsigned, 256>());
}
template <class With>
void dispatch_mma(const AttentionArguments& arguments, Activation out, const With& with) {
  if (out == Activation::kFloat16) return dispatch_width<__half>(arguments, arguments.cache.type == CacheType::kFloat16, with);
  return dispatch_width<__nv_bfloat16>(arguments, arguments.cache.type == CacheType::kBFloat16, with);
}

}  // namespace lockstep::device::cuda
