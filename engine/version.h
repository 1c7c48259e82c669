#pragma once

namespace lockstep::engine {

/// Changes whenever any bit of any answer may change (docs/numerics.md, N10; CHANGELOG.md).
inline constexpr int kNumericsVersion = 1;

}  // namespace lockstep::engine
