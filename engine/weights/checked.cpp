#include "engine/weights/checked.h"

#include <algorithm>
#include <stdexcept>

#include "engine/weights/quote.h"

namespace lockstep::engine {

std::optional<std::uint64_t> tensor_bytes(std::span<const std::size_t> axes, std::uint64_t block_size, std::uint64_t block_bytes) {
  const std::uint64_t columns = axes.empty() ? 1 : axes.back();
  if (columns % block_size != 0) return std::nullopt;
  std::optional<std::uint64_t> bytes = checked_multiply(columns / block_size, block_bytes);
  // Axes of length zero must not hide an overflow: rows() multiplies them, too.
  std::optional<std::uint64_t> rows = 1;
  for (std::size_t axis = 0; axis + 1 < axes.size() && rows; ++axis) rows = checked_multiply(*rows, std::max<std::uint64_t>(axes[axis], 1));
  if (!bytes || !rows) return std::nullopt;
  for (std::size_t axis = 0; axis + 1 < axes.size() && bytes; ++axis) bytes = checked_multiply(*bytes, axes[axis]);
  if (!bytes || *bytes > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) return std::nullopt;
  return bytes;
}

void refuse_overlaps(const std::string& source, std::vector<Extent> extents) {
  std::erase_if(extents, [](const Extent& extent) { return extent.bytes == 0; });
  std::sort(extents.begin(), extents.end(), [](const Extent& a, const Extent& b) { return a.offset < b.offset; });
  for (std::size_t i = 1; i < extents.size(); ++i) {
    if (extents[i].offset - extents[i - 1].offset < extents[i - 1].bytes) {
      throw std::runtime_error(source + ": tensors " + quote(extents[i - 1].name) + " and " + quote(extents[i].name) +
                               " share bytes of the file");
    }
  }
}

}  // namespace lockstep::engine
