#pragma once

#include <memory>
#include <string>

#include "comm/communicator.h"
#include "comm/cuda/plugin.h"
#include "launcher/run_config.h"

namespace lockstep::launcher {

/// What this process finds out about GPUs before it talks to anyone.
struct GpuFinding {
  bool present = false;  // there is an NVIDIA device
  int usable = 0;        // GPUs that the plug-in can use
  std::string problem;   // why there is none, though one is present or was asked for
  const comm::CudaPlugin* plugin = nullptr;
};

/// Loads the CUDA plug-in if it is needed: never for --device cpu, and for `auto` only where there is an NVIDIA device or
/// LOCKSTEP_CUDA_PLUGIN names one. The plug-in stays loaded.
GpuFinding find_gpus(const RunConfig& config);

/// Whether the ranks run on GPUs, the same answer on every rank. Collective.
/// `auto`: GPUs if every rank has one, the CPU if none sees an NVIDIA device.
/// @throws UsageError, on every rank, that names a rank which can not do what was asked, or that differs from the others.
bool agree_on_gpus(const RunConfig& config, const GpuFinding& finding, comm::Communicator& communicator);

}  // namespace lockstep::launcher
