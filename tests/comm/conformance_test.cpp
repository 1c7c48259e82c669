#include "tests/comm/conformance.h"

#include <gtest/gtest.h>

#include "tests/comm/rank_runner.h"

namespace lockstep::comm {
namespace {

struct Implementation {
  std::string name;
  Runner run;
  std::vector<int> sizes;
};

std::vector<Implementation> implementations() {
  return {{"Self", run_self, {1}}, {"Threads", run_threads, {1, 2, 3, 4, 7, 9}}, {"Shm", run_shm, {1, 2, 3, 4}}};
}

class Conformance : public testing::Test {
 public:
  Conformance(Runner run, int size, Body body) : run_(std::move(run)), size_(size), body_(std::move(body)) {}
  void TestBody() override {
    const Outcomes outcomes = run_(size_, conformance::small_options(), body_);
    ASSERT_EQ(outcomes.size(), static_cast<std::size_t>(size_));
    for (const std::string& outcome : outcomes) EXPECT_EQ(outcome, "");
  }

 private:
  Runner run_;
  int size_;
  Body body_;
};

/// Every implementation x number of ranks x case is a test of its own.
const bool registered = [] {
  std::vector<conformance::Case> cases = conformance::cases();
  for (const conformance::Case& failing : conformance::failing_cases()) cases.push_back(failing);
  for (const Implementation& implementation : implementations()) {
    for (const int size : implementation.sizes) {
      for (const conformance::Case& each : cases) {
        testing::RegisterTest((implementation.name + "Of" + std::to_string(size)).c_str(), each.name.c_str(), nullptr, nullptr, __FILE__,
                              __LINE__, [=]() -> testing::Test* { return new Conformance(implementation.run, size, each.run); });
      }
    }
  }
  return true;
}();

}  // namespace
}  // namespace lockstep::comm
