#pragma once

#include <cstdint>

#include "engine/model/spec.h"

namespace lockstep::engine {

/// The ranges in which the numbers of a configuration must be, whichever file states them: far beyond every model of today, and small
/// enough that no product of them overflows.
struct SpecLimits {
  static constexpr std::uint64_t kHiddenSize = 1u << 20;
  static constexpr std::uint64_t kLayers = 4096;
  static constexpr std::uint64_t kHeads = 1u << 16;
  static constexpr std::uint64_t kHeadDim = 1u << 14;
  static constexpr std::uint64_t kIntermediateSize = 1u << 24;
  static constexpr std::uint64_t kVocabSize = 1u << 26;
  static constexpr std::uint64_t kExperts = 1u << 12;
  static constexpr std::uint64_t kInAllLayers = 1u << 18;  // heads, or experts, of all layers together
  static constexpr std::uint64_t kPositions = (1u << 31) - 1;
  static constexpr double kRopeTheta = 1e15;
};

/// What has to hold between the numbers of a configuration, each of them in range. @throws std::runtime_error that begins with spec.source
/// and names the values.
void check_consistency(const ModelSpec& spec);

}  // namespace lockstep::engine
