#include "device/cpu/isa.h"

#include <algorithm>
#include <array>
#include <stdexcept>
#include <string>

#if defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

namespace lockstep::device {
namespace {

constexpr std::array<std::string_view, 5> kNames{"portable", "avx2", "avx512", "avx512vnni", "neon"};

std::string names_of_this_machine() {
  std::string names;
  for (const Isa isa : supported_isas()) {
    if (!names.empty()) names += ", ";
    names += isa_name(isa);
  }
  return names;
}

}  // namespace

std::string_view isa_name(Isa isa) { return kNames.at(static_cast<std::size_t>(isa)); }

std::vector<Isa> supported_isas() {
  std::vector<Isa> found{Isa::kPortable};
#if defined(__x86_64__)
  __builtin_cpu_init();
  // __builtin_cpu_supports asks XGETBV too: a set whose registers the system does not save counts as absent. F16C came before AVX2 on every
  // processor that has it.
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return found;
  found.push_back(Isa::kAvx2);
  if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") || !__builtin_cpu_supports("avx512dq") ||
      !__builtin_cpu_supports("avx512vl")) {
    return found;
  }
  found.push_back(Isa::kAvx512);
  if (__builtin_cpu_supports("avx512vnni")) found.push_back(Isa::kAvx512Vnni);
#elif defined(__aarch64__)
  if (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) found.push_back(Isa::kNeon);
#endif
  return found;
}

Isa isa_from_name(std::string_view name) {
  const auto at = std::find(kNames.begin(), kNames.end(), name);
  if (at == kNames.end()) {
    throw std::runtime_error("no instruction set is called '" + std::string(name) + "'; this machine has " + names_of_this_machine());
  }
  const Isa isa = static_cast<Isa>(at - kNames.begin());
  const std::vector<Isa> supported = supported_isas();
  if (std::find(supported.begin(), supported.end(), isa) == supported.end()) {
    throw std::runtime_error("this machine lacks the instruction set '" + std::string(name) + "'; it has " + names_of_this_machine());
  }
  return isa;
}

}  // namespace lockstep::device
