#include <algorithm>

#include <fmt/format.h>

#include "simt/executor.h"
#include "simt/sanitizers.h"

/// Shared memory: objects between red zones, in an arena for each resident block.
namespace simt {

namespace {

constexpr std::size_t kRedZone = 128;
constexpr int kRedZoneByte = 0xB5;
constexpr std::size_t kMaxStaticShared = 48 * 1024;

}  // namespace

std::size_t Grid::arena_bytes_of_block() const {
  return (2 * kMaxStaticShared + launch_.shared_bytes + 16 * kRedZone + 4095) / 4096 * 4096;  // static objects come with red zones
}

void Grid::give_shared_memory(Block& block) {
  const std::size_t block_bytes = arena_bytes_of_block();
#if defined(LOCKSTEP_SIMT_TSAN)
  const bool fresh = true;
#else
  const bool fresh = block.arena == nullptr;
#endif
  if (fresh) {
    if (arena_next_ + block_bytes > arena_bytes_) arena_next_ = 0;
    block.arena = arena_ + arena_next_;
    arena_next_ += block_bytes;
  }
  unpoison(block.arena, block_bytes);
  fill_bytes(block.arena, kRedZoneByte, kRedZone);
  block.arena_used = kRedZone;
  block.static_bytes = 0;
  block.objects.clear();
  block.dynamic = {};
  if (launch_.shared_bytes > 0) {
    block.dynamic = {nullptr, block.arena + block.arena_used, launch_.shared_bytes};
    fill_bytes(block.dynamic.data, 0xFF, block.dynamic.bytes);
    const std::size_t padding = (128 - launch_.shared_bytes % 128) % 128 + kRedZone;
    fill_bytes(block.dynamic.data + block.dynamic.bytes, kRedZoneByte, padding);
    block.arena_used += launch_.shared_bytes + padding;
  }
  poison(block.arena, block_bytes);
  if (launch_.shared_bytes > 0) unpoison(block.dynamic.data, block.dynamic.bytes);
}

void Grid::check_red_zones(Block& block) {
  const auto damaged = [](const char* from, const char* to) {
    return std::any_of(from, to, [](char byte) { return static_cast<unsigned char>(byte) != kRedZoneByte; });
  };
  unpoison(block.arena, block.arena_used);
  const char* from = block.arena;
  const auto check = [&](const SharedObject& object, const std::string& name) {
    if (damaged(from, object.data) && error_.empty()) error_ = "before " + name;
    from = object.data + object.bytes;
  };
  if (block.dynamic.bytes > 0) check(block.dynamic, fmt::format("the dynamic shared memory ({} bytes)", block.dynamic.bytes));
  for (const SharedObject& object : block.objects) check(object, fmt::format("a static shared object of {} bytes", object.bytes));
  if (damaged(from, block.arena + block.arena_used) && error_.empty()) {
    const std::size_t last = block.objects.empty() ? block.dynamic.bytes : block.objects.back().bytes;
    error_ = fmt::format("behind the last shared object ({} bytes)", last);
  }
  if (!error_.empty() && error_.find(" kernel ") == std::string::npos) {
    error_ = fmt::format("shared memory written out of bounds, {}: kernel {} block ({},{},{})", error_, kernel_name(), block.index.x,
                         block.index.y, block.index.z);
  }
}

void* Grid::static_object(const void* tag, std::size_t bytes, std::size_t alignment) {
  const Unseen unseen;
  Block& block = *current_fiber().resident;
  for (const SharedObject& object : block.objects) {
    if (object.tag == tag) return object.data;
  }
  block.static_bytes += bytes;
  if (block.static_bytes > kMaxStaticShared) {
    fail_thread(fmt::format("{} bytes of static shared memory; a kernel has 49152", block.static_bytes));
  }
  if (block.static_bytes + launch_.shared_bytes > kMaxShared) {
    fail_thread(fmt::format("{} bytes of static and {} of dynamic shared memory; a block has {}", block.static_bytes, launch_.shared_bytes,
                            kMaxShared));
  }
  const std::size_t at = (block.arena_used + alignment - 1) / alignment * alignment;
  char* data = block.arena + at;
  unpoison(block.arena + block.arena_used, at - block.arena_used + bytes + kRedZone);
  fill_bytes(block.arena + block.arena_used, kRedZoneByte, at - block.arena_used);
  fill_bytes(data, 0xFF, bytes);
  fill_bytes(data + bytes, kRedZoneByte, kRedZone);
  poison(block.arena + block.arena_used, at - block.arena_used);
  poison(data + bytes, kRedZone);
  block.arena_used = at + bytes + kRedZone;
  block.objects.push_back({tag, data, bytes});
  return data;
}

void* Grid::dynamic_object() {
  const SharedObject& dynamic = current_fiber().resident->dynamic;
  if (dynamic.bytes == 0) fail_thread("the kernel uses dynamic shared memory but was launched with none");
  return dynamic.data;
}

bool Grid::in_shared(const void* address, std::size_t bytes) const {
  const Block& block = *current_fiber().resident;
  const auto* at = static_cast<const char*>(address);
  const auto inside = [&](const SharedObject& object) { return at >= object.data && at + bytes <= object.data + object.bytes; };
  return inside(block.dynamic) || std::any_of(block.objects.begin(), block.objects.end(), inside);
}

void* static_shared(const void* tag, std::size_t bytes, std::size_t alignment) {
  return current_grid()->static_object(tag, bytes, alignment);
}

void* dynamic_shared() { return current_grid()->dynamic_object(); }

}  // namespace simt
