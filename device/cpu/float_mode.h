#pragma once

#include <cstdint>

namespace lockstep::device::cpu {

/// The floating-point mode of the numeric contract while it lives: round to nearest, subnormals kept. What the caller had comes back
/// afterwards.
class FloatMode {
 public:
  FloatMode();
  ~FloatMode();
  FloatMode(const FloatMode&) = delete;
  FloatMode& operator=(const FloatMode&) = delete;

 private:
  std::uint32_t before_ = 0;
};

}  // namespace lockstep::device::cpu
