#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "comm/communicator.h"
#include "device/cpu/cpu_device.h"

/// What the sums of every communicator must be. See conformance.h.
namespace lockstep::comm::conformance {

inline void require(bool holds, const std::string& what) {
  if (!holds) throw std::runtime_error("conformance: " + what);
}

/// `num_leaves` leaves shared as evenly as possible, larger shares first; a tree over n leaves splits after the largest power of two below
/// n.
struct SharedTree {
  TreeSum sum;
  std::vector<std::vector<std::pair<std::size_t, std::size_t>>> roots_of_rank;  // runs of leaves

  SharedTree(std::size_t num_leaves, int ranks) : roots_of_rank(static_cast<std::size_t>(ranks)) {
    std::size_t begin = 0;
    for (std::size_t rank = 0; rank < roots_of_rank.size(); ++rank) {
      const std::size_t size = num_leaves / roots_of_rank.size() + (rank < num_leaves % roots_of_rank.size() ? 1 : 0);
      collect(0, num_leaves, begin, begin + size, roots_of_rank[rank]);
      sum.roots_per_rank.push_back(static_cast<std::uint32_t>(roots_of_rank[rank].size()));
      begin += size;
    }
    std::vector<std::pair<std::size_t, std::size_t>> all;
    for (const auto& roots : roots_of_rank) all.insert(all.end(), roots.begin(), roots.end());
    merge(0, num_leaves, all);
  }

 private:
  static std::size_t middle(std::size_t begin, std::size_t end) { return begin + std::bit_floor(end - begin - 1); }

  static void collect(std::size_t begin, std::size_t end, std::size_t from, std::size_t to,
                      std::vector<std::pair<std::size_t, std::size_t>>& found) {
    if (end <= from || to <= begin) return;
    if (from <= begin && end <= to) {
      found.emplace_back(begin, end);
      return;
    }
    collect(begin, middle(begin, end), from, to, found);
    collect(middle(begin, end), end, from, to, found);
  }

  std::uint32_t merge(std::size_t begin, std::size_t end, const std::vector<std::pair<std::size_t, std::size_t>>& all) {
    for (std::uint32_t root = 0; root < all.size(); ++root) {
      if (all[root] == std::pair(begin, end)) return root;
    }
    const std::uint32_t into = merge(begin, middle(begin, end), all);
    const std::uint32_t from = merge(middle(begin, end), end, all);
    sum.merges.push_back({into, from});
    return into;
  }
};

using LeafValue = std::function<float(std::size_t leaf, std::size_t index)>;

/// The sum of leaves [begin, end) in the plain tree, as one rank alone would add them.
inline float plain_tree(const LeafValue& value, std::size_t begin, std::size_t end, std::size_t index) {
  if (end - begin == 1) return value(begin, index);
  const std::size_t middle = begin + std::bit_floor(end - begin - 1);
  return plain_tree(value, begin, middle, index) + plain_tree(value, middle, end, index);
}

inline std::vector<float> reduced(Communicator& communicator, const SharedTree& tree, const LeafValue& value, std::size_t count) {
  const auto& roots = tree.roots_of_rank[static_cast<std::size_t>(communicator.rank())];
  std::vector<float> values(std::max<std::size_t>(roots.size(), 1) * count);
  for (std::size_t root = 0; root < roots.size(); ++root) {
    for (std::size_t i = 0; i < count; ++i) values[root * count + i] = plain_tree(value, roots[root].first, roots[root].second, i);
  }
  communicator.all_reduce(tree.sum, values.data(), count);
  values.resize(count);
  return values;
}

inline float noise(std::size_t leaf, std::size_t index) {
  std::uint64_t bits = (leaf + 1) * 0x9e3779b97f4a7c15u + index * 0xbf58476d1ce4e5b9u;
  bits ^= bits >> 31;
  bits *= 0x94d049bb133111ebu;
  bits ^= bits >> 29;
  return std::ldexp(static_cast<float>(static_cast<std::int64_t>(bits)), static_cast<int>(bits % 24) - 80);
}

inline const std::vector<std::size_t>& counts() {  // around cache lines, the direct limit and the slot, and far beyond
  static const std::vector<std::size_t> all = {0,   1,   2,   15,   16,   17,   31,   255,  257,  576,
                                               699, 700, 701, 1023, 1024, 1025, 2047, 3000, 5003, 20011};
  return all;
}

inline void sums_are_the_bits_of_the_plain_tree(Communicator& communicator) {
  for (const std::size_t leaves : {std::size_t{9}, std::size_t{16}, std::size_t{1}, static_cast<std::size_t>(communicator.size())}) {
    const SharedTree tree(leaves, communicator.size());
    for (const std::size_t count : counts()) {
      const std::vector<float> sum = reduced(communicator, tree, noise, count);
      for (std::size_t i = 0; i < count; ++i) {
        const float expected = plain_tree(noise, 0, leaves, i);
        require(std::bit_cast<std::uint32_t>(sum[i]) == std::bit_cast<std::uint32_t>(expected),
                "value " + std::to_string(i) + " of " + std::to_string(count) + " over " + std::to_string(leaves) + " leaves is " +
                    std::to_string(sum[i]) + ", not " + std::to_string(expected));
      }
    }
  }
}

inline void sums_have_the_closed_form(Communicator& communicator) {
  const SharedTree tree(9, communicator.size());
  if (communicator.size() == 2)
    require(tree.sum.roots_per_rank == std::vector<std::uint32_t>{2, 3}, "nine leaves on two ranks are 2 and 3 roots");
  for (const std::size_t count : counts()) {
    const auto value = [](std::size_t leaf, std::size_t i) { return static_cast<float>((leaf + 1) * (i % 13 + 1)); };
    const std::vector<float> sum = reduced(communicator, tree, value, count);
    for (std::size_t i = 0; i < count; ++i)
      require(sum[i] == static_cast<float>(45 * (i % 13 + 1)), "value " + std::to_string(i) + " is not its closed form");
  }
}

inline void negative_zero_stays(Communicator& communicator) {
  for (const std::size_t count : {std::size_t{5}, std::size_t{3000}}) {
    const std::vector<float> sum = reduced(
        communicator, SharedTree(9, communicator.size()), [](std::size_t, std::size_t) { return -0.0f; }, count);
    for (const float value : sum) require(std::bit_cast<std::uint32_t>(value) == 0x80000000u, "-0 has become +0");
  }
}

/// Sums one after the other within a step, as a model has them, on a device that may leave the adding for later.
inline void sums_with_their_norms_are_the_two_calls(Communicator& communicator) {
  constexpr std::size_t kColumns = 96, kMostRows = 60;
  const std::vector<float> weight(kColumns, 0.75f);
  const device::Norm norm = device::Norm::rms(weight.data(), 1e-5f);
  for (const std::size_t threads : {1, 2}) {
    const auto device = device::make_cpu_device({.num_threads = threads});
    for (const std::size_t leaves : {std::size_t{9}, static_cast<std::size_t>(communicator.size())}) {
      const SharedTree tree(leaves, communicator.size());
      const auto& roots = tree.roots_of_rank[static_cast<std::size_t>(communicator.rank())];
      for (const std::size_t rows : {std::size_t{1}, std::size_t{2}, std::size_t{9}, kMostRows}) {  // the last needs several slots
        const auto at = [&](std::vector<float>& values) {
          return device::Matrix{values.data(), kColumns, rows, device::Activation::kFloat32};
        };
        std::vector<float> partial(roots.size() * rows * kColumns), sum(rows * kColumns), x(rows * kColumns, 1.0f),
            expected_x = x, out(x.size()), expected(x.size());
        device->run_step([&] {
          for (std::size_t call = 0; call < 5; ++call) {
            const LeafValue value = [call](std::size_t leaf, std::size_t i) { return noise(leaf + call, i); };
            device->begin_host_access(at(partial));
            for (std::size_t i = 0; i < partial.size(); ++i) {
              const auto [first, end] = roots[i / sum.size()];
              partial[i] = plain_tree(value, first, end, i % sum.size());
            }
            const bool looks_on = communicator.rank() == 0 && call % 2 == 1;
            communicator.all_reduce_add_norm(*device, tree.sum, at(partial), rows, {at(x), nullptr, norm, at(out), looks_on});
            if (!looks_on) continue;
            device->begin_host_access(at(partial));
            for (std::size_t i = 0; i < sum.size(); ++i)
              require(partial[i] == plain_tree(value, 0, leaves, i), "the sum that is kept, of " + std::to_string(rows) + " rows");
          }
        });
        for (std::size_t call = 0; call < 5; ++call) {
          const LeafValue value = [call](std::size_t leaf, std::size_t i) { return noise(leaf + call, i); };
          for (std::size_t i = 0; i < sum.size(); ++i) sum[i] = plain_tree(value, 0, leaves, i);
          device->add_norm(at(expected_x), at(sum), rows, nullptr, norm, at(expected));
        }
        const auto same = [](const std::vector<float>& a, const std::vector<float>& b) {
          return std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
        };
        require(same(x, expected_x) && same(out, expected),
                "the sum and norm of " + std::to_string(rows) + " rows over " + std::to_string(leaves) + " leaves");
      }
    }
  }
}

}  // namespace lockstep::comm::conformance
