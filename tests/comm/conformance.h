#pragma once

#include <chrono>
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
#include "tests/comm/conformance_sums.h"

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

template <class Function>
std::string error_of(const Function& function) {
  try {
    function();
  } catch (const CommError& error) {
    return error.what();
  }
  return {};
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
