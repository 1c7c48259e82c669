#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "comm/communicator.h"
#include "comm/options.h"

namespace lockstep::comm {

/// Memory for the ranks of one machine, as processes. One process (rank 0, or the parent of all) makes it, hands its name to every rank by
/// whatever means it has (MPI, a pipe, an environment variable), and keeps it until every rank has its communicator; it may go then.
///
/// The memory is anonymous (memfd), not a file in /dev/shm: it goes with its last process, however that ends, and a small /dev/shm (64 MB
/// in containers) does not matter. Its size is about 2 * slot_bytes * size, allocated at once.
class ShmRegion {
 public:
  /// @throws std::invalid_argument for bad options, CommError if the memory cannot be had.
  ShmRegion(int size, const CommunicatorOptions& options);
  ~ShmRegion();
  ShmRegion(const ShmRegion&) = delete;
  ShmRegion& operator=(const ShmRegion&) = delete;

  /// Short text without blanks. Of use on this machine, to processes of this user that see the maker's process id.
  const std::string& name() const { return name_; }

 private:
  int file_ = -1;
  std::string name_;
};

/// The communicator of `rank` over the region `name`; every rank, the maker of the region included, calls this. Returns when all ranks have
/// attached. A rank that dies (even if nobody has waited for it yet) is noticed within about 0.2 s: each holds a lock that the kernel drops
/// with the process. A rank must therefore not fork() children that live longer than it without exec().
/// @throws CommError if the name leads nowhere, the rank is taken, the number of ranks differs, or a rank does not attach within the
/// deadline.
std::unique_ptr<Communicator> make_shm_communicator(const std::string& name, int rank, int size, const CommunicatorOptions& options = {});

}  // namespace lockstep::comm
