#include "device/cpu/kernel_macros.h"
#include "device/cpu/kernels.h"

namespace lockstep::device::cpu::portable {
namespace {
// clang-format off
#include "device/cpu/vec16_portable.inl"
#include "device/cpu/kernels.inl"
// clang-format on
}  // namespace
}  // namespace lockstep::device::cpu::portable

namespace lockstep::device::cpu {

static constexpr Kernels kTable = portable::make_table(Isa::kPortable);
const Kernels& portable_kernels() { return kTable; }

}  // namespace lockstep::device::cpu
