#pragma once

#include <memory>

#include <mpi.h>

#include "comm/communicator.h"
#include "comm/options.h"

namespace lockstep::comm {

/// The communicator of the ranks of `group`, on any machines. Collective over `group`, of which it makes two duplicates (data, and news of
/// an abort). MPI must be initialised and not yet finalised. Nonblocking messages only, polled, so that every wait sees an abort and the
/// deadline.
///
/// What MPI does not tell: a peer's death is known when a message to it fails, when mpirun takes the job down, or at the deadline; the
/// report then names the ranks that were not heard from, and where each stood in its last message. An abort() from another thread than the
/// one that communicates goes out with that thread's next poll, unless MPI was initialised with MPI_THREAD_MULTIPLE. After a CommError the
/// duplicates are not freed, and MPI_Finalize may wait for the dead: leave by MPI_Abort.
/// @throws CommError if a rank does not come within the deadline or the options differ, std::invalid_argument for bad options.
std::unique_ptr<Communicator> make_mpi_communicator(MPI_Comm group, const CommunicatorOptions& options = {});

}  // namespace lockstep::comm
