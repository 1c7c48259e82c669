#include "comm/self_check.h"

#include <algorithm>
#include <array>

#include <sys/statvfs.h>

namespace lockstep::comm {
namespace {

/// One root per rank, added one after the other.
TreeSum plain_chain(int ranks) {
  TreeSum tree;
  tree.roots_per_rank.assign(static_cast<std::size_t>(ranks), 1);
  for (int rank = 1; rank < ranks; ++rank) tree.merges.push_back({0, static_cast<std::uint32_t>(rank)});
  return tree;
}

void wrong(Communicator& communicator, const std::string& what) {
  const std::string text = "rank " + std::to_string(communicator.rank()) + " got a wrong result: " + what;
  communicator.abort(text);
  throw CommError(text);
}

/// Rank r gives (r + 1) * (i mod 7 + 1) at place i: small whole numbers, so the sum is exact.
void check_sum(Communicator& communicator, const TreeSum& tree, std::span<float> values) {
  const auto rank = static_cast<std::size_t>(communicator.rank());
  const auto ranks = static_cast<std::size_t>(communicator.size());
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>((rank + 1) * (i % 7 + 1));
  communicator.all_reduce(tree, values.data(), values.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::size_t sum_of_ranks = ranks * (ranks + 1) / 2;
    const auto expected = static_cast<float>(sum_of_ranks * (i % 7 + 1));
    if (values[i] == expected) continue;
    wrong(communicator, "value " + std::to_string(i) + " of a sum over " + std::to_string(ranks) + " ranks is " +
                            std::to_string(values[i]) + ", not " + std::to_string(expected));
  }
}

void check_gather(Communicator& communicator) {
  const auto ranks = static_cast<std::size_t>(communicator.size());
  const std::vector<std::size_t> sizes(ranks, 1);
  const std::byte mine = static_cast<std::byte>(communicator.rank() + 1);
  std::vector<std::byte> all(ranks);
  communicator.all_gather({&mine, 1}, all, sizes);
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    if (all[rank] != static_cast<std::byte>(rank + 1)) wrong(communicator, "the byte of rank " + std::to_string(rank) + " in a gather");
  }
}

std::string hints(const Communicator& communicator) {
  std::string text = "\n  /dev/shm: ";
  struct statvfs shm {};
  if (statvfs("/dev/shm", &shm) == 0) {
    const auto mebibytes = [&](auto blocks) { return std::to_string(static_cast<std::uint64_t>(blocks) * shm.f_frsize >> 20) + " MiB"; };
    text += mebibytes(shm.f_blocks) + ", " + mebibytes(shm.f_bavail) + " free (containers: --shm-size=1g or --ipc=host)";
  } else {
    text += "absent";
  }
  if (communicator.name() == "mpi") {
    text +=
        "\n  network: --mca btl_tcp_if_include INTERFACE (or --mca btl self,vader on one machine) chooses the interface; firewalls must "
        "let ranks connect";
    text += "\n  the program and mpirun must come from one MPI installation";
  }
  return text;
}

}  // namespace

std::chrono::nanoseconds check_transport(Communicator& communicator) {
  try {
    const TreeSum tree = plain_chain(communicator.size());
    std::vector<float> values(1000);
    check_sum(communicator, tree, values);
    check_gather(communicator);
    auto best = std::chrono::nanoseconds::max();
    for (int attempt = 0; attempt < 5; ++attempt) {
      const auto start = std::chrono::steady_clock::now();
      check_sum(communicator, tree, std::span(values).first(1));
      best = std::min<std::chrono::nanoseconds>(best, std::chrono::steady_clock::now() - start);
    }
    return best;
  } catch (const CommError& error) {
    throw CommError("transport check (" + std::string(communicator.name()) + ", " + std::to_string(communicator.size()) +
                    " ranks): " + error.what() + hints(communicator));
  }
}

}  // namespace lockstep::comm
