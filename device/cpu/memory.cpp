#include "device/cpu/memory.h"

#include <cstdint>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>

#include <errno.h>
#include <sys/mman.h>

namespace lockstep::device::cpu {
namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20;
constexpr std::size_t kChunk = std::size_t{64} << 20;

std::size_t round_up(std::size_t n, std::size_t to) { return (n + to - 1) / to * to; }

}  // namespace

HugeMemory::HugeMemory(std::size_t bytes) : size_(bytes) {
  if (bytes > SIZE_MAX / 2) throw std::runtime_error("cannot allocate " + std::to_string(bytes) + " bytes");
  mapped_ = round_up(bytes == 0 ? 1 : bytes, kHugePage) + kHugePage;
  mapping_ = mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapping_ == MAP_FAILED) throw std::runtime_error("cannot allocate " + std::to_string(bytes) + " bytes: " + std::strerror(errno));
  void* aligned = mapping_;
  std::size_t space = mapped_;
  data_ = static_cast<std::byte*>(std::align(kHugePage, mapped_ - kHugePage, aligned, space));
  madvise(data_, mapped_ - kHugePage, MADV_HUGEPAGE);  // where the system has none, small pages do
}

HugeMemory::~HugeMemory() { munmap(mapping_, mapped_); }

Arena::Piece Arena::take(std::size_t bytes) {
  const std::size_t wanted = round_up(bytes, 64);
  if (!chunk_ || chunk_->size_bytes() - used_ < wanted + 64) {
    if (wanted >= kChunk / 2) {  // a chunk of its own; the open one stays for small pieces
      auto own = std::make_shared<HugeMemory>(wanted + 64);
      return {own, own->data()};
    }
    chunk_ = std::make_shared<HugeMemory>(kChunk);
    used_ = 0;
  }
  std::byte* data = chunk_->data() + used_;
  used_ += wanted;
  return {chunk_, data};
}

}  // namespace lockstep::device::cpu
