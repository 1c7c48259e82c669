#pragma once

#include <memory>
#include <string>

#include "comm/communicator.h"
#include "comm/options.h"
#include "launcher/launch.h"
#include "launcher/run_config.h"

namespace lockstep::launcher {

/// MPI for the life of this process, where it is needed: a job of one rank never touches it.
class World {
 public:
  /// Starts MPI if `ranks` says that there are several, and checks that everyone means the same job. Collective.
  /// @throws UsageError if config.tensor_parallel_size was given and is another number, or if the MPI library counts other ranks than the
  /// environment
  ///         (the program and mpirun come from two MPI builds: each process would believe that it is alone).
  World(const RunConfig& config, const RankEnvironment& ranks);
  /// Leaves MPI as it is: a process that did not get as far as finalize() must not wait for others.
  ~World() = default;
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  int local_rank() const { return local_rank_; }  // among the ranks of this machine
  int local_size() const { return local_size_; }

  /// Ranks of this machine, this one included, that may run on one of the cores that this one may run on: 1 where each is bound to cores of
  /// its own.
  int ranks_that_share_cores() const { return sharers_.count; }
  int index_among_sharers() const { return sharers_.index; }

  struct Sharers {
    int count = 1;
    int index = 0;  // of this rank among them
  };

  /// Collective. `kind` as choose_communicator() gives it, but for "threads". @throws comm::CommError
  std::unique_ptr<comm::Communicator> make_communicator(const std::string& kind, const comm::CommunicatorOptions& options) const;

  /// Collective: to be called once, after everything else went well and the communicator is gone.
  void finalize();

 private:
  int rank_ = 0;
  int size_ = 1;
  int local_rank_ = 0;
  int local_size_ = 1;
  Sharers sharers_;
  bool uses_mpi_ = false;
};

/// The communicator to use, "self", "threads", "shm" or "mpi", for what --comm asks.
/// @throws UsageError if it can not connect these ranks.
std::string choose_communicator(const std::string& asked, int size, int local_size);

/// "Open MPI v4.1.4", without starting MPI.
std::string mpi_library_version();

}  // namespace lockstep::launcher
