#pragma once

#include <cstdlib>
#include <string>
#include <vector>

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include "simt/simt.h"

/// What tests of the emulator and of kernels share.
namespace simt {

/// Each test begins with the default settings and zero counters.
class EmulatorTest : public ::testing::Test {
 protected:
  void SetUp() override { reset(); }
  void TearDown() override { reset(); }
};

/// Elements in device memory.
template <class T>
class DeviceArray {
 public:
  explicit DeviceArray(std::size_t count) : count_(count) {
    EXPECT_EQ(cudaMalloc(reinterpret_cast<void**>(&data_), count * sizeof(T)), cudaSuccess);
  }
  ~DeviceArray() { cudaFree(data_); }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;

  T* data() const { return data_; }
  std::size_t size() const { return count_; }
  void set(const std::vector<T>& values) {
    EXPECT_EQ(cudaMemcpy(data_, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice), cudaSuccess);
  }
  void set_all(T value) { set(std::vector<T>(count_, value)); }
  std::vector<T> get() const {
    std::vector<T> values(count_);
    EXPECT_EQ(cudaMemcpy(values.data(), data_, count_ * sizeof(T), cudaMemcpyDeviceToHost), cudaSuccess);
    return values;
  }

 private:
  T* data_ = nullptr;
  std::size_t count_ = 0;
};

/// A test that needs two processes begins itself a second time, with `value` in the environment.
class SecondProcess {
 public:
  static const char* value() { return std::getenv(kName); }
  explicit SecondProcess(const std::string& value) {
    const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
    const std::string filter = std::string("--gtest_filter=") + test->test_suite_name() + "." + test->name();
    std::string program = "/proc/self/exe";
    char* arguments[] = {program.data(), const_cast<char*>(filter.c_str()), nullptr};
    setenv(kName, value.c_str(), 1);
    EXPECT_EQ(posix_spawn(&process_, program.c_str(), nullptr, nullptr, arguments, environ), 0);
    unsetenv(kName);
  }
  ~SecondProcess() {
    int status = -1;
    waitpid(process_, &status, 0);
    EXPECT_EQ(status, 0) << "the second process";
  }
  SecondProcess(const SecondProcess&) = delete;
  SecondProcess& operator=(const SecondProcess&) = delete;

 private:
  static constexpr const char* kName = "LOCKSTEP_SIMT_SECOND_PROCESS";
  pid_t process_ = 0;
};

}  // namespace simt
