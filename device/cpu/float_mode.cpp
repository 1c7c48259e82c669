#include "device/cpu/float_mode.h"

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace lockstep::device::cpu {

#if defined(__x86_64__)
FloatMode::FloatMode() : before_(_mm_getcsr()) {
  constexpr std::uint32_t kDefault = 0x1F80, kStatusFlags = 0x3F;
  if ((before_ & ~kStatusFlags) != kDefault) _mm_setcsr(kDefault);
}
FloatMode::~FloatMode() {
  if ((before_ & ~0x3Fu) != 0x1F80) _mm_setcsr(before_);
}
#else
FloatMode::FloatMode() = default;
FloatMode::~FloatMode() = default;
#endif

}  // namespace lockstep::device::cpu
