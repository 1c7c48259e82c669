#include "device/cpu/kernels.h"

#if defined(__aarch64__)

#include <arm_neon.h>

#include "device/cpu/kernel_macros.h"

#if defined(__clang__)
LOCKSTEP_TARGET_BEGIN("dotprod")
#else
LOCKSTEP_TARGET_BEGIN("arch=armv8.2-a+dotprod")
#endif
namespace lockstep::device::cpu::neon {
namespace {
// clang-format off
#include "device/cpu/vec16_neon.inl"
#include "device/cpu/kernels.inl"
// clang-format on
}  // namespace
}  // namespace lockstep::device::cpu::neon
LOCKSTEP_TARGET_END

namespace lockstep::device::cpu {

static constexpr Kernels kTable = neon::make_table(Isa::kNeon);
const Kernels& neon_kernels() { return kTable; }

}  // namespace lockstep::device::cpu

#endif
