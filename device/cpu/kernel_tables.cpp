#include <stdexcept>
#include <string>

#include "device/cpu/kernels.h"

namespace lockstep::device::cpu {

const Kernels& kernels_for(Isa isa) {
  switch (isa) {
    case Isa::kPortable: return portable_kernels();
#if defined(__x86_64__)
    case Isa::kAvx2: return avx2_kernels();
    case Isa::kAvx512: return avx512_kernels();
    case Isa::kAvx512Vnni: return avx512vnni_kernels();
#elif defined(__aarch64__)
    case Isa::kNeon: return neon_kernels();
#endif
    default: throw std::runtime_error("this build has no kernels for '" + std::string(isa_name(isa)) + "'");
  }
}

}  // namespace lockstep::device::cpu
