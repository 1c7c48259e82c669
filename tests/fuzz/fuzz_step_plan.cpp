// The bytes of a step plan, as they come from rank 0. What is accepted must be safe to hand to a runner, and come out the same again.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <stdexcept>

#include "engine/runtime/step_plan.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace lockstep::engine;
  StepPlan plan;
  const std::span<const std::byte> bytes(reinterpret_cast<const std::byte*>(data), size);
  try {
    deserialize(bytes, plan);
  } catch (const std::runtime_error&) {
    return 0;
  }
  std::vector<std::byte> again;
  serialize(plan, again);
  if (again.size() != size || std::memcmp(again.data(), data, size) != 0) std::abort();
  try {
    check_blocks(plan.batch, 16, 1024);
  } catch (const std::runtime_error&) {
  }
  return 0;
}
