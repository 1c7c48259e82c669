#pragma once

#include <cstddef>

namespace lockstep::device {

/// Processors that this process may use: its affinity mask, or less where its control group has a smaller CPU quota. At least 1.
std::size_t usable_processors();

/// Threads of one rank: usable_processors() divided by the ranks that share them (1 where the launcher binds each rank to processors of its
/// own). At least 1.
std::size_t threads_for_rank(std::size_t local_ranks_that_share);

}  // namespace lockstep::device
