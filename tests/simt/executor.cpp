#include "simt/executor.h"

#include <algorithm>
#include <cstdlib>

#include <fmt/format.h>
#include <sys/mman.h>

#include "simt/sanitizers.h"

namespace simt {

thread_local constinit ThreadIndices* current_thread = nullptr;

namespace {

constexpr unsigned kMaxThreads = 2048;  // of a multiprocessor

thread_local Grid* grid_of_thread = nullptr;

/// Fibers and shared memory that this thread has used and keeps.
struct Store {
  std::vector<Fiber*> fibers;
  std::vector<std::pair<char*, std::size_t>> arenas;
  ~Store() {
    const Unseen unseen;
    for (Fiber* fiber : fibers) drop(fiber);
    for (const auto& [data, bytes] : arenas) {
      unpoison(data, bytes);
      munmap(data, bytes);
    }
  }
  static void drop(Fiber* fiber) {
    release_flow(fiber->flow);
    delete fiber;
  }
  Fiber* take_fiber() {
#if defined(LOCKSTEP_SIMT_TSAN)
    // The one that rested longest: were it the one of the block before, the two blocks would look ordered.
    constexpr std::size_t kMinResting = 64;
#else
    constexpr std::size_t kMinResting = 1;
#endif
    if (fibers.size() < kMinResting) return new Fiber;
#if defined(LOCKSTEP_SIMT_TSAN)
    Fiber* fiber = fibers.front();
    fibers.erase(fibers.begin());
#else
    Fiber* fiber = fibers.back();
    fibers.pop_back();
#endif
    return fiber;
  }
  std::pair<char*, std::size_t> take_arena(std::size_t bytes) {
    const auto fits = std::find_if(arenas.begin(), arenas.end(), [&](const auto& arena) { return arena.second >= bytes; });
    if (fits != arenas.end()) {
      const auto arena = *fits;
      arenas.erase(fits);
      return arena;
    }
    void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (data == MAP_FAILED) throw std::bad_alloc();
    return {static_cast<char*>(data), bytes};
  }
};

Store& store() {
  thread_local Store store_of_thread;
  return store_of_thread;
}

std::uint64_t scramble(std::uint64_t value) {
  value ^= value >> 30;
  value *= 0xBF58476D1CE4E5B9ull;
  value ^= value >> 27;
  value *= 0x94D049BB133111EBull;
  return value ^ value >> 31;
}

bool lower_priority(const Fiber* a, const Fiber* b) { return a->priority < b->priority; }

void run_thread() {
  flow_entered();
  current_grid()->thread_body(current_fiber());
}

}  // namespace

Grid* current_grid() { return grid_of_thread; }

Grid::Grid(KernelLaunch launch) : launch_(std::move(launch)), config_(config()) {
  const Unseen unseen;
  const dim3 grid = launch_.grid;
  num_blocks_ = std::uint64_t{grid.x} * grid.y * grid.z;
  threads_per_block_ = launch_.block.x * launch_.block.y * launch_.block.z;
  max_resident_ = std::max(1u, std::min(config_.resident_blocks, kMaxThreads / threads_per_block_));
  random_state_ = scramble(config_.seed + 0x9E3779B97F4A7C15ull) | 1;
  if (config_.shuffle_blocks) {
    block_order_.resize(num_blocks_);
    for (std::size_t i = 0; i < num_blocks_; ++i) block_order_[i] = static_cast<std::uint32_t>(i);
    for (std::size_t i = num_blocks_; i > 1; --i) std::swap(block_order_[i - 1], block_order_[random() % i]);
  }
  const std::size_t block_bytes = arena_bytes_of_block();
  const unsigned by_threads = kMaxThreads / threads_per_block_;
  const auto by_memory = static_cast<unsigned>(kMaxShared / (launch_.shared_bytes + 1024));
  const auto capacity = static_cast<std::uint64_t>(config_.multiprocessors) * std::max(1u, std::min({32u, by_threads, by_memory}));
  std::uint64_t num_arenas = std::min(num_blocks_, std::max(capacity, max_resident_));
#if defined(LOCKSTEP_SIMT_TSAN)
  // New addresses for each block: the same ones would look like a race between blocks.
  num_arenas = std::max<std::uint64_t>(num_arenas, std::min<std::uint64_t>(num_blocks_, (std::size_t{1} << 30) / block_bytes));
#endif
  std::tie(arena_, arena_bytes_) = store().take_arena(num_arenas * block_bytes);
  blocks_.reserve(std::min(num_blocks_, capacity));
  for (std::uint64_t i = 0; i < std::min(num_blocks_, std::max(capacity, max_resident_)); ++i) blocks_.push_back(nullptr);
  arena_next_ = 0;
}

Grid::~Grid() {
  const Unseen unseen;
  for (const auto& block : blocks_) {
    if (block == nullptr || !block->active) continue;
    for (Fiber* fiber : block->fibers) {
      // A thread that stopped on its way waits somewhere in here; no one will unwind it.
      if (fiber->started) retire_flow(fiber->flow, &end_tag_);
      Store::drop(fiber);
    }
  }
  acquire(&end_tag_);
  if (arena_ != nullptr) store().arenas.emplace_back(arena_, arena_bytes_);
}

std::uint64_t Grid::random() {
  random_state_ ^= random_state_ << 13;
  random_state_ ^= random_state_ >> 7;
  random_state_ ^= random_state_ << 17;
  return random_state_;
}

std::string Grid::kernel_name() const { return function_name(launch_.function); }

// ---------------------------------------------------------------------------------------------------------------- the host's side

Progress Grid::run() {
  if (grid_of_thread != nullptr) std::abort();  // a kernel cannot call the runtime
  if (!error_.empty()) return Progress::kFailed;
  const Unseen unseen;
  grid_of_thread = this;
  adopt_thread(host_);
  release(&start_tag_);
  Progress progress = Progress::kFailed;
  while (true) {
    std::uint64_t active = 0;
    for (const auto& block : blocks_) active += block != nullptr && block->active;
    while (active < max_resident_ && next_block_ < num_blocks_) {
      start_block();
      ++active;
    }
    Fiber* fiber = pop();
    if (fiber == nullptr) {
      if (active == 0) {
        error_ = damaged_red_zones();
        if (!error_.empty()) error_ += " by kernel " + kernel_name() + " or what ran beside it";
        progress = error_.empty() ? Progress::kDone : Progress::kFailed;
        break;
      }
      error_ = deadlock_text();
      break;
    }
    reason_ = Reason::kNone;
    current_thread = fiber;
    switch_flow(host_, fiber->flow, false);
    current_thread = nullptr;
    if (reason_ == Reason::kFailed || !error_.empty()) break;
    if (reason_ == Reason::kIdle) {
      idle_polls_ = 0;
      if (!can_start_more()) {
        progress = Progress::kBlocked;
        break;
      }
      ++max_resident_;
    }
  }
  acquire(&end_tag_);
  grid_of_thread = nullptr;
  return progress;
}

/// All resident blocks spin: perhaps for one that a GPU of this size would have begun, too.
bool Grid::can_start_more() const { return next_block_ < num_blocks_ && max_resident_ < blocks_.size(); }

void Grid::start_block() {
  auto slot = std::find_if(blocks_.begin(), blocks_.end(), [](const auto& block) { return block == nullptr || !block->active; });
  if (*slot == nullptr) *slot = std::make_unique<Block>();
  Block& block = **slot;
  const std::uint64_t number = block_order_.empty() ? next_block_ : block_order_[next_block_];
  ++next_block_;
  const dim3 grid = launch_.grid;
  block.index = {static_cast<unsigned>(number % grid.x), static_cast<unsigned>(number / grid.x % grid.y),
                 static_cast<unsigned>(number / grid.x / grid.y)};
  block.dimensions = launch_.block;
  block.grid = grid;
  block.active = true;
  block.live = threads_per_block_;
  block.at_barrier.clear();
  block.epoch = 0;
  block.warps.assign((threads_per_block_ + 31) / 32, WarpState{});
  give_shared_memory(block);
  start_threads(block);
}

void Grid::start_threads(Block& block) {
  const dim3 dimensions = launch_.block;
  block.fibers.resize(threads_per_block_);
  for (unsigned i = 0; i < threads_per_block_; ++i) {
    Fiber* fiber = store().take_fiber();
    block.fibers[i] = fiber;
    fiber->index = {i % dimensions.x, i / dimensions.x % dimensions.y, i / dimensions.x / dimensions.y};
    fiber->number = i;
    fiber->lane = i % 32;
    fiber->warp = i / 32;
    fiber->block = &block;
    fiber->resident = &block;
    fiber->polling = false;
    fiber->copies.clear();
    fiber->group_ends.clear();
    block.warps[fiber->warp].live |= 1u << fiber->lane;
    block.warps[fiber->warp].exist |= 1u << fiber->lane;
    prepare_flow(fiber->flow, fiber->stack, &run_thread, 5 * i);
  }
  push_all(block.fibers.data(), block.fibers.size());
}

// ---------------------------------------------------------------------------------------------------------------- the ready threads

void Grid::push(Fiber* fiber) {
  fiber->state = FiberState::kReady;
  ++num_ready_;
  num_polling_ += fiber->polling;
  switch (config_.schedule) {
    case Schedule::kForward:
    case Schedule::kReverse: queue_.push(fiber); break;
    case Schedule::kRandom: ready_.push_back(fiber); break;
    case Schedule::kOneWarpFirst: {
      const Block& block = *fiber->resident;
      const std::uint64_t warp = std::uint64_t{block.index.x + 977 * block.index.y + 1223 * block.index.z} * 32 + fiber->warp;
      fiber->priority = fiber->polling ? 0 : scramble(config_.seed ^ scramble(warp + 1) ^ scramble(block.epoch + 77));
      ready_.push_back(fiber);
      std::push_heap(ready_.begin(), ready_.end(), lower_priority);
      break;
    }
  }
}

void Grid::push_all(Fiber* const* fibers, std::size_t count) {
  if (config_.schedule == Schedule::kReverse) {
    for (std::size_t i = count; i-- > 0;) push(fibers[i]);
  } else {
    for (std::size_t i = 0; i < count; ++i) push(fibers[i]);
  }
}

Fiber* Grid::pop() {
  if (num_ready_ == 0) return nullptr;
  --num_ready_;
  Fiber* fiber = nullptr;
  switch (config_.schedule) {
    case Schedule::kForward:
    case Schedule::kReverse: fiber = queue_.pop(); break;
    case Schedule::kRandom: {
      std::swap(ready_[random() % ready_.size()], ready_.back());
      fiber = ready_.back();
      ready_.pop_back();
      break;
    }
    case Schedule::kOneWarpFirst:
      std::pop_heap(ready_.begin(), ready_.end(), lower_priority);
      fiber = ready_.back();
      ready_.pop_back();
      break;
  }
  num_polling_ -= fiber->polling;
  fiber->polling = false;
  return fiber;
}

/// Leaves `from`, which waits, is in the queue, or has ended, for the next that is ready.
void Grid::next(Fiber& from, bool last) {
  Fiber* fiber = pop();
  if (fiber == &from) return;
  if (fiber == nullptr) return to_host(from, Reason::kNothingReady, last);
  current_thread = fiber;
  switch_flow(from.flow, fiber->flow, last);
}

void Grid::to_host(Fiber& from, Reason reason, bool last) {
  reason_ = reason;
  switch_flow(from.flow, host_, last);
}

void Grid::poll_and_yield() {
  const Unseen unseen;
  Fiber& fiber = current_fiber();
  idle_polls_ = num_polling_ == num_ready_ ? idle_polls_ + 1 : 0;
  fiber.polling = true;
  fiber.waits_for = "spinning";
  push(&fiber);
  if (idle_polls_ > 2 * num_ready_ + 2) return to_host(fiber, Reason::kIdle, false);
  next(fiber, false);
}

void Grid::thread_body(Fiber& fiber) {
  fiber.started = true;
  acquire(&start_tag_);
  try {
    launch_.call(launch_.arguments.get());
    finish_thread(fiber);
  } catch (const ThreadFailed&) {  // unwound, so that nothing of this thread's stack leaks
    reason_ = Reason::kFailed;
  }
  leave(fiber);
  std::abort();  // it was the last switch
}

/// For good.
void Grid::leave(Fiber& fiber) {
  fiber.started = false;
  release(&end_tag_);
  begin_unseen();  // switch_flow ends it
  if (reason_ != Reason::kNone) return to_host(fiber, reason_, true);
  next(fiber, true);
}

void Grid::finish_thread(Fiber& fiber) {
  const Unseen unseen;
  idle_polls_ = 0;
  ++progress_made_;
  Block& block = *fiber.resident;
  if (!fiber.copies.empty()) {
    fail_thread(fmt::format("the thread ends with {} cp.async copies that it never waited for", fiber.copies.size()));
  }
  fiber.state = FiberState::kDone;
  --block.live;
  WarpState& warp = block.warps[fiber.warp];
  warp.live &= ~(1u << fiber.lane);
  for (int i = 0; i < warp.num_pending; ++i) {
    if ((warp.pending[i].mask & ~warp.live) != 0) {
      fail_thread(fmt::format("the thread ends, but {} waits for it in a warp collective with mask {:08x}", place(warp.pending[i].site),
                              warp.pending[i].mask));
    }
  }
  if (block.live == 0) {
    check_red_zones(block);
    block.active = false;
    auto& fibers = store().fibers;
    fibers.insert(fibers.end(), block.fibers.begin(), block.fibers.end());  // none begins before this one has left its stack
    reason_ = Reason::kBlockEnded;
  } else if (block.at_barrier.size() == block.live) {
    release_barrier(block);  // from sm_70 on threads that have returned do not count
  }
}

}  // namespace simt
