#include <csignal>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "simt/simt.h"
#include "tests/simt/comm_ranks.h"

/// Ranks as processes, whose memory is mapped through CUDA IPC. The emulator must not have begun before they are forked: so these tests
/// are a program of their own.
namespace lockstep::comm {
namespace {

using std::chrono::milliseconds;
using testing::AllOf;
using testing::HasSubstr;

/// The body of a rank in its process.
Body with_gpu(const std::filesystem::path& table, const GpuBody& body) {
  return [=](Communicator& host) {
    simt::config().stream_order = simt::StreamOrder::kLazy;
    device::cuda::check(cudaSetDevice(host.rank()), "choosing the device");
    const TestStream stream;
    CudaCommunicatorOptions options = gpu_options(table);
    options.stream = stream.get();
    const auto communicator = make_cuda_communicator(host, options);
    GpuRank gpu{host, *communicator, stream.get()};
    body(gpu);
  };
}

TEST(GpuProcesses, SumsThroughIpcAreTheBitsOfThePlainTree) {
  for (const std::string transport : {"one_shot", "two_shot", "nccl_slices"}) {
    const TableFile table("0 " + transport + "\n");
    const Outcomes outcomes = run_shm(3, conformance::small_options(), with_gpu(table.path(), [](GpuRank& gpu) {
                                        ThroughTheGpu communicator(gpu);
                                        conformance::sums_are_the_bits_of_the_plain_tree(communicator);
                                      }));
    for (const std::string& outcome : outcomes) EXPECT_EQ(outcome, "") << transport;
  }
}

TEST(GpuProcesses, AKilledRankEndsTheWaitOfTheOthersWithinTwoSeconds) {
  for (const std::string transport : {"one_shot", "nccl_gather"}) {
    const TableFile table("0 " + transport + "\n");
    const Outcomes outcomes = run_shm(3, conformance::small_options(), with_gpu(table.path(), [](GpuRank& gpu) {
                                        gpu.communicator.set_position({3, "n05 attention"});
                                        const conformance::SharedTree tree(9, 3);
                                        const device::cuda::DeviceMemory memory(4 * 500 * sizeof(float), "the test");
                                        gpu.communicator.all_reduce(tree.sum, memory.as<float>(), 500);
                                        gpu.finish();
                                        gpu.communicator.barrier();
                                        if (gpu.rank() == 1) raise(SIGKILL);
                                        const auto start = std::chrono::steady_clock::now();
                                        const std::string error = conformance::error_of([&] {
                                          gpu.communicator.all_reduce(tree.sum, memory.as<float>(), 500);
                                          gpu.finish();
                                        });
                                        const bool in_time = std::chrono::steady_clock::now() - start < milliseconds(2000);
                                        throw std::runtime_error((in_time ? "in time: " : "late: ") + error);
                                      }));
    for (const std::size_t rank : {0, 2})
      EXPECT_THAT(outcomes[rank], HasSubstr("in time: a rank has died: rank 1: step 3, node n05 attention")) << transport;
    EXPECT_THAT(outcomes[1], HasSubstr("killed by signal 9")) << transport;
  }
}

}  // namespace
}  // namespace lockstep::comm
