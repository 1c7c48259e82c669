#include "comm/shared_region.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <thread>

#include "device/futex.h"

namespace lockstep::comm {
namespace {

constexpr std::uint64_t region_magic = 0x314d4f43'4b434f4cu;  // "LOCKCOM1"

static_assert(std::atomic<std::uint64_t>::is_always_lock_free, "processes share these words");

}  // namespace

std::size_t SharedRegion::bytes_needed(int size, const CommunicatorOptions& options) {
  return offset_of_slots(static_cast<std::size_t>(size)) + 2 * static_cast<std::size_t>(size) * options.slot_bytes;
}

void SharedRegion::create(std::byte* memory, int size, const CommunicatorOptions& options, std::uint64_t token) {
  base_ = memory;
  Header* header = new (memory) Header;
  header->token = token;
  header->size = static_cast<std::uint64_t>(size);
  header->slot_bytes = options.slot_bytes;
  header->slice_from_additions = options.slice_from_additions;
  for (int rank = 0; rank < size; ++rank) {
    new (&arrival(rank)) Arrival;
    new (&status(rank)) RankStatus;
  }
  header->magic = region_magic;
}

void SharedRegion::open(std::byte* memory, std::size_t bytes, std::uint64_t token) {
  base_ = memory;
  CommunicatorOptions options;
  if (bytes >= sizeof(Header)) options.slot_bytes = header().slot_bytes;
  if (bytes < sizeof(Header) || header().magic != region_magic || header().token != token || header().size > 4096 ||
      options.slot_bytes > (std::size_t{1} << 30) || bytes_needed(size(), options) > bytes) {
    base_ = nullptr;
    throw CommError("shared memory: what the name leads to is not this job's region (" + std::to_string(bytes) + " bytes)");
  }
}

void SharedRegion::abort(std::string_view reason) noexcept {
  AbortNotice& notice = header().abort;
  std::uint32_t none = 0;
  if (notice.state.compare_exchange_strong(none, 1, std::memory_order_acq_rel)) {
    notice.length = static_cast<std::uint32_t>(std::min(reason.size(), notice.text.size()));
    std::memcpy(notice.text.data(), reason.data(), notice.length);
    notice.state.store(2, std::memory_order_release);
  }
  for (int rank = 0; rank < size(); ++rank) device::futex_wake_all(arrival(rank).epoch);
}

std::string SharedRegion::abort_reason() {
  AbortNotice& notice = header().abort;
  for (int attempt = 0; attempt < 100; ++attempt) {  // another rank may be writing it
    if (notice.state.load(std::memory_order_acquire) == 2) return {notice.text.data(), notice.length};
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return "a rank gave up and died before it could say why";
}

std::string SharedRegion::describe_rank(int rank) {
  const RankStatus& status = this->status(rank);
  std::string text = "rank " + std::to_string(rank) + ": ";
  if (status.attached.load(std::memory_order_acquire) == 0) return text + "has not attached yet";
  std::array<std::uint64_t, sizeof(Position::node) / 8> words{};
  for (std::size_t i = 0; i < words.size(); ++i) words[i] = status.node[i].load(std::memory_order_relaxed);
  Position position;
  std::memcpy(position.node, words.data(), sizeof position.node);
  position.node[sizeof position.node - 1] = '\0';
  text += "step " + std::to_string(status.step.load(std::memory_order_relaxed));
  if (position.node[0] != '\0') text += std::string(", node ") + position.node;
  CallRecord record;
  record.operation = static_cast<Operation>(status.operation.load(std::memory_order_relaxed));
  record.root = status.root.load(std::memory_order_relaxed);
  record.size = status.size.load(std::memory_order_relaxed);
  const std::uint64_t calls = status.calls.load(std::memory_order_relaxed);
  if (calls == 0) return text + ", before its first collective";
  text += status.in_call.load(std::memory_order_relaxed) != 0 ? ", in collective " : ", after collective ";
  return text + std::to_string(calls) + ": " + describe(record);
}

void SharedRegion::set_position(int rank, const Position& position) noexcept {
  RankStatus& status = this->status(rank);
  status.step.store(position.step, std::memory_order_relaxed);
  for (std::size_t i = 0; i < status.node.size(); ++i) {
    std::uint64_t word = 0;
    std::memcpy(&word, position.node + 8 * i, sizeof word);
    status.node[i].store(word, std::memory_order_relaxed);
  }
}

}  // namespace lockstep::comm
