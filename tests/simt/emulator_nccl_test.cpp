// The stand-in for NCCL: what it computes, and what it says of ranks that do not agree, do not come, or give up.
#include <chrono>
#include <cstring>
#include <functional>
#include <numeric>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nccl.h>

#include "simt/emulator_support.h"
#include "simt/simt.h"

namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

struct Rank {
  int rank = 0;
  int size = 1;
  ncclComm_t communicator = nullptr;
  cudaStream_t stream = nullptr;
};

ncclResult_t settle(ncclComm_t communicator, ncclResult_t result) {
  while (result == ncclInProgress) {
    std::this_thread::yield();
    if (ncclCommGetAsyncError(communicator, &result) != ncclSuccess) return ncclInternalError;
  }
  return result;
}

void run_rank(const ncclUniqueId& id, int rank, int size, int blocking, const std::function<void(Rank&)>& body) {
  Rank self{rank, size};
  cudaSetDevice(rank);
  cudaStreamCreateWithFlags(&self.stream, cudaStreamNonBlocking);
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = blocking;
  const ncclResult_t result = ncclCommInitRankConfig(&self.communicator, size, id, rank, &config);
  EXPECT_EQ(result, blocking != 0 ? ncclSuccess : ncclInProgress);
  EXPECT_EQ(settle(self.communicator, result), ncclSuccess);
  body(self);
  if (self.communicator != nullptr) {
    EXPECT_EQ(settle(self.communicator, ncclCommFinalize(self.communicator)), ncclSuccess);
    EXPECT_EQ(ncclCommDestroy(self.communicator), ncclSuccess);
  }
  cudaStreamDestroy(self.stream);
}

void run_ranks(int size, int blocking, const std::function<void(Rank&)>& body) {
  ncclUniqueId id;
  ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) threads.emplace_back([&, rank] { run_rank(id, rank, size, blocking, body); });
  for (std::thread& thread : threads) thread.join();
}

class Nccl : public simt::EmulatorTest, public ::testing::WithParamInterface<int> {};

INSTANTIATE_TEST_SUITE_P(Ranks, Nccl, ::testing::Values(1, 2, 3, 5));

TEST_P(Nccl, AllReduceAddsUpInPlaceAndElsewhere) {
  run_ranks(GetParam(), 0, [](Rank& self) {
    simt::DeviceArray<float> values(300), sums(300);
    values.set_all(static_cast<float>(self.rank + 1));
    const float expected = static_cast<float>(self.size * (self.size + 1) / 2);
    ncclResult_t result = ncclAllReduce(values.data(), sums.data(), 300, ncclFloat32, ncclSum, self.communicator, self.stream);
    EXPECT_EQ(settle(self.communicator, result), ncclSuccess);
    result = ncclAllReduce(values.data(), values.data(), 300, ncclFloat32, ncclSum, self.communicator, self.stream);
    EXPECT_EQ(settle(self.communicator, result), ncclSuccess);
    EXPECT_EQ(cudaStreamSynchronize(self.stream), cudaSuccess);
    EXPECT_THAT(sums.get(), Each(expected));
    EXPECT_THAT(values.get(), Each(expected));
  });
}

TEST_P(Nccl, GatherScatterAndBroadcastPutEachPartInItsPlace) {
  run_ranks(GetParam(), 1, [](Rank& self) {
    const auto size = static_cast<std::size_t>(self.size);
    simt::DeviceArray<float> all(2 * size), mine(2);
    mine.set({static_cast<float>(self.rank), static_cast<float>(self.rank) + 0.5f});
    EXPECT_EQ(ncclAllGather(mine.data(), all.data(), 2, ncclFloat32, self.communicator, self.stream), ncclSuccess);
    EXPECT_EQ(cudaStreamSynchronize(self.stream), cudaSuccess);
    const std::vector<float> gathered = all.get();
    for (std::size_t i = 0; i < 2 * size; ++i) EXPECT_EQ(gathered[i], static_cast<float>(i) / 2);
    EXPECT_EQ(ncclReduceScatter(all.data(), mine.data(), 2, ncclFloat32, ncclSum, self.communicator, self.stream), ncclSuccess);
    EXPECT_EQ(cudaStreamSynchronize(self.stream), cudaSuccess);
    const float times = static_cast<float>(self.size), rank = static_cast<float>(self.rank);
    EXPECT_THAT(mine.get(), ElementsAre(times * rank, times * (rank + 0.5f)));
    EXPECT_EQ(ncclBroadcast(mine.data(), mine.data(), 2, ncclFloat32, self.size - 1, self.communicator, self.stream), ncclSuccess);
    EXPECT_EQ(cudaStreamSynchronize(self.stream), cudaSuccess);
    EXPECT_THAT(mine.get(), ElementsAre(times * (times - 1), times * (times - 0.5f)));
  });
}

TEST_P(Nccl, SendsAndReceivesOfAGroupAreUnderWayTogether) {
  run_ranks(GetParam(), 0, [](Rank& self) {
    constexpr std::size_t kEach = 40;  // to each peer: more than wait in a channel
    const auto size = static_cast<std::size_t>(self.size);
    simt::DeviceArray<int> from(kEach * size), to(kEach * size);
    std::vector<int> values(kEach * size);
    std::iota(values.begin(), values.end(), 1000 * self.rank);
    from.set(values);
    EXPECT_EQ(ncclGroupStart(), ncclSuccess);
    for (int peer = 0; peer < self.size; ++peer) {
      for (std::size_t i = 0; i < kEach; ++i) {
        const std::size_t at = static_cast<std::size_t>(peer) * kEach + i;
        EXPECT_EQ(ncclSend(from.data() + at, 1, ncclInt32, peer, self.communicator, self.stream), ncclSuccess);
        EXPECT_EQ(ncclRecv(to.data() + at, 1, ncclInt32, peer, self.communicator, self.stream), ncclSuccess);
      }
    }
    EXPECT_EQ(settle(self.communicator, ncclGroupEnd()), ncclSuccess);
    EXPECT_EQ(cudaStreamSynchronize(self.stream), cudaSuccess) << simt::last_error();
    const std::vector<int> received = to.get();
    for (std::size_t i = 0; i < received.size(); ++i) {
      EXPECT_EQ(received[i], 1000 * static_cast<int>(i / kEach) + self.rank * static_cast<int>(kEach) + static_cast<int>(i % kEach));
    }
  });
}

TEST_P(Nccl, ARecordedCollectiveReadsWhatStandsThereAtEachReplay) {
  run_ranks(GetParam(), 0, [](Rank& self) {
    simt::DeviceArray<float> values(8), sums(8);
    EXPECT_EQ(cudaStreamBeginCapture(self.stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
    EXPECT_EQ(settle(self.communicator, ncclAllReduce(values.data(), sums.data(), 8, ncclFloat32, ncclMax, self.communicator, self.stream)),
              ncclSuccess);
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t executable = nullptr;
    ASSERT_EQ(cudaStreamEndCapture(self.stream, &graph), cudaSuccess);
    ASSERT_EQ(cudaGraphInstantiate(&executable, graph, 0), cudaSuccess);
    for (const float round : {1.0f, 2.0f}) {
      values.set_all(round * static_cast<float>(self.rank + 1));
      EXPECT_EQ(cudaGraphLaunch(executable, self.stream), cudaSuccess);
      EXPECT_EQ(cudaStreamSynchronize(self.stream), cudaSuccess);
      EXPECT_THAT(sums.get(), Each(round * static_cast<float>(self.size)));
    }
    cudaGraphExecDestroy(executable);
    cudaGraphDestroy(graph);
  });
}

class NcclFailure : public simt::EmulatorTest {};

TEST_F(NcclFailure, RanksThatDoNotAgreeAreNamedWithWhatTheyCall) {
  run_ranks(2, 1, [](Rank& self) {
    simt::DeviceArray<float> values(8);
    const std::size_t count = self.rank == 0 ? 8 : 4;
    ncclAllReduce(values.data(), values.data(), count, ncclFloat32, ncclSum, self.communicator, self.stream);
    EXPECT_EQ(cudaStreamSynchronize(self.stream), cudaErrorLaunchFailure);
    EXPECT_THAT(simt::last_error(), HasSubstr("ncclAllReduce of 4 float32"));
    EXPECT_THAT(simt::last_error(), HasSubstr("ncclAllReduce of 8 float32"));
    ncclResult_t error = ncclSuccess;
    EXPECT_EQ(ncclCommGetAsyncError(self.communicator, &error), ncclSuccess);
    EXPECT_EQ(error, ncclInvalidUsage);
    ncclCommAbort(std::exchange(self.communicator, nullptr));
    cudaDeviceReset();
  });
}

TEST_F(NcclFailure, ARankThatNeverComesIsNamedWhenTimeIsUp) {
  simt::config().watchdog_seconds = 0.3;
  run_ranks(2, 1, [](Rank& self) {
    simt::DeviceArray<float> values(8);
    if (self.rank == 0) {
      ncclAllReduce(values.data(), values.data(), 8, ncclFloat32, ncclSum, self.communicator, self.stream);
      EXPECT_EQ(cudaStreamSynchronize(self.stream), cudaErrorLaunchTimeout);
      EXPECT_THAT(simt::last_error(), HasSubstr("waits for rank 1"));
      cudaDeviceReset();
    }
  });
}

TEST_F(NcclFailure, AnAbortEndsWhatIsUnderWay) {
  run_ranks(2, 1, [](Rank& self) {
    simt::DeviceArray<float> values(8);
    if (self.rank == 1) return;
    EXPECT_EQ(ncclAllReduce(values.data(), values.data(), 8, ncclFloat32, ncclSum, self.communicator, self.stream), ncclSuccess);
    EXPECT_EQ(cudaStreamQuery(self.stream), cudaErrorNotReady);
    std::thread other([&] { ncclCommAbort(std::exchange(self.communicator, nullptr)); });
    EXPECT_EQ(cudaStreamSynchronize(self.stream), cudaSuccess);
    other.join();
  });
}

TEST_F(NcclFailure, CallsFailStallAndReportOnOrder) {
  run_ranks(1, 1, [](Rank& self) {
    simt::DeviceArray<float> values(8);
    const auto all_reduce = [&] {
      return ncclAllReduce(values.data(), values.data(), 8, ncclFloat32, ncclSum, self.communicator, self.stream);
    };
    simt::fail_call("ncclAllReduce", 2);
    EXPECT_EQ(all_reduce(), ncclSuccess);
    EXPECT_EQ(all_reduce(), ncclInternalError);
    simt::fail_call("ncclAsyncError", 1, ncclRemoteError);
    EXPECT_EQ(all_reduce(), ncclSuccess);
    ncclResult_t error = ncclSuccess;
    EXPECT_EQ(cudaStreamQuery(self.stream), cudaErrorNotReady);
    EXPECT_EQ(ncclCommGetAsyncError(self.communicator, &error), ncclSuccess);
    EXPECT_EQ(error, ncclRemoteError);
    ncclCommAbort(std::exchange(self.communicator, nullptr));
    EXPECT_EQ(cudaStreamSynchronize(self.stream), cudaSuccess);
  });
}

TEST_F(NcclFailure, MemoryOfTheHostIsRefused) {
  run_ranks(1, 1, [](Rank& self) {
    std::vector<float> host(8);
    EXPECT_EQ(ncclAllReduce(host.data(), host.data(), 8, ncclFloat32, ncclSum, self.communicator, self.stream), ncclInvalidArgument);
  });
}

TEST_F(NcclFailure, WithoutBlockingACallThatIsNotAskedForHasNotHappened) {
  run_ranks(1, 0, [](Rank& self) {
    simt::DeviceArray<float> from(4), to(4);
    from.set_all(3);
    to.set_all(0);
    const ncclResult_t result = ncclAllReduce(from.data(), to.data(), 4, ncclFloat32, ncclSum, self.communicator, self.stream);
    EXPECT_EQ(result, ncclInProgress);
    cudaStreamSynchronize(self.stream);
    EXPECT_THAT(to.get(), Each(0.0f));
    EXPECT_EQ(settle(self.communicator, result), ncclSuccess);
    cudaStreamSynchronize(self.stream);
    EXPECT_THAT(to.get(), Each(3.0f));
  });
}

/// The other one reads and writes through mappings of this one's memory.
TEST_F(NcclFailure, RanksMayBeProcesses) {
  const auto body = [](Rank& self) {
    simt::DeviceArray<float> values(1000);
    values.set_all(static_cast<float>(self.rank + 1));
    EXPECT_EQ(ncclAllReduce(values.data(), values.data(), 1000, ncclFloat32, ncclSum, self.communicator, self.stream), ncclSuccess);
    EXPECT_EQ(cudaStreamSynchronize(self.stream), cudaSuccess) << simt::last_error();
    EXPECT_THAT(values.get(), Each(3.0f));
  };
  ncclUniqueId id{};
  if (const char* name = simt::SecondProcess::value(); name != nullptr) {
    std::snprintf(id.internal, sizeof(id.internal), "%s", name);
    run_rank(id, 1, 2, 1, body);
    return;
  }
  ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess);
  const simt::SecondProcess other(id.internal);
  run_rank(id, 0, 2, 1, body);
}

}  // namespace
