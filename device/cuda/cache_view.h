#pragma once

#include "device/cuda/attention.h"
#include "device/cuda/kernels/kv_cache.cuh"

namespace lockstep::device::cuda {

/// One layer of the cache as kernels see it.
CacheView view_of(const CudaKvCache& cache, std::size_t layer);

}  // namespace lockstep::device::cuda
