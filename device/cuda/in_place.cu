#include "device/cuda/error.h"
#include "device/cuda/in_place.h"
#include "device/cuda/kernels/in_place.cuh"
#include "device/cuda/row_launch.h"

namespace lockstep::device::cuda {
namespace {

dim3 grid_of(std::size_t num_rows, std::size_t columns) {
  return dim3(static_cast<unsigned>(num_rows), static_cast<unsigned>((columns + kRowStep - 1) / kRowStep));
}

void launch_scale(const Launch& where, const Rows& x, std::size_t num_rows, const float* gates, float factor) {
  if (num_rows == 0 || x.columns == 0) return;
  check(launch(scale_rows<float>, grid_of(num_rows, x.columns), dim3(kRowThreads), 0, where.stream, mutable_rows<float>(x), gates, factor,
               static_cast<unsigned>(x.columns), is_aligned(x)),
        "launching scale_rows");
}

/// The columns of x from one on: aligned where all of these are.
Rows columns_from(Rows x, std::size_t first_column, std::size_t num_columns) {
  x.data = static_cast<float*>(x.data) + first_column;
  x.columns = num_columns;
  return x;
}

}  // namespace

void scale(const Launch& where, Rows x, std::size_t num_rows, float factor) { launch_scale(where, x, num_rows, nullptr, factor); }

void gate_rows(const Launch& where, Rows x, std::size_t num_rows, Rows gates) {
  launch_scale(where, x, num_rows, static_cast<const float*>(gates.data), 1.0f);
}

void soft_cap(const Launch& where, Rows x, std::size_t num_rows, float cap) {
  if (num_rows == 0 || x.columns == 0) return;
  check(launch(soft_cap_rows<float>, grid_of(num_rows, x.columns), dim3(kRowThreads), 0, where.stream, mutable_rows<float>(x), cap,
               static_cast<unsigned>(x.columns), is_aligned(x)),
        "launching soft_cap_rows");
}

void norm_heads(const Launch& where, Rows x, std::size_t num_rows, std::size_t first_column, std::size_t num_heads, std::size_t head_dim,
                const Norm& norm) {
  if (num_rows == 0 || num_heads == 0) return;
  const Rows head = columns_from(x, first_column, head_dim);
  const NormArguments arguments = norm_arguments(head, nullptr, nullptr, norm, head);
  const dim3 grid(static_cast<unsigned>(num_rows), static_cast<unsigned>(num_heads));
  const auto run = [&](auto kernel) { check(launch(kernel, grid, dim3(kRowThreads), 0, where.stream, arguments), "launching norm_heads"); };
  norm.kind == Norm::Kind::kRms ? run(norm_heads_kernel<Norm::Kind::kRms>) : run(norm_heads_kernel<Norm::Kind::kLayer>);
}

void square_heads(const Launch& where, Rows x, std::size_t num_rows, std::size_t first_column, std::size_t num_heads, std::size_t head_dim,
                  Rows out) {
  if (num_rows == 0 || num_heads == 0) return;
  const Rows head = columns_from(x, first_column, head_dim);
  check(launch(square_heads_kernel<float>, dim3(static_cast<unsigned>(num_rows), static_cast<unsigned>(num_heads)), dim3(kRowThreads), 0,
               where.stream, const_rows(head), static_cast<unsigned>(head_dim), is_aligned(head), static_cast<float*>(out.data)),
        "launching square_heads");
}

void norm_by_square(const Launch& where, Rows x, std::size_t num_rows, std::size_t first_column, std::size_t num_columns, Rows squares,
                    std::size_t norm_columns, const float* weight, float eps) {
  if (num_rows == 0 || num_columns == 0) return;
  const Rows columns = columns_from(x, first_column, num_columns);
  check(launch(norm_by_square_rows<float>, grid_of(num_rows, num_columns), dim3(kRowThreads), 0, where.stream, mutable_rows<float>(columns),
               static_cast<unsigned>(num_columns), static_cast<const float*>(squares.data), static_cast<float>(norm_columns), weight, eps,
               is_aligned(columns) && is_aligned(weight)),
        "launching norm_by_square_rows");
}

}  // namespace lockstep::device::cuda
