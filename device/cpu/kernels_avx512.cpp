#include "device/cpu/kernels.h"

#if defined(__x86_64__)

#include <immintrin.h>

#include "device/cpu/kernel_macros.h"

LOCKSTEP_TARGET_BEGIN("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl")
namespace lockstep::device::cpu::avx512 {
namespace {
// clang-format off
#include "device/cpu/vec16_avx512.inl"
#include "device/cpu/dots_avx512.inl"
#include "device/cpu/kernels.inl"
// clang-format on
}  // namespace
}  // namespace lockstep::device::cpu::avx512
LOCKSTEP_TARGET_END

namespace lockstep::device::cpu {

static constexpr Kernels kTable = avx512::make_table(Isa::kAvx512);
const Kernels& avx512_kernels() { return kTable; }

}  // namespace lockstep::device::cpu

#endif
