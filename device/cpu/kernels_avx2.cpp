#include "device/cpu/kernels.h"

#if defined(__x86_64__)

#include <immintrin.h>

#include "device/cpu/kernel_macros.h"

LOCKSTEP_TARGET_BEGIN("avx2,fma,f16c")
namespace lockstep::device::cpu::avx2 {
namespace {
// clang-format off
#include "device/cpu/vec16_avx2.inl"
#include "device/cpu/kernels.inl"
// clang-format on
}  // namespace
}  // namespace lockstep::device::cpu::avx2
LOCKSTEP_TARGET_END

namespace lockstep::device::cpu {

static constexpr Kernels kTable = avx2::make_table(Isa::kAvx2);
const Kernels& avx2_kernels() { return kTable; }

}  // namespace lockstep::device::cpu

#endif
