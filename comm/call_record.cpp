#include "comm/call_record.h"

#include <numeric>

namespace lockstep::comm {
namespace {

// The steps do not depend on each other, so that a digest costs a few nanoseconds.
std::uint64_t mixed(std::uint64_t value, std::uint64_t place) {
  const std::uint64_t product = (value + 1) * (0x9e3779b97f4a7c15u + 2 * place * 0xbf58476d1ce4e5b9u);
  return product ^ (product >> 29);
}

}  // namespace

CallRecord all_reduce_record(const TreeSum& tree, std::size_t count) {
  std::uint64_t layout = mixed(tree.roots_per_rank.size(), 0);
  std::uint64_t place = 1;
  for (const std::uint32_t roots : tree.roots_per_rank) layout += mixed(roots, place++);
  for (const auto [into, from] : tree.merges) layout += mixed((std::uint64_t{into} << 32) | from, place++);
  return {Operation::all_reduce, 0, count, layout};
}

CallRecord gather_record(Operation operation, std::span<const std::size_t> bytes_per_rank, int root) {
  std::uint64_t layout = 0;
  std::uint64_t total = 0;
  std::uint64_t place = 1;
  for (const std::size_t bytes : bytes_per_rank) {
    layout += mixed(bytes, place++);
    total += bytes;
  }
  return {operation, static_cast<std::uint32_t>(root), total, layout};
}

CallRecord broadcast_record(std::size_t bytes, int root) { return {Operation::broadcast, static_cast<std::uint32_t>(root), bytes, 0}; }

CallRecord barrier_record() { return {Operation::barrier, 0, 0, 0}; }

std::string describe(const CallRecord& record) {
  const std::string bytes = std::to_string(record.size) + " bytes";
  const std::string root = std::to_string(record.root);
  switch (record.operation) {
    case Operation::none: return "nothing";
    case Operation::all_reduce:
      return "all_reduce of " + std::to_string(record.size) + " values (" + std::to_string(4 * record.size) + " bytes)";
    case Operation::all_gather: return "all_gather of " + bytes;
    case Operation::gather: return "gather of " + bytes + " to rank " + root;
    case Operation::broadcast: return "broadcast of " + bytes + " from rank " + root;
    case Operation::barrier: return "barrier";
  }
  return "unknown operation " + std::to_string(static_cast<std::uint32_t>(record.operation));
}

std::string describe_mismatch(int rank_a, const CallRecord& a, int rank_b, const CallRecord& b) {
  std::string text = "the ranks disagree: rank " + std::to_string(rank_a) + " called " + describe(a) + ", rank " + std::to_string(rank_b) +
                     " called " + describe(b);
  if (a.operation == b.operation && a.size == b.size && a.root == b.root) {
    text += a.operation == Operation::all_reduce ? ", over another tree" : ", with other shares of the ranks";
  }
  return text;
}

std::string gather_error(std::span<const std::byte> mine, std::span<const std::byte> all, std::span<const std::size_t> bytes_per_rank,
                         int rank, int size, bool receives) {
  if (bytes_per_rank.size() != static_cast<std::size_t>(size)) {
    return "sizes for " + std::to_string(bytes_per_rank.size()) + " ranks were given, there are " + std::to_string(size);
  }
  if (mine.size() != bytes_per_rank[static_cast<std::size_t>(rank)]) {
    return "rank " + std::to_string(rank) + " gives " + std::to_string(mine.size()) + " bytes, but was to give " +
           std::to_string(bytes_per_rank[static_cast<std::size_t>(rank)]);
  }
  const std::size_t total = std::accumulate(bytes_per_rank.begin(), bytes_per_rank.end(), std::size_t{0});
  if (receives && all.size() != total) {
    return "rank " + std::to_string(rank) + " has room for " + std::to_string(all.size()) + " bytes, where " + std::to_string(total) +
           " arrive";
  }
  return {};
}

}  // namespace lockstep::comm
