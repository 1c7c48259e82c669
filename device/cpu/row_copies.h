#pragma once

#include <cstddef>
#include <vector>

#include "device/device.h"

namespace lockstep::device::cpu {

/// Where a matrix of one row stands for each thread.
struct RowPlace {
  Matrix real;
  std::size_t offset = kNone;  // in the memory of every thread but 0; kNone: all threads use the real one
  static constexpr std::size_t kNone = static_cast<std::size_t>(-1);
};

/// A copy of single rows for every thread, so that a small op (the norm of one token) can be done by all of them instead of by one for
/// whom the others wait. Thread 0 works on the matrix itself.
class RowCopies {
 public:
  explicit RowCopies(std::size_t num_threads) : memory_(num_threads) {}

  /// Room for the copies of `matrix`, whose bytes for one row are `bytes`. Memory is taken when a matrix is first seen.
  RowPlace place(const Matrix& matrix, std::size_t bytes);
  /// Its place if the copies are as the matrix is now, else the matrix for all.
  RowPlace find(const Matrix& matrix) const;
  void set_valid(const Matrix& matrix, bool valid);
  void invalidate_all();

  Matrix at(const RowPlace& place, std::size_t thread) {
    if (thread == 0 || place.offset == RowPlace::kNone) return place.real;
    return {memory_[thread].data() + place.offset, place.real.columns, 1, place.real.type};
  }

 private:
  struct Known {
    const void* data;
    std::size_t bytes;
    std::size_t offset;
    bool valid;
  };
  struct alignas(64) Line {
    std::byte bytes[64];
  };
  struct Memory {
    std::vector<Line> lines;
    std::byte* data() { return lines.empty() ? nullptr : lines.front().bytes; }
  };
  std::vector<Known> known_;
  std::vector<Memory> memory_;  // [threads]
  std::size_t used_lines_ = 0;
};

}  // namespace lockstep::device::cpu
