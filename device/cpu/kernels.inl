// All kernels, on top of the vector type that the including file has chosen, and their table.
// clang-format off
#include "device/cpu/functions.inl"
#include "device/cpu/linear.inl"
#include "device/cpu/rows.inl"
#include "device/cpu/blocks.inl"
#include "device/cpu/kv_elements.inl"
#include "device/cpu/attention.inl"
// clang-format on

constexpr Kernels make_table(Isa isa) {
  return {.isa = isa,
          .q8_offset = kQ8Offset,
          .linear = linear,
          .linear_scratch_bytes = linear_scratch_bytes,
          .expand_row = expand_row,
          .norm = norm,
          .quantise = quantise,
          .activate = activate,
          .add = add_rows,
          .square_sum = square_sum,
          .norm_by_square = norm_by_square,
          .scale = scale,
          .add_scaled = add_scaled,
          .soft_cap = soft_cap,
          .exponentials = exponentials,
          .top = top,
          .rotate = rotate,
          .append = append,
          .to_half = to_half,
          .to_bfloat16 = to_bfloat16,
          .from_half = from_half,
          .attend = attend,
          .attend_scratch_floats = attend_scratch_floats,
          .merge_state = merge_state,
          .finish_state = finish_state,
          .read_bytes = read_bytes,
          .multiply_floats = multiply_floats,
          .multiply_bytes = multiply_bytes};
}
