#pragma once

#include "device/cuda/views.h"

/// Ops on rows of floats in place: one kernel each, the bits of the CPU device. See Device. @throws CudaError
namespace lockstep::device::cuda {

void scale(const Launch& launch, Rows x, std::size_t num_rows, float factor);
void soft_cap(const Launch& launch, Rows x, std::size_t num_rows, float cap);
void gate_rows(const Launch& launch, Rows x, std::size_t num_rows, Rows gates);
void norm_heads(const Launch& launch, Rows x, std::size_t num_rows, std::size_t first_column, std::size_t num_heads, std::size_t head_dim,
                const Norm& norm);
void square_heads(const Launch& launch, Rows x, std::size_t num_rows, std::size_t first_column, std::size_t num_heads, std::size_t head_dim,
                  Rows out);
void norm_by_square(const Launch& launch, Rows x, std::size_t num_rows, std::size_t first_column, std::size_t num_columns, Rows squares,
                    std::size_t norm_columns, const float* weight, float eps);

}  // namespace lockstep::device::cuda
