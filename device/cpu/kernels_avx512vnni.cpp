#include "device/cpu/kernels.h"

#if defined(__x86_64__)

#include <immintrin.h>

#include "device/cpu/kernel_macros.h"

LOCKSTEP_TARGET_BEGIN("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")
namespace lockstep::device::cpu::avx512vnni {
namespace {
// clang-format off
#include "device/cpu/vec16_avx512.inl"
#include "device/cpu/dots_avx512vnni.inl"
#include "device/cpu/kernels.inl"
// clang-format on
}  // namespace
}  // namespace lockstep::device::cpu::avx512vnni
LOCKSTEP_TARGET_END

namespace lockstep::device::cpu {

static constexpr Kernels kTable = avx512vnni::make_table(Isa::kAvx512Vnni);
const Kernels& avx512vnni_kernels() { return kTable; }

}  // namespace lockstep::device::cpu

#endif
