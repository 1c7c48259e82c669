// All kernels, on top of the vector type that the including file has chosen, and their table.
// clang-format off
#include "device/cpu/functions.inl"
#include "device/cpu/linear.inl"
#include "device/cpu/rows.inl"
#include "device/cpu/attention.inl"
// clang-format on

constexpr Kernels make_table(Isa isa) {
  return {isa,    kQ8Offset, linear,  linear_scratch_bytes, expand_row, norm,   quantise,    activate,     add_rows,  exponentials, top,
          rotate, append,    to_half, to_bfloat16,          from_half,  attend, merge_state, finish_state, read_bytes};
}
