#pragma once

#include <cstddef>
#include <cstdint>

#include <cuda_runtime.h>

#include "device/device.h"

namespace lockstep::device::cuda {

/// Where ops are launched.
struct Launch {
  cudaStream_t stream = nullptr;
  int num_multiprocessors = 1;
};

/// Elements from one row of a matrix to the next: rows of 16-bit types begin at multiples of 16 bytes. What stands between the columns and
/// the stride is undefined; no kernel may let it reach a result.
inline std::size_t row_stride(Activation type, std::size_t columns) {
  return type == Activation::kFloat32 ? columns : (columns + 7) / 8 * 8;
}

inline std::size_t element_bytes(Activation type) { return type == Activation::kFloat32 ? sizeof(float) : sizeof(std::uint16_t); }

/// A matrix of activations in device memory: kFloat32, kFloat16 or kBFloat16. Passed to kernels by value.
struct Rows {
  void* data = nullptr;
  std::size_t columns = 0;
  std::size_t stride = 0;  // elements
  Activation type = Activation::kFloat32;
};

inline Rows rows_of(const Matrix& matrix) { return {matrix.data, matrix.columns, row_stride(matrix.type, matrix.columns), matrix.type}; }

/// One sequence of a step, as kernels see it.
struct SequenceView {
  std::uint32_t first_token = 0;
  std::uint32_t num_tokens = 0;  // 0: a pad
  std::uint32_t first_position = 0;
};

/// The step in device memory. The addresses and `block_table_stride` stay for the life of the device, so that a recorded graph reads the
/// step that was uploaded last; the counts are those of the recording, pads included.
struct StepView {
  const std::int32_t* token_ids = nullptr;      // [num_tokens]; -1: a pad
  const std::int32_t* positions = nullptr;      // [num_tokens]; -1: a pad
  const std::uint32_t* sequence_of = nullptr;   // [num_tokens]: index into `sequences`
  const SequenceView* sequences = nullptr;      // [num_sequences]
  const std::uint32_t* block_tables = nullptr;  // [num_sequences, block_table_stride]
  const std::uint32_t* logit_rows = nullptr;    // [num_logit_rows]; pads are 0
  std::uint32_t block_table_stride = 0;         // entries
  std::uint32_t num_tokens = 0;
  std::uint32_t num_sequences = 0;
  std::uint32_t num_logit_rows = 0;
  std::uint32_t max_tokens_of_sequence = 0;  // an upper bound of num_tokens over the sequences: 1 in decode
  std::uint32_t max_context = 0;             // an upper bound of first_position + num_tokens; in a recording: of all there can ever be
};

/// Which KV head a query head reads: (head + offset) / group.
struct HeadMap {
  std::uint32_t num_heads = 0;
  std::uint32_t num_kv_heads = 0;
  std::uint32_t head_dim = 0;
  std::uint32_t group = 1;
  std::uint32_t offset = 0;  // query heads of the first KV head that another rank has
};

/// What happens to a score after its scale: cap * tanh(score / cap) where there is a cap, then + slope of the head * position of the key.
struct ScoreBend {
  float soft_cap = 0.0f;          // 0: none
  float slope_factor = 1.0f;      // of all slopes
  const float* slopes = nullptr;  // [num_heads], in device memory; null: none
};

/// cos and sin in device memory: [positions, half] each, or, by_token, [tokens, half]. half = 0 rotates nothing.
struct RotaryView {
  const float* cosines = nullptr;
  const float* sines = nullptr;
  std::uint32_t half = 0;
  std::uint32_t by_token = 0;  // 0 or 1
};

/// Grouped products: one launch for several weights of one shape, type and leaves, each with rows of its own. Which rows those are is known
/// on the GPU alone, so a block is told by a list in memory.
struct Grouping {
  /// Rows [first_row, end_row) of the product are of one of the weights. A tile without rows is of none.
  struct Tile {
    std::uint32_t weight = 0;
    std::uint32_t first_row = 0;
    std::uint32_t end_row = 0;
  };
  struct Weight {
    const void* data = nullptr;
    const float* bias = nullptr;  // or null
  };
  const Tile* tiles = nullptr;  // one for each block along x; null: an ordinary product, of all rows with one weight
  const Weight* weights = nullptr;
  const std::uint32_t* in_rows = nullptr;  // of the activations, for each row of the product; null: the same
};
inline constexpr std::uint32_t kNoRow = 0xFFFFFFFFu;

}  // namespace lockstep::device::cuda
