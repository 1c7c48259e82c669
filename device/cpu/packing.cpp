#include "device/cpu/packing.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <stdexcept>

#include "device/cpu/kernels.h"
#include "device/cpu/panel_layout.h"

namespace lockstep::device::cpu {
namespace {

constexpr const PanelLayout& layout_of(DType dtype) {
  return kPanelLayouts[static_cast<std::size_t>(dtype) - static_cast<std::size_t>(DType::kQ8_0)];
}
constexpr std::size_t num_planes(const PanelLayout& layout) { return static_cast<std::size_t>(layout.low_bits + layout.high_bits); }
constexpr std::size_t block_bytes(const PanelLayout& layout) { return layout.header_bytes + num_planes(layout) * 4 * kLanes; }

using Quads = std::array<std::uint32_t, 8>;
constexpr std::uint32_t kLowNibbles = 0x0F0F0F0Fu, kLowPairs = 0x03030303u, kLowBits = 0x01010101u;

std::uint32_t load_quad(const std::byte* from) {
  std::uint32_t quad;
  std::memcpy(&quad, from, 4);
  return quad;
}

/// 4 bits to the lowest bit of 4 bytes.
std::uint32_t spread_bits(std::uint32_t bits) { return (bits & 15u) * 0x00204081u & kLowBits; }

/// 16 bytes: columns 0 to 15 in the low nibbles, 16 to 31 in the high ones.
Quads quads_of_nibbles(const std::byte* nibbles) {
  Quads quads;
  for (std::size_t g = 0; g < 4; ++g) {
    const std::uint32_t both = load_quad(nibbles + 4 * g);
    quads[g] = both & kLowNibbles;
    quads[g + 4] = both >> 4 & kLowNibbles;
  }
  return quads;
}

/// The integers of part `part` (32 columns) of a block as stored.
template <DType kType>
Quads quads_of(const std::byte* block, std::size_t part) {
  Quads quads;
  const unsigned shift = static_cast<unsigned>(part);
  if constexpr (kType == DType::kQ8_0) {
    for (std::size_t g = 0; g < 8; ++g) quads[g] = load_quad(block + 2 + 4 * g);
  } else if constexpr (kType == DType::kQ4_0 || kType == DType::kIQ4_NL) {
    quads = quads_of_nibbles(block + 2);
  } else if constexpr (kType == DType::kMXFP4) {
    quads = quads_of_nibbles(block + 1);
  } else if constexpr (kType == DType::kQ4_1) {
    quads = quads_of_nibbles(block + 4);
  } else if constexpr (kType == DType::kQ5_0 || kType == DType::kQ5_1) {
    const std::byte* fifth = block + (kType == DType::kQ5_1 ? 4 : 2);
    quads = quads_of_nibbles(fifth + 4);
    for (std::size_t g = 0; g < 8; ++g) quads[g] |= spread_bits(load_quad(fifth) >> 4 * g) << 4;
  } else if constexpr (kType == DType::kIQ4_XS) {
    quads = quads_of_nibbles(block + 8 + 16 * part);
  } else if constexpr (kType == DType::kQ4_K || kType == DType::kQ5_K) {
    const std::byte* nibbles = block + (kType == DType::kQ5_K ? 48 : 16) + part / 2 * 32;
    for (std::size_t g = 0; g < 8; ++g) {
      quads[g] = load_quad(nibbles + 4 * g) >> 4 * (shift % 2) & kLowNibbles;
      if constexpr (kType == DType::kQ5_K) quads[g] |= (load_quad(block + 16 + 4 * g) >> shift & kLowBits) << 4;
    }
  } else if constexpr (kType == DType::kQ6_K) {
    const std::byte* low = block + part / 4 * 64 + part % 2 * 32;
    const std::byte* high = block + 128 + part / 4 * 32;
    for (std::size_t g = 0; g < 8; ++g) {
      quads[g] = (load_quad(low + 4 * g) >> 4 * (shift % 4 / 2) & kLowNibbles) | (load_quad(high + 4 * g) >> 2 * (shift % 4) & kLowPairs)
                                                                                     << 4;
    }
  } else {
    static_assert(kType == DType::kQ2_K || kType == DType::kQ3_K);
    const std::byte* low = block + (kType == DType::kQ2_K ? 16 : 32) + part / 4 * 32;
    for (std::size_t g = 0; g < 8; ++g) {
      quads[g] = load_quad(low + 4 * g) >> 2 * (shift % 4) & kLowPairs;
      if constexpr (kType == DType::kQ3_K) quads[g] |= (load_quad(block + 4 * g) >> shift & kLowBits) << 2;
    }
  }
  return quads;
}

/// Quads in the planes of the layout, upper bits first.
template <DType kType>
std::array<std::uint32_t, num_planes(layout_of(kType))> planes_of(const Quads& quads) {
  constexpr PanelLayout kLayout = layout_of(kType);
  std::array<std::uint32_t, num_planes(kLayout)> planes{};
  if constexpr (kLayout.low_bits == 8) return quads;
  for (unsigned g = 0; g < 8; ++g) {
    const std::uint32_t high = quads[g] >> kLayout.low_bits;
    if constexpr (kLayout.high_bits == 1) planes[0] |= (high & kLowBits) << g;
    if constexpr (kLayout.high_bits == 2) planes[g / 4] |= (high & kLowPairs) << 2 * (g % 4);
    constexpr unsigned kFirst = kLayout.high_bits;
    if constexpr (kLayout.low_bits == 4) {
      const unsigned plane = kLayout.halves ? g / 2 : g % 4, upper = kLayout.halves ? g % 2 : g / 4;
      planes[kFirst + plane] |= (quads[g] & kLowNibbles) << 4 * upper;
    } else {
      planes[kFirst + g / 4] |= (quads[g] & kLowPairs) << 2 * (g % 4);
    }
  }
  return planes;
}

void put(std::byte* to, std::size_t index, const void* value, std::size_t bytes) { std::memcpy(to + index * bytes, value, bytes); }

template <DType kType>
void pack_super_header(std::size_t lane, const std::byte* block, const SubScales& sub, std::byte* to) {
  constexpr std::size_t kScale = kType == DType::kQ2_K ? 80 : kType == DType::kQ3_K ? 108 : kType == DType::kQ6_K ? 208 : 0;
  put(to, lane, block + kScale, 2);
  if constexpr (layout_of(kType).minimum) put(to + 2 * kLanes, lane, block + kScale + 2, 2);
  if constexpr (kType == DType::kQ4_K || kType == DType::kQ5_K) {
    std::array<std::uint32_t, 3> planes{};
    for (unsigned part = 0; part < kSuperBlocks; ++part) {
      const std::uint32_t scale = static_cast<std::uint8_t>(sub.scales[part]), minimum = static_cast<std::uint8_t>(sub.minima[part]);
      planes[0] |= (scale & 15u) << 4 * part;
      planes[1] |= (minimum & 15u) << 4 * part;
      planes[2] |= (scale >> 4 | minimum >> 4 << 2) << 4 * part;
    }
    for (std::size_t i = 0; i < planes.size(); ++i) put(to + (1 + i) * 4 * kLanes, lane, &planes[i], 4);
  }
}

template <DType kType>
void pack_header(std::size_t lane, const std::byte* block, std::size_t part, const SubScales& sub, std::byte* to) {
  constexpr PanelLayout kLayout = layout_of(kType);
  if constexpr (kType == DType::kMXFP4) {
    const std::uint32_t exponent = std::to_integer<std::uint32_t>(*block);
    const std::uint16_t scale = static_cast<std::uint16_t>(exponent < 2 ? 0x20u << exponent : (exponent - 1) << 7);
    put(to, lane, &scale, 2);
  } else if constexpr (kLayout.super_bytes == 0) {
    put(to, lane, block, 2);
    if constexpr (kLayout.minimum) put(to + 2 * kLanes, lane, block + 2, 2);
  } else if constexpr (kType == DType::kQ2_K) {
    put(to, lane, block + 2 * part, 1);
    put(to + kLanes, lane, block + 2 * part + 1, 1);
  } else if constexpr (kLayout.halves) {
    put(to, lane, &sub.scales[2 * part], 1);
    put(to + kLanes, lane, &sub.scales[2 * part + 1], 1);
  } else if constexpr (kType == DType::kIQ4_XS) {
    put(to, lane, &sub.scales[part], 1);
  }
}

/// One panel; block by block, so that what is written stays in order.
template <DType kType>
void pack_panel(const PackedShape& shape, const std::byte* stored, std::size_t count, std::byte* packed) {
  constexpr PanelLayout kLayout = layout_of(kType);
  const DTypeInfo& type = info(kType);
  const std::size_t parts = type.block_size / kBlock, stride = shape.stored_row_bytes();
  const std::uint32_t flip = kType == DType::kQ8_0 && shape.q8_offset ? 0x80808080u : 0u;
  std::array<SubScales, kLanes> sub;
  for (std::size_t block = 0; block < shape.columns / kBlock; ++block) {
    const std::size_t place = block + shape.first_block(), part = place % parts;
    const std::byte* from = stored + place / parts * type.block_bytes;
    if (kLayout.super_bytes > 0 && (block == 0 || part == 0)) {
      for (std::size_t lane = 0; lane < count; ++lane) {
        if (kType != DType::kQ2_K) sub[lane] = sub_scales(kType, from + lane * stride);  // that one keeps them as they are
        pack_super_header<kType>(lane, from + lane * stride, sub[lane], packed);
      }
      packed += kLayout.super_bytes;
    }
    for (std::size_t lane = 0; lane < count; ++lane) {
      pack_header<kType>(lane, from + lane * stride, part, sub[lane], packed);
      const auto planes = planes_of<kType>(quads_of<kType>(from + lane * stride, part));
      std::byte* to = packed + kLayout.header_bytes + 4 * lane;
      for (std::size_t i = 0; i < planes.size(); ++i) {
        const std::uint32_t plane = planes[i] ^ flip;
        std::memcpy(to + i * 4 * kLanes, &plane, 4);
      }
    }
    packed += block_bytes(kLayout);
  }
}

void pack_blocks(const PackedShape& shape, const std::byte* stored, std::size_t count, std::byte* packed) {
  switch (shape.dtype) {
    case DType::kF32:
    case DType::kF16:
    case DType::kBF16: throw std::logic_error("a float type has no blocks");
    case DType::kQ8_0: return pack_panel<DType::kQ8_0>(shape, stored, count, packed);
    case DType::kQ4_0: return pack_panel<DType::kQ4_0>(shape, stored, count, packed);
    case DType::kQ4_1: return pack_panel<DType::kQ4_1>(shape, stored, count, packed);
    case DType::kQ5_0: return pack_panel<DType::kQ5_0>(shape, stored, count, packed);
    case DType::kQ5_1: return pack_panel<DType::kQ5_1>(shape, stored, count, packed);
    case DType::kQ2_K: return pack_panel<DType::kQ2_K>(shape, stored, count, packed);
    case DType::kQ3_K: return pack_panel<DType::kQ3_K>(shape, stored, count, packed);
    case DType::kQ4_K: return pack_panel<DType::kQ4_K>(shape, stored, count, packed);
    case DType::kQ5_K: return pack_panel<DType::kQ5_K>(shape, stored, count, packed);
    case DType::kQ6_K: return pack_panel<DType::kQ6_K>(shape, stored, count, packed);
    case DType::kIQ4_NL: return pack_panel<DType::kIQ4_NL>(shape, stored, count, packed);
    case DType::kIQ4_XS: return pack_panel<DType::kIQ4_XS>(shape, stored, count, packed);
    case DType::kMXFP4: return pack_panel<DType::kMXFP4>(shape, stored, count, packed);
  }
}

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
std::size_t PackedShape::panel_bytes() const {
  if (!info(dtype).block_quantised()) return kLanes * row_bytes(dtype, columns);
  const PanelLayout& layout = layout_of(dtype);
  const std::size_t blocks = columns / kBlock;
  return blocks * block_bytes(layout) + (first_block() + blocks + kSuperBlocks - 1) / kSuperBlocks * layout.super_bytes;
}
std::size_t PackedShape::size_bytes() const { return num_panels() * panel_bytes(); }
std::size_t PackedShape::stored_row_bytes() const { return covering_bytes(dtype, first_column, columns); }
std::size_t PackedShape::share_begin(std::size_t share) const { return num_panels() * share / shares; }
std::size_t PackedShape::share_bytes(std::size_t share) const { return (share_begin(share + 1) - share_begin(share)) * panel_bytes(); }
std::size_t PackedShape::share_of(std::size_t panel) const {
  std::size_t share = 0;
  while (share_begin(share + 1) <= panel) ++share;
  return share;
}
std::size_t PackedShape::group_width(std::size_t first, std::size_t end) const {
  return info(dtype).block_quantised() ? 1 : std::min<std::size_t>(kWidePanel, end - first);
}

void pack_group(const PackedShape& shape, std::size_t width, std::span<const std::byte> stored, std::size_t count, std::byte* packed) {
  if (shape.dtype == DType::kF32) return pack_floats<std::uint32_t>(shape.columns, kLanes * width, stored.data(), count, packed);
  if (!info(shape.dtype).block_quantised()) return pack_floats<std::uint16_t>(shape.columns, kLanes * width, stored.data(), count, packed);
  if (count < kLanes) std::memset(packed, 0, shape.panel_bytes());
  pack_blocks(shape, stored.data(), count, packed);
}

void unpack_float_row(const PackedShape& shape, const std::byte* share, std::size_t row, std::span<std::byte> stored) {
  const std::size_t panel = row / kLanes, index = shape.share_of(panel), begin = shape.share_begin(index);
  const std::size_t first = begin + (panel - begin) / kWidePanel * kWidePanel;
  const std::size_t rows_of_group = kLanes * shape.group_width(first, shape.share_begin(index + 1));
  const std::size_t element = info(shape.dtype).block_bytes;
  const std::byte* from = share + (first - begin) * shape.panel_bytes() + (row - first * kLanes) * element;
  for (std::size_t k = 0; k < shape.columns; ++k) std::memcpy(stored.data() + k * element, from + k * rows_of_group * element, element);
}

}  // namespace lockstep::device::cpu
