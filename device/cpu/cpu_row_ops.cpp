// Ops of the CPU device that change rows where they stand, and the choice of experts: every thread does its rows.
#include <stdexcept>
#include <string>

#include "device/cpu/cpu_step_device.h"
#include "device/cpu/experts.h"

namespace lockstep::device::cpu {
namespace {

/// The floats of the first of these columns.
float* columns_of(const Matrix& x, std::size_t num_rows, std::size_t first_column, std::size_t num_columns) {
  require(first_column + num_columns <= x.columns, "the matrix has fewer columns");
  return floats_of(x, num_rows) + first_column;
}

}  // namespace

void CpuDevice::add_positions(const Weight& table, std::size_t offset, const Matrix& x) {
  const StepBatch& batch = step();
  const LinearWeight& weight = static_cast<const LinearWeight&>(table);
  for (const std::int32_t position : batch.positions) {
    if (position < 0 || static_cast<std::size_t>(position) + offset >= weight.spec().rows) {
      throw std::out_of_range("position " + std::to_string(position) + " is outside the table of positions, which has " +
                              std::to_string(weight.spec().rows) + " rows");
    }
  }
  float* rows = floats_of(x, batch.num_tokens());
  const std::size_t place = reserve_table_row(weight, x.columns, x.columns * sizeof(float)), columns = x.columns;
  change_rows(x, {}, batch.num_tokens(), [=, this, &weight](std::size_t thread, std::size_t t) {
    const std::span row(reinterpret_cast<float*>(scratch_[thread].data() + place), columns);
    expand_table_row(weight, static_cast<std::size_t>(step_->positions[t]) + offset, thread, row);
    kernels_.add(rows + t * columns, row.data(), nullptr, columns);
  });
}

void CpuDevice::scale(const Matrix& x, std::size_t num_rows, float factor) {
  float* rows = floats_of(x, num_rows);
  change_rows(x, {}, num_rows,
              [=, this, columns = x.columns](std::size_t, std::size_t t) { kernels_.scale(rows + t * columns, columns, factor); });
}

void CpuDevice::soft_cap(const Matrix& x, std::size_t num_rows, float cap) {
  float* rows = floats_of(x, num_rows);
  change_rows(x, {}, num_rows,
              [=, this, columns = x.columns](std::size_t, std::size_t t) { kernels_.soft_cap(rows + t * columns, columns, cap); });
}

void CpuDevice::gate_rows(const Matrix& x, std::size_t num_rows, const Matrix& gates) {
  require(gates.columns == 1, "gate_rows: a gate has one column");
  float* rows = floats_of(x, num_rows);
  const float* from = floats_of(gates, num_rows);
  change_rows(x, {gates.data}, num_rows, [=, this, columns = x.columns](std::size_t, std::size_t t) {
    float exponential = 0.0f - from[t];
    kernels_.exponentials(&exponential, 1, &exponential);
    kernels_.scale(rows + t * columns, columns, 1.0f / (1.0f + exponential));
  });
}

/// The thread of a head is the one that computed it, or its first columns.
void CpuDevice::norm_heads(const Matrix& x, std::size_t num_rows, std::size_t first_column, std::size_t num_heads, std::size_t head_dim,
                           const Norm& norm) {
  float* rows = columns_of(x, num_rows, first_column, num_heads * head_dim);
  const auto norm_some = [=, this, columns = x.columns](std::size_t t, std::size_t first, std::size_t end) {
    for (std::size_t head = first; head < end; ++head) {
      float* at = rows + t * columns + head * head_dim;
      kernels_.norm(at, nullptr, nullptr, head_dim, norm, {at, {}});
    }
  };
  const PartOfProduct own = recording_ ? part_of_product(x, num_rows, first_column, num_heads * head_dim) : PartOfProduct{};
  if (own.weight == nullptr) {
    return change_rows(x, {}, num_rows, [=](std::size_t, std::size_t t) { norm_some(t, 0, num_heads); });
  }
  copies_.set_valid(x, false);
  submit({{x.data, Use::kChangeAwaited}}, [=, this](std::size_t thread) {
    const UnitShare heads = own.units(thread, head_dim);
    for (std::size_t t = 0; t < num_rows; ++t) norm_some(t, heads.first, heads.whole_end);
    if (heads.whole_end == heads.end) return;
    pool_.await_others(thread);
    for (std::size_t t = 0; t < num_rows; ++t) norm_some(t, heads.whole_end, heads.end);
  });
}

void CpuDevice::square_heads(const Matrix& x, std::size_t num_rows, std::size_t first_column, std::size_t num_heads, std::size_t head_dim,
                             const Matrix& out) {
  const float* rows = columns_of(x, num_rows, first_column, num_heads * head_dim);
  require(out.columns == 1, "square_heads: the output has one column");
  float* to = floats_of(out, num_heads * num_rows);
  change_rows(out, {x.data}, num_rows, [=, this, columns = x.columns](std::size_t, std::size_t t) {
    for (std::size_t head = 0; head < num_heads; ++head)
      to[head * num_rows + t] = kernels_.square_sum(rows + t * columns + head * head_dim, head_dim);
  });
}

void CpuDevice::norm_by_square(const Matrix& x, std::size_t num_rows, std::size_t first_column, std::size_t num_columns,
                               const Matrix& squares, std::size_t norm_columns, const float* weight, float eps) {
  float* rows = columns_of(x, num_rows, first_column, num_columns);
  const float* sums = floats_of(squares, num_rows);
  change_rows(x, {squares.data}, num_rows, [=, this, columns = x.columns](std::size_t, std::size_t t) {
    kernels_.norm_by_square(rows + t * columns, num_columns, sums[t] / static_cast<float>(norm_columns), weight, eps);
  });
}

void CpuDevice::route(const Matrix& logits, std::size_t num_rows, const Routing& routing, const Matrix& out) {
  require(logits.columns == out.columns && routing.per_token > 0, "route: as many weights as logits are needed");
  const std::size_t n = logits.columns;
  const float* from = floats_of(logits, num_rows);
  float* to = floats_of(out, num_rows);
  reserve_scratch(n * sizeof(float));
  change_rows(out, {logits.data}, num_rows, [=, this](std::size_t thread, std::size_t t) {
    route_row(kernels_, {from + t * n, n}, routing, {to + t * n, n}, {reinterpret_cast<float*>(scratch_[thread].data()), n});
  });
}

}  // namespace lockstep::device::cpu
