#pragma once

#include <cstddef>
#include <span>

#include "device/dtype.h"

/// The layout of weights that the kernels stream. Panels of 16 rows follow each other; the rows of the last one that the matrix does not
/// have are zeros. Each thread has a share of the panels, in memory of its own.
///
/// Floats: up to 4 neighbouring panels are interleaved k by k ("wide panel"): [columns][16 * width] elements as stored. A wide panel begins
/// wherever the share of a thread begins, so the layout depends on the number of threads.
/// Blocks: panel after panel, as panel_layout.h says; Q8_0 has 128 added where the instruction set multiplies unsigned weights.
namespace lockstep::device::cpu {

struct PackedShape {
  DType dtype = DType::kF32;
  std::size_t rows = 0;
  std::size_t columns = 0;
  std::size_t first_column = 0;  // of the shard within its first super-block
  std::size_t shares = 1;        // threads that the panels are split over
  bool q8_offset = false;

  std::size_t num_panels() const;
  std::size_t panel_bytes() const;
  std::size_t size_bytes() const;
  std::size_t stored_row_bytes() const;
  std::size_t first_block() const { return first_column / 32; }
  /// First panel of a share; share `shares` gives num_panels().
  std::size_t share_begin(std::size_t share) const;
  std::size_t share_bytes(std::size_t share) const;
  std::size_t share_of(std::size_t panel) const;
  /// Panels that go together from `first` on within a share that ends at `end`: 1 for block types, up to 4 for floats.
  std::size_t group_width(std::size_t first, std::size_t end) const;
};

/// Packs `width` panels from `count` rows as stored (count <= 16 * width).
void pack_group(const PackedShape& shape, std::size_t width, std::span<const std::byte> stored, std::size_t count, std::byte* packed);

/// The bytes of one row of a float type as they were stored. @param share the packed panels of the share that has the row
void unpack_float_row(const PackedShape& shape, const std::byte* share, std::size_t row, std::span<std::byte> stored);

}  // namespace lockstep::device::cpu
