#pragma once

#include <cstddef>

namespace lockstep::device {

/// Processors that this process may use: its affinity mask, or less where its control group has a smaller CPU quota. At least 1.
std::size_t usable_processors();

/// The smallest CPU quota of this process's control group and those above it, in processors, rounded up; the largest number where there is
/// none.
std::size_t quota_processors();

}  // namespace lockstep::device
