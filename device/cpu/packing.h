#pragma once

#include <cstddef>
#include <span>

#include "device/dtype.h"

/// The layout of weights that the kernels stream. Panels of 16 rows follow each other; the rows of the last one that the matrix does not
/// have are zeros.
///
/// Floats: up to 4 neighbouring panels are interleaved k by k ("wide panel"): [columns][16 * width] elements as stored. A wide panel begins
/// wherever the share of
///   a thread begins, so the layout depends on the number of threads; panel p always starts at p * 16 * columns elements when it is the
///   first of its wide panel.
/// Blocks: panel after panel, block after block:
///   Q8_0 [16 x f16 scale][8 quads of columns][16 rows][4 x int8], with 128 added where the instruction set multiplies unsigned weights;
///   Q4_0 [16 x f16 scale][4 quads][16 rows][4 bytes]: a byte has column 4 * quad + j low and column 16 + 4 * quad + j high;
///   Q4_1 the same with [16 x f16 minimum] behind the scales.
namespace lockstep::device::cpu {

struct PackedShape {
  DType dtype = DType::kF32;
  std::size_t rows = 0;
  std::size_t columns = 0;
  std::size_t shares = 1;  // threads that the panels are split over
  bool q8_offset = false;

  std::size_t num_panels() const;
  std::size_t panel_bytes() const;
  std::size_t size_bytes() const;
  /// First panel of a share; share `shares` gives num_panels().
  std::size_t share_begin(std::size_t share) const;
  /// Panels that go together from `first` on within a share that ends at `end`: 1 for block types, up to 4 for floats.
  std::size_t group_width(std::size_t first, std::size_t end) const;
};

/// Packs `width` panels from `count` rows as stored (count <= 16 * width).
void pack_group(const PackedShape& shape, std::size_t width, std::span<const std::byte> stored, std::size_t count, std::byte* packed);

/// The bytes of one row as they were stored.
void unpack_row(const PackedShape& shape, const std::byte* packed, std::size_t row, std::span<std::byte> stored);

}  // namespace lockstep::device::cpu
