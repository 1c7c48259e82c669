#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace lockstep::engine {

inline std::optional<std::uint64_t> checked_multiply(std::uint64_t a, std::uint64_t b) {
  if (a != 0 && b > std::numeric_limits<std::uint64_t>::max() / a) return std::nullopt;
  return a * b;
}

/// Bytes of a tensor of this shape, `axes` with the columns at the end, in blocks of `block_size` elements and `block_bytes` bytes along a
/// row. nullopt if a row is not a whole number of blocks, or the size is beyond 2^63.
std::optional<std::uint64_t> tensor_bytes(std::span<const std::size_t> axes, std::uint64_t block_size, std::uint64_t block_bytes);

/// The bytes of a file that a tensor takes.
struct Extent {
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
  std::string name;
};

/// @throws std::runtime_error that names `source` and two tensors that share a byte.
void refuse_overlaps(const std::string& source, std::vector<Extent> extents);

}  // namespace lockstep::engine
