#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace lockstep::device {

/// The instruction sets that the CPU kernels are compiled for. All give the same bits.
enum class Isa : std::uint8_t { kPortable, kAvx2, kAvx512, kAvx512Vnni, kNeon };

/// "portable", "avx2", "avx512", "avx512vnni", "neon" (with dot products: Armv8.2 and later).
std::string_view isa_name(Isa isa);

/// What this machine (and its operating system) can run, ascending; the last one is the best. kPortable is always there.
std::vector<Isa> supported_isas();

/// The level of that name. @throws std::runtime_error that names the levels of this machine, if there is no such level or the machine lacks
/// it.
Isa isa_from_name(std::string_view name);

}  // namespace lockstep::device
