#include "comm/self_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "comm/forwarding_communicator.h"
#include "tests/comm/rank_runner.h"

namespace lockstep::comm {
namespace {

using testing::AllOf;
using testing::HasSubstr;

/// Passes everything on to another communicator, but spoils one value of every sum.
class SpoiledSums final : public ForwardingCommunicator {
 public:
  using ForwardingCommunicator::ForwardingCommunicator;
  void all_reduce(const TreeSum& tree, float* values, std::size_t count) override {
    next().all_reduce(tree, values, count);
    values[count - 1] += 1;
  }
};

TEST(SelfCheck, AWrongSumFailsEveryRankAndNamesTheValue) {
  const Outcomes outcomes = run_threads(2, {}, [](Communicator& communicator) {
    SpoiledSums spoiled(communicator);
    if (communicator.rank() == 1) {
      check_transport(spoiled);
    } else {
      check_transport(communicator);
    }
  });
  for (const std::string& outcome : outcomes)
    EXPECT_THAT(outcome, HasSubstr("rank 1 got a wrong result: value 999 of a sum over 2 ranks is 19"));
}

TEST(SelfCheck, ARankThatSleepsIsNamedWithHintsAboutSharedMemory) {
  CommunicatorOptions options;
  options.deadline = std::chrono::milliseconds(200);
  const Outcomes outcomes = run_shm(3, options, [](Communicator& communicator) {
    if (communicator.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(600));
    check_transport(communicator);
  });
  for (const std::string& outcome : outcomes) {
    EXPECT_THAT(outcome,
                AllOf(HasSubstr("transport check (shm, 3 ranks): rank 1 is late"), HasSubstr("/dev/shm: "), HasSubstr(" MiB free")));
  }
}

}  // namespace
}  // namespace lockstep::comm
