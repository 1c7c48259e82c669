// Where threads of kernels wait for each other, what is found wrong there, and what is said of it.
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include <fmt/format.h>

#include "simt/executor.h"
#include "simt/sanitizers.h"

namespace simt {
namespace {

bool same_site(const Site& a, const Site& b) {
  if (std::memcmp(&a, &b, sizeof(Site)) == 0) return true;  // nearly always: it is a pointer
  return a.line() == b.line() && a.column() == b.column() && std::string_view(a.file_name()) == b.file_name();
}

}  // namespace

std::string place(const Site& site) {
  const std::string_view file = site.file_name();
  return fmt::format("{}:{}", file.substr(file.rfind('/') + 1), site.line());
}

int Grid::arrive_at_barrier(BlockReduction reduction, int predicate, Site site) {
  const Unseen unseen;
  idle_polls_ = 0;
  Fiber& fiber = current_fiber();
  Block& block = *fiber.resident;
  fiber.waits_for = "__syncthreads";
  fiber.site = site;
  char* tag = &block.barrier_tags[block.epoch & 1];
  release(tag);
  if (block.at_barrier.empty()) {
    block.barrier_site = site;
    block.reduction = reduction;
    block.accumulated = reduction == BlockReduction::kAnd ? 1 : 0;
  } else if (!same_site(site, block.barrier_site)) {
    fail_thread(fmt::format("divergent __syncthreads: this thread is at {}, others wait at {}", place(site), place(block.barrier_site)));
  }
  if (reduction == BlockReduction::kCount) block.accumulated += predicate != 0;
  if (reduction == BlockReduction::kAnd) block.accumulated &= predicate != 0;
  if (reduction == BlockReduction::kOr) block.accumulated |= predicate != 0;
  fiber.state = FiberState::kWaiting;
  block.at_barrier.push_back(&fiber);
  if (block.at_barrier.size() == block.live) release_barrier(block);
  next(fiber, false);
  acquire(tag);
  return block.reduced;
}

void Grid::release_barrier(Block& block) {
  if (block.at_barrier.empty()) return;
  block.reduced = block.accumulated;
  ++block.epoch;
  ++progress_made_;
  ++counted.barriers;
  push_all(block.at_barrier.data(), block.at_barrier.size());
  block.at_barrier.clear();
}

void Grid::arrive_at_collective(unsigned mask, void* argument, void (*compute)(Collective&), const char* what, Site site) {
  const Unseen unseen;
  idle_polls_ = 0;
  Fiber& fiber = current_fiber();
  Block& block = *fiber.resident;
  WarpState& warp = block.warps[fiber.warp];
  fiber.waits_for = what;
  fiber.site = site;
  ++counted.warp_collectives;
  const unsigned me = 1u << fiber.lane;
  mask &= warp.exist;
  if ((mask & me) == 0) fail_thread(fmt::format("{} at {}: the calling lane is not in the mask {:08x}", what, place(site), mask));
  if ((mask & ~warp.live) != 0) {
    fail_thread(fmt::format("{} at {}: the mask {:08x} names lanes that have ended ({:08x} live)", what, place(site), mask, warp.live));
  }
  const bool orders_memory = compute == &sync_warp;  // shuffles and votes do not
  if (orders_memory) release(&warp);
  Collective* mine = nullptr;
  for (int i = 0; i < warp.num_pending && mine == nullptr; ++i) {
    Collective& other = warp.pending[i];
    if (other.mask == mask && other.compute == compute && same_site(other.site, site)) {
      mine = &other;
    } else if ((other.arrived & mask) != 0 && (other.mask & me) != 0) {  // it waits for this lane, which waits for it
      fail_thread(fmt::format("divergent warp: {} at {} with mask {:08x}, while others wait at {} with mask {:08x}", what, place(site),
                              mask, place(other.site), other.mask));
    }
  }
  if (mine == nullptr) {
    if (warp.num_pending == static_cast<int>(warp.pending.size()))
      fail_thread("more collectives under way in a warp than the emulator holds");
    mine = &warp.pending[warp.num_pending++];
    mine->mask = mask;
    mine->arrived = 0;
    mine->compute = compute;
    mine->site = site;
  }
  mine->arrived |= me;
  mine->arguments[fiber.lane] = argument;
  if (mine->arrived != mask) {
    fiber.state = FiberState::kWaiting;
    next(fiber, false);
  } else {
    compute(*mine);
    ++progress_made_;
    Collective* last = &warp.pending[--warp.num_pending];
    if (last != mine) *mine = *last;
    Fiber* released[32];
    std::size_t count = 0;
    const bool goes_on = config_.schedule == Schedule::kForward;
    for (unsigned rest = mask; rest != 0; rest &= rest - 1) {
      Fiber* other = block.fibers[fiber.warp * 32 + static_cast<unsigned>(__builtin_ctz(rest))];
      if (other != &fiber || !goes_on) released[count++] = other;
    }
    push_all(released, count);
    if (!goes_on) next(fiber, false);
  }
  if (orders_memory) acquire(&warp);
}

// ---------------------------------------------------------------------------------------------------------------- errors

void Grid::fail_thread(const std::string& text) {
  const Unseen unseen;
  const Fiber& fiber = current_fiber();
  const uint3 block = fiber.block->index;
  error_ = fmt::format("{} [kernel {} block ({},{},{}) thread ({},{},{}) lane {} of warp {}]", text, kernel_name(), block.x, block.y,
                       block.z, fiber.index.x, fiber.index.y, fiber.index.z, fiber.lane, fiber.warp);
  throw ThreadFailed();
}

std::string Grid::deadlock_text() const {
  return fmt::format("deadlock in kernel {}: no thread can go on{}", kernel_name(), where_threads_wait());
}

std::string Grid::where_threads_wait() const {
  std::string text;
  int shown = 0;
  for (const auto& block : blocks_) {
    if (block == nullptr || !block->active) continue;
    const Fiber* previous = nullptr;
    for (const Fiber* fiber : block->fibers) {
      if (fiber->state == FiberState::kDone) continue;
      const bool like_previous =
          previous != nullptr && previous->site.line() == fiber->site.line() && std::string_view(previous->waits_for) == fiber->waits_for;
      previous = fiber;
      if (like_previous || ++shown > 8) continue;
      text += fmt::format("\n  block ({},{},{}) from thread {}: {}, last at {}", block->index.x, block->index.y, block->index.z,
                          fiber->number, fiber->waits_for, place(fiber->site));
    }
  }
  return text;
}

// ---------------------------------------------------------------------------------------------------------------- what kernels call

void fail(Site site, const char* format, ...) {
  char text[512];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof(text), format, arguments);
  va_end(arguments);
  if (current_thread == nullptr) {
    std::fprintf(stderr, "simt: %s at %s:%u, outside of a kernel\n", text, site.file_name(), site.line());
    std::abort();
  }
  current_grid()->fail_thread(fmt::format("{} at {}", text, place(site)));
}

int block_barrier(BlockReduction reduction, int predicate, Site site) {
  return current_grid()->arrive_at_barrier(reduction, predicate, site);
}

void warp_collective(unsigned mask, void* argument, void (*compute)(Collective&), const char* what, Site site) {
  current_grid()->arrive_at_collective(mask, argument, compute, what, site);
}

void sync_warp(Collective&) {}

void poll() {
  if (current_grid() != nullptr) current_grid()->poll_and_yield();
}

}  // namespace simt
