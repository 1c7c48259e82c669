#include "launcher/version.h"

#include <fmt/format.h>

#include "build_info.h"
#include "engine/version.h"
#include "launcher/world.h"

namespace lockstep::launcher {

std::string version_text() {
  return fmt::format("lockstep {} ({})\nnumerics version {}\nMPI: {}\n", kBuildVersion, kBuildCommit, engine::kNumericsVersion,
                     mpi_library_version());
}

std::string build_commit() { return kBuildCommit; }

}  // namespace lockstep::launcher
