#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

#include <gtest/gtest.h>

#include "device/cuda/linear.h"
#include "simt/simt.h"
#include "tests/device/reference.h"

/// Weights and activations on an emulated GPU.
namespace lockstep::device::cuda::testing_support {

using reference::StoredWeight;

/// A stream and a number of multiprocessors: many of those make `linear` take the tile for few tokens, a single one that for many.
class Gpu {
 public:
  explicit Gpu(int num_multiprocessors = 1) {
    check(cudaStreamCreateWithFlags(&launch_.stream, cudaStreamNonBlocking), "creating a stream");
    launch_.num_multiprocessors = num_multiprocessors;
  }
  Gpu(const Gpu&) = delete;
  Gpu& operator=(const Gpu&) = delete;
  ~Gpu() { cudaStreamDestroy(launch_.stream); }
  const Launch& launch() const { return launch_; }
  void synchronize() const { check(cudaStreamSynchronize(launch_.stream), "running"); }

 private:
  Launch launch_;
};

inline constexpr int kFewMultiprocessors = 1, kManyMultiprocessors = 100000;

template <class T>
DeviceMemory to_device(const std::vector<T>& values) {
  DeviceMemory memory(values.size() * sizeof(T), "a test");
  if (!values.empty()) check(cudaMemcpy(memory.data(), values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice), "uploading");
  return memory;
}

inline std::vector<float> floats_of(const DeviceMemory& memory) {
  std::vector<float> values(memory.size_bytes() / sizeof(float));
  if (!values.empty()) check(cudaMemcpy(values.data(), memory.data(), memory.size_bytes(), cudaMemcpyDeviceToHost), "downloading");
  return values;
}

struct DeviceRows {
  DeviceMemory memory;
  Rows rows;
};

/// Rounded to `type`; what stands between the columns and the stride is NaN.
inline DeviceRows make_rows(const std::vector<float>& values, std::size_t columns, Activation type) {
  const std::size_t stride = row_stride(type, columns), count = values.size() / columns;
  DeviceRows made;
  if (type == Activation::kFloat32) {
    made.memory = to_device(values);
  } else {
    std::vector<std::uint16_t> halves(count * stride, 0xFFFF);
    for (std::size_t i = 0; i < values.size(); ++i) {
      halves[i / columns * stride + i % columns] = type == Activation::kFloat16 ? float_to_half(values[i]) : float_to_bfloat16(values[i]);
    }
    made.memory = to_device(halves);
  }
  made.rows = {made.memory.data(), columns, stride, type};
  return made;
}

inline float rounded(float value, Activation type) {
  if (type == Activation::kFloat32) return value;
  return type == Activation::kFloat16 ? half_to_float(float_to_half(value)) : bfloat16_to_float(float_to_bfloat16(value));
}

/// The product as [roots, tokens, rows]. On the way it stands in the middle of a wider matrix, whose other columns must stay as they are.
inline std::vector<float> run_linear(const Gpu& gpu, const CudaWeight& weight, const std::vector<float>& x, std::size_t tokens,
                                     const std::vector<float>& bias = {}) {
  constexpr std::size_t kBefore = 3, kAfter = 2;
  constexpr float kUntouched = -12345.0f;
  const WeightSpec& spec = weight.spec();
  const DeviceRows in = make_rows(x, spec.columns, activation_for(spec.dtype));
  const DeviceMemory bias_memory = to_device(bias);
  const std::size_t stride = kBefore + spec.rows + kAfter, count = spec.num_roots() * tokens;
  const DeviceMemory out = to_device(std::vector<float>(count * stride, kUntouched));
  linear(gpu.launch(), in.rows, tokens, weight, bias_memory.as<float>(), {out.data(), stride, stride, Activation::kFloat32}, kBefore);
  gpu.synchronize();
  const std::vector<float> wide = floats_of(out);
  std::vector<float> product;
  std::size_t touched = 0;
  for (std::size_t i = 0; i < wide.size(); ++i) {
    const std::size_t column = i % stride;
    if (column >= kBefore && column < kBefore + spec.rows) {
      product.push_back(wide[i]);
    } else {
      touched += wide[i] != kUntouched;
    }
  }
  EXPECT_EQ(touched, 0u) << "columns beside the product were written";
  return product;
}

inline std::vector<float> row_of(const std::vector<float>& values, std::size_t columns, std::size_t row) {
  return {values.begin() + static_cast<std::ptrdiff_t>(row * columns), values.begin() + static_cast<std::ptrdiff_t>((row + 1) * columns)};
}

inline bool same_bytes(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

}  // namespace lockstep::device::cuda::testing_support
