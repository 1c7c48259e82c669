#pragma once

#include <cstddef>

#include "device/dtype.h"

/// How the block-quantised types stand in a panel of 16 rows. For each super-block that the shard has a part of (types with super-blocks
/// only) a super header, then its blocks of 32 columns: header, upper bits, lower bits. Super header and header are lists of values of 16
/// rows; the others are planes: 16 rows x 4 bytes.
///
/// Quad g are columns 4g to 4g + 3 of a block, byte j being column 4g + j. The lower bits of quad g, and the upper ones, by their number:
///   8: plane g;
///   4: plane g % 4, low nibble for g < 4, else high; where scales are of 16 columns, plane g / 2, low nibble for an even g, else high;
///   2: plane g / 4, bits 2 * (g % 4) and the next of each byte;
///   1: one plane, bit g of each byte.
/// This header is compiled into files of every instruction set: it must define no function.
namespace lockstep::device::cpu {

struct PanelLayout {
  std::size_t super_bytes;   // of the super header, for 16 rows
  std::size_t header_bytes;  // of the header, for 16 rows
  int low_bits;
  int high_bits;
  int zero;      // what is taken off a number as stored
  bool halves;   // a scale of each 16 columns; the header has them as int8, the super header the factor
  bool minimum;  // one of each scale
  bool table;    // nibbles that stand for values
};

/// From DType::kQ8_0 on.
inline constexpr PanelLayout kPanelLayouts[] = {
    {0, 32, 8, 0, 0, false, false, false},   // Q8_0    f16 scale
    {0, 32, 4, 0, 8, false, false, false},   // Q4_0    f16 scale
    {0, 64, 4, 0, 0, false, true, false},    // Q4_1    f16 scale, f16 minimum
    {0, 32, 4, 1, 16, false, false, false},  // Q5_0    f16 scale
    {0, 64, 4, 1, 0, false, true, false},    // Q5_1    f16 scale, f16 minimum
    {64, 32, 2, 0, 0, true, true, false},    // Q2_K    super: f16 scale, f16 minimum; 2 x byte (scale low nibble, minimum high)
    {32, 32, 2, 1, 4, true, false, false},   // Q3_K    super: f16 scale; 2 x int8 scale
    {256, 0, 4, 0, 0, false, true, false},   // Q4_K    super: f16 scale, f16 minimum, three planes of eight nibbles, one a block: the
    {256, 0, 4, 1, 0, false, true, false},   // Q5_K      lower 4 bits of the scale, those of the minimum, the upper 2 of both
    {32, 32, 4, 2, 32, true, false, false},  // Q6_K    super: f16 scale; 2 x int8 scale
    {0, 32, 4, 0, 0, false, false, true},    // IQ4_NL  f16 scale
    {32, 16, 4, 0, 0, false, false, true},   // IQ4_XS  super: f16 scale; int8 scale
    {0, 32, 4, 0, 0, false, false, true},    // MXFP4   scale as bf16, which every power of two is
};

inline constexpr std::size_t kSuperBlocks = 8;  // blocks of 32 columns in a super-block

}  // namespace lockstep::device::cpu
