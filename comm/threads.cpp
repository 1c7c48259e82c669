#include "comm/threads.h"

#include <new>

#include <sys/mman.h>

#include "comm/region_communicator.h"

namespace lockstep::comm {
namespace {

class ThreadRegion final : public SharedRegion {
 public:
  ThreadRegion(int size, const CommunicatorOptions& options) : bytes_(bytes_needed(size, options)) {
    memory_ = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory_ == MAP_FAILED) throw std::bad_alloc();
    create(static_cast<std::byte*>(memory_), size, options, 0);
  }
  ~ThreadRegion() override { munmap(memory_, bytes_); }
  bool alive(int) override { return true; }  // a thread does not die alone; its communicator tells when it leaves

 private:
  std::size_t bytes_;
  void* memory_;
};

}  // namespace

std::vector<std::unique_ptr<Communicator>> make_thread_communicators(int size, const CommunicatorOptions& options) {
  check_options(options, size);
  const auto region = std::make_shared<ThreadRegion>(size, options);
  std::vector<std::unique_ptr<Communicator>> communicators;
  communicators.reserve(static_cast<std::size_t>(size));
  for (int rank = 0; rank < size; ++rank) communicators.push_back(std::make_unique<RegionCommunicator>(region, rank, options, "threads"));
  return communicators;
}

}  // namespace lockstep::comm
