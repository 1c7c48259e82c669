#pragma once

#include <array>
#include <cstdint>

namespace lockstep::engine {

/// Philox4x32-10: a counter-based random number generator (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3", SC
/// 2011). A pure function of counter and key, so a draw depends on what it is for and never on how many draws came before it.
constexpr std::array<std::uint32_t, 4> philox4x32(std::array<std::uint32_t, 4> counter, std::array<std::uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t product0 = std::uint64_t{0xD2511F53} * counter[0];
    const std::uint64_t product1 = std::uint64_t{0xCD9E8D57} * counter[2];
    counter = {static_cast<std::uint32_t>(product1 >> 32) ^ counter[1] ^ key[0], static_cast<std::uint32_t>(product1),
               static_cast<std::uint32_t>(product0 >> 32) ^ counter[3] ^ key[1], static_cast<std::uint32_t>(product0)};
    key[0] += 0x9E3779B9;
    key[1] += 0xBB67AE85;
  }
  return counter;
}

/// Uniform in [0, 1), 53 bits: the draw for the token at `position` of choice `choice`.
constexpr double sampling_uniform(std::uint64_t seed, std::uint32_t choice, std::uint64_t position) {
  const auto bits = philox4x32({static_cast<std::uint32_t>(position), static_cast<std::uint32_t>(position >> 32), choice, 0},
                               {static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)});
  return static_cast<double>((std::uint64_t{bits[0]} << 32 | bits[1]) >> 11) * 0x1.0p-53;
}

}  // namespace lockstep::engine
