#pragma once

#include <cstdint>
#include <vector>

#include "device/cuda/memory.h"
#include "device/cuda/views.h"
#include "tests/device/reference.h"

/// Matrices of activations in the memory of a GPU, for tests of kernels.
namespace lockstep::device::cuda {

class TestStream {
 public:
  explicit TestStream(int num_multiprocessors = 8) {
    check(cudaStreamCreateWithFlags(&launch_.stream, cudaStreamNonBlocking), "creating a stream");
    launch_.num_multiprocessors = num_multiprocessors;
  }
  TestStream(const TestStream&) = delete;
  TestStream& operator=(const TestStream&) = delete;
  ~TestStream() { cudaStreamDestroy(launch_.stream); }

  const Launch& launch() const { return launch_; }
  void synchronize() const { check(cudaStreamSynchronize(launch_.stream), "waiting for a stream"); }

 private:
  Launch launch_;
};

/// `skip` elements stand before the values, so that these need not be aligned.
template <class T>
DeviceMemory to_device(const std::vector<T>& values, std::size_t skip = 0) {
  DeviceMemory memory((values.size() + skip) * sizeof(T), "a test");
  if (!values.empty()) {
    check(cudaMemcpy(memory.as<T>() + skip, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice), "uploading");
  }
  return memory;
}

template <class T>
std::vector<T> from_device(const void* data, std::size_t count) {
  std::vector<T> values(count);
  if (count != 0) check(cudaMemcpy(values.data(), data, count * sizeof(T), cudaMemcpyDeviceToHost), "downloading");
  return values;
}

struct DeviceRows {
  DeviceMemory memory;
  Rows rows;
  std::size_t num_rows = 0;

  /// The columns of all rows, expanded.
  std::vector<float> values() const {
    std::vector<float> all;
    const std::size_t count = num_rows * rows.stride;
    const std::vector<float> floats = rows.type == Activation::kFloat32 ? from_device<float>(rows.data, count) : std::vector<float>{};
    const std::vector<std::uint16_t> halves =
        rows.type == Activation::kFloat32 ? std::vector<std::uint16_t>{} : from_device<std::uint16_t>(rows.data, count);
    for (std::size_t row = 0; row < num_rows; ++row) {
      for (std::size_t column = 0; column < rows.columns; ++column) {
        const std::size_t at = row * rows.stride + column;
        if (rows.type == Activation::kFloat32) all.push_back(floats[at]);
        if (rows.type == Activation::kFloat16) all.push_back(half_to_float(halves[at]));
        if (rows.type == Activation::kBFloat16) all.push_back(bfloat16_to_float(halves[at]));
      }
    }
    return all;
  }
};

/// kFloat32. With `skip` they are not aligned.
inline DeviceRows upload_rows(const std::vector<float>& values, std::size_t columns, std::size_t skip = 0) {
  DeviceRows made;
  made.memory = to_device(values, skip);
  made.num_rows = columns == 0 ? 1 : values.size() / columns;
  made.rows = {made.memory.as<float>() + skip, columns, columns, Activation::kFloat32};
  return made;
}

inline DeviceRows make_rows(Activation type, std::size_t num_rows, std::size_t columns) {
  DeviceRows made;
  made.num_rows = num_rows;
  made.rows = {nullptr, columns, row_stride(type, columns), type};
  made.memory = DeviceMemory(num_rows * made.rows.stride * element_bytes(type), "a test");
  made.rows.data = made.memory.data();
  return made;
}

inline float rounded(float value, Activation type) {
  if (type == Activation::kFloat16) return half_to_float(float_to_half(value));
  return type == Activation::kBFloat16 ? bfloat16_to_float(float_to_bfloat16(value)) : value;
}

inline std::vector<float> rounded(std::vector<float> values, Activation type) {
  for (float& value : values) value = rounded(value, type);
  return values;
}

}  // namespace lockstep::device::cuda
