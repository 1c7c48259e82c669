#pragma once

#include <cstddef>
#include <vector>

#include "comm/cuda/cuda_communicator.h"
#include "comm/measure.h"
#include "device/cuda/cuda_device.h"

namespace lockstep::comm::cuda {

/// Times every transport that these ranks can use, and "ncclAllReduce", for these sizes. Collective. `options` as for
/// make_cuda_communicator; table, fast and tuning do not matter. @throws CommError, device::cuda::CudaError
TransportTimes measure_transports(Communicator& host, device::cuda::CudaDevice& device, CudaCommunicatorOptions options,
                                  const std::vector<std::size_t>& sizes);

/// The table of the fastest transports: it changes from one to the next only where that is at least 3 % faster. `roots`: of all ranks.
TransportTable fastest_table(const TransportTimes& times, std::size_t roots);

}  // namespace lockstep::comm::cuda
