// The conformance suite over MPI: mpirun -n N mpi_conformance N. It exits with 0 only if every case holds on every rank of a world of N.

#include <cstdio>
#include <cstdlib>

#include <mpi.h>

#include "comm/mpi.h"
#include "tests/comm/conformance.h"

namespace lockstep::comm {
namespace {

using std::chrono::milliseconds;

void run_case(const conformance::Case& each, int rank, const CommunicatorOptions& options, int& failures) {
  int failed = 0;
  try {
    const auto communicator = make_mpi_communicator(MPI_COMM_WORLD, options);
    each.run(*communicator);
  } catch (const std::exception& error) {
    failed = 1;
    std::fprintf(stderr, "%s, rank %d: %s\n", each.name.c_str(), rank, error.what());
  }
  MPI_Allreduce(MPI_IN_PLACE, &failed, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  if (failed != 0) ++failures;
  if (rank == 0) std::printf("%-4s %s\n", failed != 0 ? "FAIL" : "ok", each.name.c_str());
}

void a_rank_that_sleeps_is_named_at_the_deadline(Communicator& communicator) {
  Position position{5, "n11 linear"};
  communicator.set_position(position);
  communicator.barrier();
  if (communicator.rank() + 1 == communicator.size()) std::this_thread::sleep_for(milliseconds(900));
  const auto start = std::chrono::steady_clock::now();
  const std::string error = conformance::error_of([&] { communicator.barrier(); });
  conformance::require(std::chrono::steady_clock::now() - start < milliseconds(1000), "the deadline of 300 ms comes late");
  const std::string late = "rank " + std::to_string(communicator.size() - 1);
  for (const std::string& part :
       {late + " is late", late + ": not heard from; last in collective 2: barrier, at step 5, node n11 linear"}) {
    conformance::require(error.find(part) != std::string::npos, "\"" + part + "\" is not in: " + error);
  }
}

void an_abort_from_another_thread_ends_the_wait(Communicator& communicator) {
  std::thread other;
  if (communicator.rank() == 0) {
    other = std::thread([&] {
      std::this_thread::sleep_for(milliseconds(50));
      communicator.abort("SIGTERM came twice");
    });
  } else if (communicator.rank() == 1) {
    std::this_thread::sleep_for(milliseconds(200));
  }
  const std::string error = conformance::error_of([&] { communicator.barrier(); });
  if (other.joinable()) other.join();
  conformance::require(error == "SIGTERM came twice", "the abort arrives as \"" + error + "\"");
}

void a_rank_that_is_unwound_tells_its_peers(int rank, int& failures) {
  const auto body = [&] {
    if (rank == 0) {
      const auto start = std::chrono::steady_clock::now();
      const std::string error = conformance::error_of([] {  // the news may come before rank 0 has its own communicator
        const auto communicator = make_mpi_communicator(MPI_COMM_WORLD);
        communicator->barrier();
      });
      conformance::require(error.find("rank 1 has left because of an error") != std::string::npos, "the peer sees \"" + error + "\"");
      conformance::require(std::chrono::steady_clock::now() - start < milliseconds(2000), "it takes too long");
      return;
    }
    try {
      const auto communicator = make_mpi_communicator(MPI_COMM_WORLD);
      if (rank == 1) throw std::runtime_error("out of memory");
      (void)conformance::error_of([&] { communicator->barrier(); });
    } catch (const std::runtime_error&) {
    }
  };
  conformance::Case each{"ARankThatIsUnwoundTellsItsPeers", [&](Communicator&) { body(); }};
  run_case(each, rank, {}, failures);
}

int run(int expected_size) {
  int rank = 0;
  int size = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  if (size != expected_size) {
    if (rank == 0) std::fprintf(stderr, "the world has %d ranks, not %d\n", size, expected_size);
    return 1;
  }
  int failures = 0;
  const CommunicatorOptions small = conformance::small_options();
  for (const conformance::Case& each : conformance::cases()) run_case(each, rank, small, failures);
  for (const conformance::Case& each : conformance::failing_cases()) run_case(each, rank, small, failures);
  CommunicatorOptions hasty;
  hasty.deadline = milliseconds(300);
  run_case({"ARankThatSleepsIsNamedAtTheDeadline", a_rank_that_sleeps_is_named_at_the_deadline}, rank, hasty, failures);
  run_case({"AnAbortFromAnotherThreadEndsTheWait", an_abort_from_another_thread_ends_the_wait}, rank, small, failures);
  a_rank_that_is_unwound_tells_its_peers(rank, failures);
  return failures == 0 ? 0 : 1;
}

}  // namespace
}  // namespace lockstep::comm

int main(int argc, char** argv) {
  int level = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &level);
  const int code = argc == 2 ? lockstep::comm::run(std::atoi(argv[1])) : 2;
  MPI_Finalize();
  return code;
}
