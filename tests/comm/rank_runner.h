#pragma once

#include <cstdlib>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include <sys/wait.h>
#include <unistd.h>

#include "comm/self.h"
#include "comm/shm.h"
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

/// What a child wrote before it ended, and how it ended if that was not by itself.
inline std::string child_outcome(pid_t child, int pipe, std::size_t rank) {
  std::string text;
  char buffer[4096];
  for (ssize_t length = 0; (length = read(pipe, buffer, sizeof buffer)) > 0;) text.append(buffer, static_cast<std::size_t>(length));
  close(pipe);
  int status = 0;
  waitpid(child, &status, 0);
  if (WIFSIGNALED(status)) return "rank " + std::to_string(rank) + ": killed by signal " + std::to_string(WTERMSIG(status));
  if (WEXITSTATUS(status) != 0) return "rank " + std::to_string(rank) + ": exit " + std::to_string(WEXITSTATUS(status)) + " " + text;
  return text;
}

/// Every rank a forked child. All of them are reaped only at the end, so that one that dies stays a zombie while the others find out.
inline Outcomes run_shm(int size, const CommunicatorOptions& options, const Body& body) {
  const ShmRegion region(size, options);
  std::vector<std::pair<pid_t, int>> children;
  for (int rank = 0; rank < size; ++rank) {
    int ends[2];
    if (pipe(ends) != 0) throw std::runtime_error("no pipe");
    const pid_t child = fork();
    if (child == 0) {
      std::string text;
      try {
        const auto communicator = make_shm_communicator(region.name(), rank, size, options);
        text = outcome(*communicator, rank, size, body);
      } catch (const std::exception& error) {
        text = "rank " + std::to_string(rank) + " could not attach: " + error.what();
      }
      const bool written = write(ends[1], text.data(), text.size()) == static_cast<ssize_t>(text.size());
      _exit(written ? 0 : 9);
    }
    close(ends[1]);
    children.emplace_back(child, ends[0]);
  }
  Outcomes outcomes;
  for (std::size_t rank = 0; rank < children.size(); ++rank)
    outcomes.push_back(child_outcome(children[rank].first, children[rank].second, rank));
  return outcomes;
}

}  // namespace lockstep::comm
