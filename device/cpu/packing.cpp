#include "device/cpu/packing.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "device/cpu/kernels.h"

namespace lockstep::device::cpu {
namespace {

struct BlockLayout {
  std::size_t header_values;  // f16 values before the quants
  std::size_t quads;
  std::size_t stored_bytes;
  std::size_t packed_bytes() const { return kLanes * stored_bytes; }
};

BlockLayout layout_of(DType dtype) {
  const std::size_t header = dtype == DType::kQ4_1 ? 2 : 1;
  return {header, dtype == DType::kQ8_0 ? std::size_t{8} : std::size_t{4}, info(dtype).block_bytes};
}

std::uint32_t load_quad(const std::byte* from) {
  std::uint32_t quad;
  std::memcpy(&quad, from, 4);
  return quad;
}

/// One block of one row, as stored -> into the panel's block. A stored nibble byte i holds columns i and i + 16: four of them are a packed
/// quad as they are.
void pack_block(const BlockLayout& layout, std::uint32_t flip, std::size_t lane, const std::byte* stored, std::byte* packed) {
  for (std::size_t i = 0; i < layout.header_values; ++i) std::memcpy(packed + i * 32 + lane * 2, stored + 2 * i, 2);
  const std::byte* quants = stored + 2 * layout.header_values;
  std::byte* to = packed + 32 * layout.header_values + lane * 4;
  for (std::size_t quad = 0; quad < layout.quads; ++quad) {
    const std::uint32_t value = load_quad(quants + quad * 4) ^ flip;
    std::memcpy(to + quad * 64, &value, 4);
  }
}

void unpack_block(const BlockLayout& layout, std::uint32_t flip, std::size_t lane, const std::byte* packed, std::byte* stored) {
  for (std::size_t i = 0; i < layout.header_values; ++i) std::memcpy(stored + 2 * i, packed + i * 32 + lane * 2, 2);
  std::byte* quants = stored + 2 * layout.header_values;
  const std::byte* from = packed + 32 * layout.header_values + lane * 4;
  for (std::size_t quad = 0; quad < layout.quads; ++quad) {
    const std::uint32_t value = load_quad(from + quad * 64) ^ flip;
    std::memcpy(quants + quad * 4, &value, 4);
  }
}

std::uint32_t flip_of(const PackedShape& shape) { return shape.dtype == DType::kQ8_0 && shape.q8_offset ? 0x80808080u : 0u; }

template <class Element>
void pack_floats(std::size_t columns, std::size_t rows_of_group, const std::byte* stored, std::size_t count, std::byte* packed) {
  constexpr std::size_t kStripe = 32;  // columns at a time: their packed records stay in the cache while the rows pass by
  Element* to = reinterpret_cast<Element*>(packed);
  for (std::size_t begin = 0; begin < columns; begin += kStripe) {
    const std::size_t end = std::min(columns, begin + kStripe);
    for (std::size_t row = 0; row < rows_of_group; ++row) {
      for (std::size_t k = begin; k < end; ++k) {
        Element value{};
        if (row < count) std::memcpy(&value, stored + (row * columns + k) * sizeof(Element), sizeof(Element));
        to[k * rows_of_group + row] = value;
      }
    }
  }
}

}  // namespace

std::size_t PackedShape::num_panels() const { return (rows + kLanes - 1) / kLanes; }
std::size_t PackedShape::panel_bytes() const { return kLanes * row_bytes(dtype, columns); }
std::size_t PackedShape::size_bytes() const { return num_panels() * panel_bytes(); }
std::size_t PackedShape::share_begin(std::size_t share) const { return num_panels() * share / shares; }
std::size_t PackedShape::group_width(std::size_t first, std::size_t end) const {
  return info(dtype).block_quantised() ? 1 : std::min<std::size_t>(kWidePanel, end - first);
}

void pack_group(const PackedShape& shape, std::size_t width, std::span<const std::byte> stored, std::size_t count, std::byte* packed) {
  if (shape.dtype == DType::kF32) return pack_floats<std::uint32_t>(shape.columns, kLanes * width, stored.data(), count, packed);
  if (!info(shape.dtype).block_quantised()) return pack_floats<std::uint16_t>(shape.columns, kLanes * width, stored.data(), count, packed);
  const BlockLayout layout = layout_of(shape.dtype);
  const std::size_t blocks = shape.columns / kBlock;
  if (count < kLanes) std::memset(packed, 0, shape.panel_bytes());
  for (std::size_t lane = 0; lane < count; ++lane) {
    const std::byte* row = stored.data() + lane * blocks * layout.stored_bytes;
    for (std::size_t block = 0; block < blocks; ++block) {
      pack_block(layout, flip_of(shape), lane, row + block * layout.stored_bytes, packed + block * layout.packed_bytes());
    }
  }
}

void unpack_row(const PackedShape& shape, const std::byte* packed, std::size_t row, std::span<std::byte> stored) {
  const std::size_t panel = row / kLanes;
  if (info(shape.dtype).block_quantised()) {
    const BlockLayout layout = layout_of(shape.dtype);
    const std::byte* from = packed + panel * shape.panel_bytes();
    for (std::size_t block = 0; block < shape.columns / kBlock; ++block) {
      unpack_block(layout, flip_of(shape), row % kLanes, from + block * layout.packed_bytes(), stored.data() + block * layout.stored_bytes);
    }
    return;
  }
  std::size_t share = 0;
  while (shape.share_begin(share + 1) <= panel) ++share;
  const std::size_t first = shape.share_begin(share) + (panel - shape.share_begin(share)) / kWidePanel * kWidePanel;
  const std::size_t rows_of_group = kLanes * shape.group_width(first, shape.share_begin(share + 1));
  const std::size_t element = info(shape.dtype).block_bytes;
  const std::byte* from = packed + first * shape.panel_bytes() + (row - first * kLanes) * element;
  for (std::size_t k = 0; k < shape.columns; ++k) std::memcpy(stored.data() + k * element, from + k * rows_of_group * element, element);
}

}  // namespace lockstep::device::cpu
