#pragma once

#include <string>

namespace lockstep::launcher {

std::string build_version();  // "0.1.0"
std::string build_commit();   // as git describes it; "unknown" without git

/// What answers call the system that made them: "lockstep-0.1.0-n1", version and numerics version, and what of the device can change a
/// bit, unless it is the CPU: "lockstep-0.1.0-n1-cuda-sm_90". `device_numerics` is Device::numerics().
std::string system_fingerprint(std::string device_numerics);

/// What `lockstep --version` prints: version and commit, numerics version, instruction sets, MPI library; one a line.
std::string version_text();

}  // namespace lockstep::launcher
