#pragma once

#include <string>

#include <gtest/gtest.h>

#include "comm/cuda/plugin.h"
#include "tests/support/session_run.h"
#if defined(LOCKSTEP_SIMT)
#include "tests/simt/simt.h"
#endif

extern "C" const lockstep::comm::CudaPlugin* lockstep_cuda_plugin();

/// What tests know of the GPUs that they run on: those of this machine, or emulated ones.
namespace lockstep::test {

/// A run on GPUs, one a rank: the program's own plug-in entry, linked in.
inline RunSetup on_gpus(RunSetup setup, bool graphs = true, bool fast = false) {
  setup.open_rank = [graphs, fast](comm::Communicator& host) {
    return lockstep_cuda_plugin()->open_rank(
        host, {.local_rank = host.rank(), .local_size = host.size(), .graphs = graphs, .fast = fast, .deadline = std::chrono::seconds(60)});
  };
  return setup;
}

/// Why `ranks` ranks can not have a GPU each; empty if they can. An emulator starts anew.
inline std::string missing_gpus(int ranks) {
#if defined(LOCKSTEP_SIMT)
  simt::reset();
#endif
  std::string problem;
  const int usable = lockstep_cuda_plugin()->count_devices(problem);
  if (usable >= ranks) return {};
  if (usable == 0) return "there is no GPU to test: " + problem;
  return "there are " + std::to_string(usable) + " GPUs, and " + std::to_string(ranks) + " are needed";
}

/// An emulator is slow: tests that have a part that is enough for it run that.
#if defined(LOCKSTEP_SIMT)
inline constexpr bool kEmulated = true;
#else
inline constexpr bool kEmulated = false;
#endif

/// What an emulator found wrong; real GPUs tell by the results.
inline std::string fault_of_gpus() {
#if defined(LOCKSTEP_SIMT)
  return simt::last_error();
#else
  return {};
#endif
}

/// Skips its tests where there is no GPU, or there are fewer than they need.
template <class Base>
class OnGpus : public Base {
 protected:
  void SetUp() override {
    if (const std::string missing = missing_gpus(ranks()); !missing.empty()) GTEST_SKIP() << missing;
  }
  void TearDown() override { EXPECT_EQ(fault_of_gpus(), ""); }
  virtual int ranks() const { return 1; }
};

}  // namespace lockstep::test
