#pragma once

#include <bit>
#include <chrono>
#include <cstring>
#include <functional>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "comm/communicator.h"
#include "comm/control_channel.h"
#include "comm/options.h"
#include "comm/self_check.h"
#include "device/cpu/cpu_device.h"

/// What every communicator must do, whichever implementation it is. A case runs on all ranks at once and throws where the communicator is
/// wrong, so that it runs alike in threads, in forked processes and under mpirun.
namespace lockstep::comm::conformance {

/// Small slots and a low limit for slices, so that messages of a few thousand values take every path.
inline CommunicatorOptions small_options() {
  CommunicatorOptions options;
  options.deadline = std::chrono::seconds(30);
  options.slot_bytes = 4096;
  options.slice_from_additions = 700;
  return options;
}

struct Case {
  std::string name;
  std::function<void(Communicator&)> run;
};

inline void require(bool holds, const std::string& what) {
  if (!holds) throw std::runtime_error("conformance: " + what);
}

template <class Function>
std::string error_of(const Function& function) {
  try {
    function();
  } catch (const CommError& error) {
    return error.what();
  }
  return {};
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

inline std::byte pattern(std::size_t rank, std::size_t index) { return static_cast<std::byte>(rank * 31 + index * 7 + index / 251); }

inline std::vector<std::byte> filled(std::size_t rank, std::size_t bytes) {
  std::vector<std::byte> data(bytes);
  for (std::size_t i = 0; i < bytes; ++i) data[i] = pattern(rank, i);
  return data;
}

/// Sizes of which some are zero, some end at a slot and some are far beyond it.
inline std::vector<std::size_t> uneven_sizes(int ranks, std::size_t variant) {
  static const std::vector<std::size_t> sizes = {0, 1, 4096, 63, 0, 4097, 20001, 12288, 5};
  std::vector<std::size_t> chosen;
  for (std::size_t rank = 0; rank < static_cast<std::size_t>(ranks); ++rank) chosen.push_back(sizes[(rank + variant) % sizes.size()]);
  return chosen;
}

inline std::vector<std::byte> concatenated(const std::vector<std::size_t>& sizes) {
  std::vector<std::byte> all;
  for (std::size_t rank = 0; rank < sizes.size(); ++rank) {
    const std::vector<std::byte> part = filled(rank, sizes[rank]);
    all.insert(all.end(), part.begin(), part.end());
  }
  return all;
}

inline void all_gather_brings_all_parts_in_order(Communicator& communicator) {
  for (std::size_t variant = 0; variant < 9; ++variant) {
    const std::vector<std::size_t> sizes = uneven_sizes(communicator.size(), variant);
    const std::vector<std::byte> mine =
        filled(static_cast<std::size_t>(communicator.rank()), sizes[static_cast<std::size_t>(communicator.rank())]);
    const std::vector<std::byte> expected = concatenated(sizes);
    std::vector<std::byte> all(expected.size());
    communicator.all_gather(mine, all, sizes);
    require(all == expected, "all_gather variant " + std::to_string(variant));
  }
  const std::vector<std::size_t> nothing(static_cast<std::size_t>(communicator.size()), 0);
  communicator.all_gather({}, {}, nothing);
}

inline void gather_brings_all_parts_to_each_root(Communicator& communicator) {
  for (int root = 0; root < communicator.size(); ++root) {
    const std::vector<std::size_t> sizes = uneven_sizes(communicator.size(), static_cast<std::size_t>(root) + 2);
    const std::vector<std::byte> mine =
        filled(static_cast<std::size_t>(communicator.rank()), sizes[static_cast<std::size_t>(communicator.rank())]);
    const std::vector<std::byte> expected = concatenated(sizes);
    std::vector<std::byte> all(communicator.rank() == root ? expected.size() : 0);
    communicator.gather(mine, all, sizes, root);
    require(communicator.rank() != root || all == expected, "gather to rank " + std::to_string(root));
  }
}

inline void broadcast_reaches_everyone_from_each_root(Communicator& communicator) {
  for (int root = 0; root < communicator.size(); ++root) {
    for (const std::size_t bytes : {0, 1, 64, 4095, 4096, 4097, 40000}) {
      const std::vector<std::byte> expected = filled(static_cast<std::size_t>(root), bytes);
      std::vector<std::byte> data(bytes);
      if (communicator.rank() == root) data = expected;
      communicator.broadcast(data, root);
      require(data == expected, "broadcast of " + std::to_string(bytes) + " bytes from rank " + std::to_string(root));
    }
  }
}

inline void nobody_leaves_a_barrier_before_all_have_come(Communicator& communicator) {
  using Time = std::chrono::steady_clock::time_point;  // one clock for all processes of a machine
  const std::size_t ranks = static_cast<std::size_t>(communicator.size());
  for (std::size_t round = 0; round < 5; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds((static_cast<std::size_t>(communicator.rank()) + round) % ranks * 3));
    Time times[2] = {};
    times[0] = std::chrono::steady_clock::now();
    communicator.barrier();
    times[1] = std::chrono::steady_clock::now();
    std::vector<Time> all(2 * ranks);
    const std::vector<std::size_t> sizes(ranks, sizeof times);
    communicator.all_gather(std::as_bytes(std::span(times)), std::as_writable_bytes(std::span(all)), sizes);
    for (std::size_t a = 0; a < ranks; ++a) {
      for (std::size_t b = 0; b < ranks; ++b)
        require(all[2 * a] <= all[2 * b + 1], "rank " + std::to_string(b) + " left the barrier too early");
    }
  }
}

inline void mixed_calls_keep_their_order(Communicator& communicator) {
  std::mt19937 random(11);  // the same calls on every rank
  const SharedTree tree(9, communicator.size());
  for (int call = 0; call < 400; ++call) {
    const std::size_t size = random() % 2500;
    switch (random() % 4) {
      case 0: {
        const auto value = [&](std::size_t leaf, std::size_t i) {
          return static_cast<float>(leaf + i % 5 + static_cast<std::size_t>(call));
        };
        const std::vector<float> sum = reduced(communicator, tree, value, size);
        for (std::size_t i = 0; i < size; ++i)
          require(sum[i] == static_cast<float>(36 + 9 * (i % 5 + static_cast<std::size_t>(call))), "a sum among mixed calls");
        break;
      }
      case 1: {
        const int root = static_cast<int>(random() % static_cast<unsigned>(communicator.size()));
        std::vector<std::byte> data(size);
        if (communicator.rank() == root) data = filled(static_cast<std::size_t>(call), size);
        communicator.broadcast(data, root);
        require(data == filled(static_cast<std::size_t>(call), size), "a broadcast among mixed calls");
        break;
      }
      case 2: {
        const std::vector<std::size_t> sizes = uneven_sizes(communicator.size(), size);
        std::vector<std::byte> all(concatenated(sizes).size());
        communicator.all_gather(filled(static_cast<std::size_t>(communicator.rank()), sizes[static_cast<std::size_t>(communicator.rank())]),
                                all, sizes);
        require(all == concatenated(sizes), "an all_gather among mixed calls");
        break;
      }
      default: communicator.barrier();
    }
  }
}

inline void control_messages_arrive_in_order(Communicator& communicator) {
  ControlChannel channel(communicator);
  const std::vector<std::size_t> sizes = {0, 1, 999, 1000, 1001, 4096, 5, 100000, 0};
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    const std::vector<std::byte> message = filled(i, sizes[i]);
    if (communicator.rank() == 0) {
      channel.send(message);
    } else {
      require(channel.receive() == message, "control message " + std::to_string(i));
    }
  }
}

inline void the_self_check_passes(Communicator& communicator) {
  const std::chrono::nanoseconds time = check_transport(communicator);
  require(time.count() > 0 && time < std::chrono::seconds(1), "a tiny all_reduce took " + std::to_string(time.count()) + " ns");
}

/// The cases after which the communicator can still be used.
inline std::vector<Case> cases() {
  return {{"SumsAreTheBitsOfThePlainTree", sums_are_the_bits_of_the_plain_tree},
          {"SumsHaveTheClosedForm", sums_have_the_closed_form},
          {"NegativeZeroStays", negative_zero_stays},
          {"SumsWithTheirNormsAreTheTwoCalls", sums_with_their_norms_are_the_two_calls},
          {"AllGatherBringsAllPartsInOrder", all_gather_brings_all_parts_in_order},
          {"GatherBringsAllPartsToEachRoot", gather_brings_all_parts_to_each_root},
          {"BroadcastReachesEveryoneFromEachRoot", broadcast_reaches_everyone_from_each_root},
          {"NobodyLeavesABarrierBeforeAllHaveCome", nobody_leaves_a_barrier_before_all_have_come},
          {"MixedCallsKeepTheirOrder", mixed_calls_keep_their_order},
          {"ControlMessagesArriveInOrder", control_messages_arrive_in_order},
          {"TheSelfCheckPasses", the_self_check_passes}};
}

inline void every_later_call_throws(Communicator& communicator, const std::string& reason) {
  std::byte byte{};
  const std::string broadcast = error_of([&] { communicator.broadcast({&byte, 1}, 0); });
  require(broadcast == reason, "a broadcast after the failure says \"" + broadcast + "\"");
  const std::string barrier = error_of([&] { communicator.barrier(); });
  require(barrier == reason, "a barrier after the failure says \"" + barrier + "\"");
}

inline void an_abort_reaches_everyone(Communicator& communicator) {
  const std::string reason = "rank 0 could not read weights/model-00001: bad magic";
  if (communicator.rank() == 0) {
    std::this_thread::sleep_for(std::chrono::milliseconds(30));  // let the others wait in their call
    communicator.abort(reason);
    communicator.abort("a second reason, which must not replace the first");
  }
  const auto start = std::chrono::steady_clock::now();
  const std::string error = error_of([&] { communicator.barrier(); });
  require(error.find(reason) != std::string::npos, "the abort arrives as \"" + error + "\"");
  require(std::chrono::steady_clock::now() - start < std::chrono::seconds(2), "the abort takes too long");
  every_later_call_throws(communicator, error);
}

/// check() is silent as long as all is well, and throws the reason soon after another rank gave up, without a collective.
inline void a_check_finds_an_abort(Communicator& communicator) {
  const std::string early = error_of([&] { communicator.check(); });
  require(early.empty(), "a check before any call says \"" + early + "\"");
  communicator.barrier();
  const std::string between = error_of([&] { communicator.check(); });
  require(between.empty(), "a check between calls says \"" + between + "\"");
  communicator.barrier();  // all have looked
  const std::string reason = "rank 0 could not allocate 64 bytes";
  if (communicator.rank() == 0) communicator.abort(reason);
  const auto start = std::chrono::steady_clock::now();
  std::string error;
  while (error.empty() && std::chrono::steady_clock::now() - start < std::chrono::seconds(2)) {
    error = error_of([&] { communicator.check(); });
  }
  require(error == reason, "the abort arrives in a check as \"" + error + "\"");
  every_later_call_throws(communicator, error);
}

inline void other_operations_are_found(Communicator& communicator) {
  std::vector<float> values(8);
  const std::string error = error_of([&] {
    if (communicator.rank() + 1 == communicator.size()) {
      communicator.barrier();
    } else {
      SharedTree tree(static_cast<std::size_t>(communicator.size()), communicator.size());
      communicator.all_reduce(tree.sum, values.data(), values.size());
    }
  });
  if (communicator.size() == 1) return;
  require(error.find("all_reduce of 8 values") != std::string::npos && error.find("barrier") != std::string::npos,
          "the mismatch is told as \"" + error + "\"");
  every_later_call_throws(communicator, error);
}

inline void other_sizes_are_found(Communicator& communicator) {
  std::vector<std::byte> data(communicator.rank() == 0 ? 10000 : 12);
  const std::string error = error_of([&] { communicator.broadcast(data, 0); });
  if (communicator.size() == 1) return;
  require(error.find("10000 bytes") != std::string::npos && error.find("12 bytes") != std::string::npos,
          "the mismatch is told as \"" + error + "\"");
  every_later_call_throws(communicator, error);
}

inline void other_shares_are_found(Communicator& communicator) {
  if (communicator.size() < 2) return;
  std::vector<std::size_t> sizes(static_cast<std::size_t>(communicator.size()), 8);
  if (communicator.rank() == 1) {
    sizes[0] = 9;
    sizes[1] = 7;
  }
  std::vector<std::byte> all(8 * sizes.size());
  const std::vector<std::byte> mine(sizes[static_cast<std::size_t>(communicator.rank())]);
  const std::string error = error_of([&] { communicator.all_gather(mine, all, sizes); });
  require(error.find("all_gather") != std::string::npos && error.find("rank 1") != std::string::npos,
          "the mismatch is told as \"" + error + "\"");
}

/// An error in one rank's own arguments: it throws, and its peers are told at once instead of waiting for the deadline.
inline void bad_arguments_fail_everyone(Communicator& communicator) {
  std::vector<std::size_t> sizes(static_cast<std::size_t>(communicator.size()), 4);
  std::vector<std::byte> mine(communicator.rank() == 0 ? 5 : 4);
  std::vector<std::byte> all(4 * sizes.size());
  const std::string error = error_of([&] { communicator.all_gather(mine, all, sizes); });
  require(error.find("gives 5 bytes") != std::string::npos, "the bad argument is told as \"" + error + "\"");
  every_later_call_throws(communicator, error);
}

inline void a_channel_out_of_step_is_found(Communicator& communicator) {
  ControlChannel channel(communicator);
  const std::vector<std::byte> message(3);
  const std::string error = error_of([&] {
    if (communicator.rank() == 0) {
      channel.send(message);
      ControlChannel restarted(communicator);  // counts from 1 again
      restarted.send(message);
      communicator.barrier();
    } else {
      channel.receive();
      channel.receive();
      communicator.barrier();
    }
  });
  if (communicator.size() == 1) return;
  require(error.find("expects message 2, what came says 1") != std::string::npos, "the sequence error is told as \"" + error + "\"");
}

/// The cases that end the life of a communicator.
inline std::vector<Case> failing_cases() {
  return {{"AnAbortReachesEveryone", an_abort_reaches_everyone},
          {"ACheckFindsAnAbort", a_check_finds_an_abort},
          {"OtherOperationsAreFound", other_operations_are_found},
          {"OtherSizesAreFound", other_sizes_are_found},
          {"OtherSharesAreFound", other_shares_are_found},
          {"BadArgumentsFailEveryone", bad_arguments_fail_everyone},
          {"AChannelOutOfStepIsFound", a_channel_out_of_step_is_found}};
}

}  // namespace lockstep::comm::conformance
