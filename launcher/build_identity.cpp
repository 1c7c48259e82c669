#include "launcher/build_identity.h"

#include <algorithm>

#include <fmt/format.h>

#include "build_info.h"
#include "device/cpu/isa.h"
#include "engine/version.h"
#include "launcher/world.h"

namespace lockstep::launcher {

std::string build_version() { return kBuildVersion; }
std::string build_commit() { return kBuildCommit; }

std::string system_fingerprint(std::string device_numerics) {
  std::replace(device_numerics.begin(), device_numerics.end(), ' ', '-');
  return fmt::format("lockstep-{}-n{}{}", kBuildVersion, engine::kNumericsVersion, device_numerics == "cpu" ? "" : "-" + device_numerics);
}

std::string version_text() {
  std::string instruction_sets;
  for (const device::Isa isa : device::supported_isas()) instruction_sets += fmt::format(" {}", device::isa_name(isa));
  return fmt::format("lockstep {} ({})\nnumerics version {}\ninstruction sets of this machine:{}\nMPI: {}\n", kBuildVersion, kBuildCommit,
                     engine::kNumericsVersion, instruction_sets, mpi_library_version());
}

}  // namespace lockstep::launcher
