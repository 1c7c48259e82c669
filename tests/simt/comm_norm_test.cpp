#include <gtest/gtest.h>

#include "device/cuda/cuda_device.h"
#include "simt/simt.h"
#include "tests/simt/comm_ranks.h"

namespace lockstep::comm {
namespace {

using device::Activation;
using device::Matrix;
using device::cuda::check;
using device::cuda::DeviceMemory;

/// The memory of one call: what the ranks have alike, and this rank's roots.
struct Operands {
  std::size_t rows, columns;
  DeviceMemory partial, x, bias, weight, out;

  Operands(std::size_t num_rows, std::size_t num_columns, std::size_t roots)
      : rows(num_rows),
        columns(num_columns),
        partial(std::max<std::size_t>(1, roots) * rows * columns * sizeof(float), "the test"),
        x(rows * columns * sizeof(float), "the test"),
        bias(columns * sizeof(float), "the test"),
        weight(columns * sizeof(float), "the test"),
        out(rows * (columns + 8) * sizeof(float), "the test") {}

  Matrix matrix(const DeviceMemory& memory, Activation type = Activation::kFloat32) const { return {memory.data(), columns, rows, type}; }
};

void fill(const DeviceMemory& memory, std::size_t leaf) {
  std::vector<float> values(memory.size_bytes() / sizeof(float));
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = static_cast<float>(static_cast<int>((i * 2654435761u + leaf * 40503u) % 2001) - 1000) / 257.0f;
  check(cudaMemcpy(memory.data(), values.data(), memory.size_bytes(), cudaMemcpyHostToDevice), "uploading");
}

std::vector<std::byte> bytes_of(const DeviceMemory& memory) {
  std::vector<std::byte> bytes(memory.size_bytes());
  check(cudaMemcpy(bytes.data(), memory.data(), bytes.size(), cudaMemcpyDeviceToHost), "downloading");
  return bytes;
}

struct NormCase {
  std::size_t rows, columns;
  bool bias;
  Activation type;
  device::Norm::Kind kind = device::Norm::Kind::kRms;
};

/// x and out after the op in one call, or in two.
std::vector<std::byte> run_norm(device::Device& device, Communicator& communicator, const conformance::SharedTree& tree,
                                const NormCase& each, bool in_one) {
  const auto rank = static_cast<std::size_t>(communicator.rank());
  const Operands operands(each.rows, each.columns, tree.roots_of_rank[rank].size());
  fill(operands.partial, 10 + rank);
  fill(operands.x, 1);
  fill(operands.bias, 2);
  fill(operands.weight, 3);
  check(cudaMemset(operands.out.data(), 0, operands.out.size_bytes()), "clearing");
  const float* bias = each.bias ? operands.bias.as<float>() : nullptr;
  const device::Norm norm{each.kind, operands.weight.as<float>(),
                          each.kind == device::Norm::Kind::kLayer ? operands.weight.as<float>() : nullptr, 1e-5f};
  const ResidualNorm then{operands.matrix(operands.x), bias, norm, operands.matrix(operands.out, each.type)};
  const Matrix partial = operands.matrix(operands.partial);
  if (in_one) {
    communicator.all_reduce_add_norm(device, tree.sum, partial, each.rows, then);
  } else {
    communicator.all_reduce(tree.sum, operands.partial.as<float>(), each.rows * each.columns);
    device.add_norm(then.x, partial, each.rows, then.bias, then.norm, then.out);
  }
  device.synchronize();
  std::vector<std::byte> result = bytes_of(operands.x);
  const std::vector<std::byte> out = bytes_of(operands.out);
  result.insert(result.end(), out.begin(), out.end());
  return result;
}

/// On every rank, with a device of the backend; what each threw.
Outcomes run_devices(int size, const std::filesystem::path& table, const std::function<void(device::Device&, Communicator&)>& body) {
  return run_threads(size, conformance::small_options(), [&](Communicator& host) {
    const auto device = device::cuda::make_cuda_device({.ordinal = host.rank()});
    CudaCommunicatorOptions options = gpu_options(table);
    options.stream = device->stream();
    const auto communicator = make_cuda_communicator(host, options);
    device->set_watch([&](std::chrono::steady_clock::duration waited) { communicator->waiting(waited); });
    body(*device, *communicator);
    device->set_watch({});
  });
}

class GpuNorm : public testing::Test {
 protected:
  void SetUp() override { reset_emulator(); }
  void TearDown() override { simt::reset(); }
  static std::uint64_t runs_of_fused_kernel() {
    std::uint64_t runs = 0;
    for (const auto& [name, count] : simt::counters().kernels) runs += name.find("one_shot_norm_kernel") != std::string::npos ? count : 0;
    return runs;
  }
};

TEST_F(GpuNorm, OneKernelGivesTheBitsOfTheTwoCalls) {
  const std::vector<NormCase> cases = {{1, 64, false, Activation::kFloat32},
                                       {3, 576, true, Activation::kFloat32},
                                       {2, 2048, true, Activation::kBFloat16},
                                       {5, 1100, false, Activation::kFloat16},
                                       {1, 37, true, Activation::kFloat32},
                                       {9, 130, true, Activation::kBFloat16},
                                       {3, 576, true, Activation::kFloat32, device::Norm::Kind::kLayer},
                                       {2, 1100, false, Activation::kBFloat16, device::Norm::Kind::kLayer}};
  const TableFile one_shot("0 one_shot\n");
  for (const int size : is_slow ? std::vector<int>{2} : std::vector<int>{2, 3, 4}) {
    const conformance::SharedTree tree(9, size);
    for (const simt::Schedule schedule :
         {simt::Schedule::kForward, simt::Schedule::kReverse, simt::Schedule::kRandom, simt::Schedule::kOneWarpFirst}) {
      reset_emulator();
      simt::config().schedule = schedule;
      std::vector<std::vector<std::byte>> of_rank_0(cases.size());
      const Outcomes outcomes = run_devices(size, one_shot.path(), [&](device::Device& device, Communicator& communicator) {
        for (std::size_t i = 0; i < cases.size(); ++i) {
          const std::vector<std::byte> in_two = run_norm(device, communicator, tree, cases[i], false);
          const std::vector<std::byte> in_one = run_norm(device, communicator, tree, cases[i], true);
          conformance::require(in_one == in_two, "case " + std::to_string(i) + " has other bits");
          if (communicator.rank() == 0) of_rank_0[i] = in_one;
          communicator.barrier();
          conformance::require(in_one == of_rank_0[i], "case " + std::to_string(i) + " has other bits than on rank 0");
        }
      });
      for (const std::string& outcome : outcomes) EXPECT_EQ(outcome, "") << size << " ranks";
      EXPECT_EQ(runs_of_fused_kernel(), cases.size() * static_cast<std::size_t>(size));
    }
  }
}

TEST_F(GpuNorm, OtherTransportsMakeTwoCalls) {
  const TableFile two_shot("0 two_shot\n");
  const conformance::SharedTree tree(9, 2);
  const NormCase each{3, 576, true, Activation::kBFloat16};
  const Outcomes outcomes = run_devices(2, two_shot.path(), [&](device::Device& device, Communicator& communicator) {
    conformance::require(run_norm(device, communicator, tree, each, true) == run_norm(device, communicator, tree, each, false),
                         "other bits");
  });
  for (const std::string& outcome : outcomes) EXPECT_EQ(outcome, "");
  EXPECT_EQ(runs_of_fused_kernel(), 0u);
}

}  // namespace
}  // namespace lockstep::comm
