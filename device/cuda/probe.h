#pragma once

#include "device/cuda/cuda_device.h"

/// What a GPU can do right now: the rooflines that a step is held against, to be measured in the same run. Each takes some hundred
/// milliseconds, and memory of the GPU meanwhile. They grow the work until a pass takes long enough, so that an emulated GPU is not kept
/// busy for hours. @throws CudaError
namespace lockstep::device::cuda {

/// Bytes a second that a plain read of memory reaches, the best of several: of 1 GiB, or half of what is free.
double measure_read_bandwidth(CudaDevice& device);

/// Floating-point operations a second of a large bf16 product by cuBLASLt, the best of several. @throws std::runtime_error
double measure_tensor_flops(CudaDevice& device);

}  // namespace lockstep::device::cuda
