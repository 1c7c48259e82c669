#pragma once

#include <memory>
#include <optional>
#include <string>

#include "engine/weights/quantisation.h"
#include "engine/weights/source.h"

namespace lockstep::engine {

/// What a packed matrix is made of, each a tensor of whichever type, by its place.
struct PackedPart {
  UnsupportedTensor tensor;                                // also of a plain type: what counts is where its bytes are
  std::optional<device::DType> float_type = std::nullopt;  // where its elements are F32, F16 or BF16
};

/// fp8 weights [rows, columns] with their scales. Rows are F32: value * scale, rounded once.
struct Float8Parts {
  PackedPart weight;
  PackedPart scale;
  bool e5m2 = false;  // else e4m3 (without infinities, as in every checkpoint)
  std::size_t rows = 0;
  std::size_t columns = 0;
  std::size_t block_rows = 0;  // of one scale
  std::size_t block_columns = 0;
  std::size_t scale_columns = 0;  // scales in a row of them
};
std::shared_ptr<const PackedMatrix> make_float8_matrix(Float8Parts parts);

/// FP4 numbers (e2m1), two a byte, the earlier one in the low half, and for 32 columns of a row the exponent of a power of two. Rows are
/// kMXFP4, of the same numbers.
struct Mxfp4Parts {
  PackedPart blocks;  // uint8 [..., columns / 32, 16]
  PackedPart scales;  // uint8 [..., columns / 32]
  std::size_t columns = 0;
};
std::shared_ptr<const PackedMatrix> make_mxfp4_matrix(Mxfp4Parts parts);

/// Integers of 4 or 8 bits with a scale and a zero point for each group of columns and each row: w = (q - zero) * scale.
struct GroupedParts {
  std::string source;               // the configuration, for messages
  PackedPart quants;                // int32; gptq: [columns / per_word, rows]; awq: [columns, rows / 8]
  PackedPart zeros;                 // int32 [groups, rows / per_word]
  PackedPart scales;                // [groups, rows]
  std::optional<PackedPart> order;  // int32 [columns], the group of each column; absent: group by group
  bool any_order = false;           // else `order`, where it is there, has to say the same as its absence
  bool awq = false;
  bool symmetric = false;  // all zero points have to be 2^(bits - 1)
  bool zero_less_one = false;
  unsigned bits = 4;
  std::size_t rows = 0;
  std::size_t columns = 0;
  std::size_t group_size = 0;
  std::size_t groups = 0;
  /// What the rows are: kF32, kQ4_0 or kQ8_0, which hold just these numbers where group_type() says so.
  device::DType dtype = device::DType::kF32;
};
std::shared_ptr<const PackedMatrix> make_grouped_matrix(GroupedParts parts);

/// The smallest of kQ4_0, kQ8_0 and kF32 that holds (q - zero) * scale exactly: block types need scales in F16 and groups of whole blocks.
device::DType group_type(const GroupedParts& parts);

}  // namespace lockstep::engine
