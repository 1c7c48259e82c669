#pragma once

#include "device/cuda/views.h"

/// Ops on rows. Each launches one kernel on launch.stream, works on the first `num_rows` rows, and gives the same bits for a row whatever
/// the others are. x, delta, gate_up, logits are kFloat32; `out` may be of any of the three types, rounded to nearest even. With kFloat32
/// everywhere the results are those of the CPU device, bit for bit (docs/numerics.md, N3 and N4). @throws CudaError
namespace lockstep::device::cuda {

void norm(const Launch& launch, Rows x, std::size_t num_rows, const Norm& norm, Rows out);
void add(const Launch& launch, Rows x, Rows delta, std::size_t num_rows, const float* bias);
/// x += delta (+ bias), out = norm(x).
void add_norm(const Launch& launch, Rows x, Rows delta, std::size_t num_rows, const float* bias, const Norm& norm, Rows out);
/// out = gate and up, made one.
void gated(const Launch& launch, const Gating& gating, Rows gate_up, std::size_t num_rows, Rows out);
void activate(const Launch& launch, Nonlinearity function, Rows x, std::size_t num_rows, Rows out);
void convert(const Launch& launch, Rows x, std::size_t num_rows, Rows out);
/// out row i = from row rows[i]; `rows` is in device memory.
void gather_rows(const Launch& launch, Rows from, const std::uint32_t* rows, std::size_t num_rows, Rows out);
/// `tops` [num_rows] is in device memory.
void top_of_rows(const Launch& launch, Rows logits, std::size_t num_rows, Top* tops);

}  // namespace lockstep::device::cuda
