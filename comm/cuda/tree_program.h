#pragma once

#include <cstddef>
#include <cstdint>

#include "comm/communicator.h"

namespace lockstep::comm::cuda {

/// A TreeSum as kernels run it: roots in an order in which a short stack is enough. Step by step: push the root, then `merges` times add
/// the two topmost values. The additions are those of TreeSum::merges, with operands exchanged at most, which changes no bit. Passed to
/// kernels by value.
struct TreeProgram {
  static constexpr std::size_t max_roots = 256;
  static constexpr std::size_t max_depth = 9;  // log2(max_roots) + 1

  struct Step {
    std::uint8_t rank = 0;  // whose root it is
    std::uint8_t root = 0;  // which of that rank's roots
    std::uint16_t merges = 0;
  };
  std::uint32_t num_roots = 0;
  std::uint32_t depth = 0;                // the most values that stand on the stack
  std::uint32_t max_roots_of_a_rank = 0;  // at least 1
  std::uint32_t digest = 0;               // of the whole tree: ranks compare it
  Step steps[max_roots] = {};
};

/// @throws std::invalid_argument where `tree` has more roots or ranks than a program can name, or adds a root twice. @pre tree_error is
/// empty.
TreeProgram make_tree_program(const TreeSum& tree);

}  // namespace lockstep::comm::cuda
