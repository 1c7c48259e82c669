#pragma once

#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "comm/self.h"
#include "comm/threads.h"
#include "tests/comm/conformance.h"

/// Runs one body on every rank of an implementation, and says what went wrong on each.
namespace lockstep::comm {

using Body = std::function<void(Communicator&)>;

/// What `body` threw, empty if nothing; first of all the world must have the size that was asked for.
inline std::string outcome(Communicator& communicator, int rank, int size, const Body& body) {
  try {
    conformance::require(communicator.size() == size,
                         "the world has " + std::to_string(communicator.size()) + " ranks, not " + std::to_string(size));
    conformance::require(communicator.rank() == rank,
                         "rank " + std::to_string(rank) + " believes to be rank " + std::to_string(communicator.rank()));
    body(communicator);
  } catch (const std::exception& error) {
    return "rank " + std::to_string(rank) + ": " + error.what();
  }
  return {};
}

using Outcomes = std::vector<std::string>;  // one per rank; all empty if all is well
using Runner = std::function<Outcomes(int size, const CommunicatorOptions& options, const Body& body)>;

inline Outcomes run_self(int size, const CommunicatorOptions&, const Body& body) {
  return {outcome(*make_self_communicator(), 0, size, body)};
}

inline Outcomes run_threads(int size, const CommunicatorOptions& options, const Body& body) {
  auto communicators = make_thread_communicators(size, options);
  Outcomes outcomes(static_cast<std::size_t>(size));
  std::vector<std::thread> threads;
  for (std::size_t rank = 0; rank < outcomes.size(); ++rank) {
    threads.emplace_back([&, rank] {
      outcomes[rank] = outcome(*communicators[rank], static_cast<int>(rank), size, body);
      communicators[rank].reset();
    });
  }
  for (std::thread& thread : threads) thread.join();
  return outcomes;
}

}  // namespace lockstep::comm
