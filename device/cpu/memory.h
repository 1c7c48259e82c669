#pragma once

#include <cstddef>
#include <memory>

namespace lockstep::device::cpu {

/// Anonymous memory in huge pages where the system gives them, 2 MiB aligned. It is zero at first, and takes up room page by page as it is
/// touched.
class HugeMemory {
 public:
  /// @throws std::runtime_error with the size if there is no room.
  explicit HugeMemory(std::size_t bytes);
  ~HugeMemory();
  HugeMemory(const HugeMemory&) = delete;
  HugeMemory& operator=(const HugeMemory&) = delete;
  std::byte* data() const { return data_; }
  std::size_t size_bytes() const { return size_; }

 private:
  void* mapping_ = nullptr;
  std::size_t mapped_ = 0;
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

/// Hands out pieces of large huge-page chunks, one behind the other without gaps: what is read in the order in which it was taken is one
/// stream, and what the processor fetches ahead behind a piece is the next one. A chunk lives as long as a piece of it.
class Arena {
 public:
  struct Piece {
    std::shared_ptr<HugeMemory> chunk;
    std::byte* data = nullptr;
  };
  /// 64 bytes aligned; at least 64 bytes behind the piece are readable.
  Piece take(std::size_t bytes);

 private:
  std::shared_ptr<HugeMemory> chunk_;
  std::size_t used_ = 0;
};

}  // namespace lockstep::device::cpu
