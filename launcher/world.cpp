#include "launcher/world.h"

#include <vector>

#include <fmt/format.h>
#include <mpi.h>
#include <sched.h>

#include "comm/mpi.h"
#include "comm/self.h"
#include "comm/shm.h"

namespace lockstep::launcher {
namespace {

/// The ranks in `local` that may run where this one may. Collective.
World::Sharers find_sharers(MPI_Comm local, int local_rank, int local_size) {
  cpu_set_t mine;
  CPU_ZERO(&mine);
  sched_getaffinity(0, sizeof mine, &mine);  // where it fails on one rank it does so on all: nobody shares
  std::vector<cpu_set_t> all(static_cast<std::size_t>(local_size));
  MPI_Allgather(&mine, sizeof mine, MPI_BYTE, all.data(), sizeof mine, MPI_BYTE, local);
  World::Sharers sharers{.count = 0, .index = 0};
  for (int other = 0; other < local_size; ++other) {
    cpu_set_t both;
    CPU_AND(&both, &mine, &all[static_cast<std::size_t>(other)]);
    if (CPU_COUNT(&both) == 0 && other != local_rank) continue;
    if (other < local_rank) ++sharers.index;
    ++sharers.count;
  }
  return sharers;
}

/// A short text of rank 0, on every rank. Collective.
std::string share_text(std::string text) {
  int length = static_cast<int>(text.size());
  MPI_Bcast(&length, 1, MPI_INT, 0, MPI_COMM_WORLD);
  text.resize(static_cast<std::size_t>(length));
  MPI_Bcast(text.data(), length, MPI_CHAR, 0, MPI_COMM_WORLD);
  return text;
}

}  // namespace

World::World(const RunConfig& config, const RankEnvironment& ranks) {
  if (ranks.size > 0 && config.tensor_parallel_size_given && config.tensor_parallel_size != ranks.size &&
      config.subcommand != Subcommand::kInspect) {
    throw UsageError(fmt::format("--tensor-parallel-size is {}, but {} started {} {}", config.tensor_parallel_size, ranks.started_by,
                                 ranks.size, ranks.size == 1 ? "rank" : "ranks"));
  }
  if (ranks.size <= 1) return;
  // A thread of its own may abort the communicator, so one thread at a time is what is asked for.
  int provided = 0;
  if (MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided) != MPI_SUCCESS)
    throw std::runtime_error("MPI can not be started");
  uses_mpi_ = true;
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
  MPI_Comm_size(MPI_COMM_WORLD, &size_);
  if (size_ != ranks.size) {
    throw UsageError(fmt::format("{} started {} ranks, but this program's MPI library ({}) counts {}: they come from two MPI installations",
                                 ranks.started_by, ranks.size, mpi_library_version(), size_));
  }
  if (provided < MPI_THREAD_SERIALIZED)
    throw std::runtime_error(fmt::format("this MPI library ({}) was built without threads", mpi_library_version()));
  MPI_Comm local;
  MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, rank_, MPI_INFO_NULL, &local);
  MPI_Comm_rank(local, &local_rank_);
  MPI_Comm_size(local, &local_size_);
  sharers_ = find_sharers(local, local_rank_, local_size_);
  MPI_Comm_free(&local);
}

std::unique_ptr<comm::Communicator> World::make_communicator(const std::string& kind, const comm::CommunicatorOptions& options) const {
  if (kind == "self" || !uses_mpi_) return comm::make_self_communicator();
  if (kind == "mpi") return comm::make_mpi_communicator(MPI_COMM_WORLD, options);
  std::unique_ptr<comm::ShmRegion> region;
  if (rank_ == 0) region = std::make_unique<comm::ShmRegion>(size_, options);
  const std::string name = share_text(region ? region->name() : "");
  return comm::make_shm_communicator(name, rank_, size_, options);
}

void World::finalize() {
  if (uses_mpi_) MPI_Finalize();
  uses_mpi_ = false;
}

std::string choose_communicator(const std::string& asked, int size, int local_size) {
  const auto refuse = [&](std::string_view why) { throw UsageError(fmt::format("--comm {}: {}", asked, why)); };
  if (asked == "self" && size > 1) refuse(fmt::format("it is for one rank, and there are {}", size));
  if (asked == "shm" && local_size < size) refuse(fmt::format("only {} of the {} ranks are on this machine", local_size, size));
  if (asked == "threads" && size > 1) refuse("ranks are threads of one process there, so mpirun must not start several");
  if (asked != "auto") return asked;
  if (size == 1) return "self";
  return local_size == size ? "shm" : "mpi";
}

std::string mpi_library_version() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING + 1] = {};
  int length = 0;
  MPI_Get_library_version(text, &length);
  const std::string version = text;
  return version.substr(0, version.find_first_of(",\n\r"));  // the name; packagers append where they built it
}

}  // namespace lockstep::launcher
