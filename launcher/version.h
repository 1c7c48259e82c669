#pragma once

#include <string>

namespace lockstep::launcher {

/// What `lockstep --version` prints: version and commit, numerics version, MPI library; one a line.
std::string version_text();

/// The commit that the program was built from, as git describes it; "unknown" without git.
std::string build_commit();

}  // namespace lockstep::launcher
