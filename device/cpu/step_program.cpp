#include "device/cpu/step_program.h"

#include <algorithm>

namespace lockstep::device::cpu {

StepProgram::Entry& StepProgram::next_entry() {
  if (size_ == entries_.size()) entries_.resize(std::max<std::size_t>(64, 2 * size_));
  return entries_[size_++];
}

void StepProgram::run(ThreadPool& pool) {
  barriers_ = 0;
  for (std::size_t i = 0; i < size_; ++i) barriers_ += entries_[i].barrier_before ? 1 : 0;
  pool.run([this, &pool](std::size_t thread) noexcept {
    for (std::size_t i = 0; i < size_; ++i) {
      const Entry& entry = entries_[i];
      if (entry.barrier_before) pool.barrier(thread);
      entry.call(entry.stored, thread);
    }
  });
  clear();
}

void StepProgram::clear() {
  size_ = 0;
  touched_.clear();
}

bool StepProgram::note(std::span<const Access> accesses) {
  const bool barrier = std::any_of(accesses.begin(), accesses.end(), [this](const Access& access) { return conflicts(access); });
  if (barrier) touched_.clear();
  for (const Access& access : accesses) remember(access);
  return barrier;
}

bool StepProgram::conflicts(const Access& access) const {
  for (const Touched& before : touched_) {
    if (before.buffer != access.buffer) continue;
    const bool same_shares = access.shares != nullptr && access.shares == before.shares;
    switch (access.use) {
      case Access::Use::kRead: return (before.written && !same_shares) || before.copy_written;
      case Access::Use::kWrite: return before.read || before.written || before.copy_read || before.copy_written;
      case Access::Use::kWritePart: return before.read || (before.written && !before.only_parts) || before.copy_read || before.copy_written;
      case Access::Use::kReadCopy: return before.written;
      case Access::Use::kWriteCopy: return before.read || before.written;
    }
  }
  return false;
}

void StepProgram::remember(const Access& access) {
  auto found = std::find_if(touched_.begin(), touched_.end(), [&](const Touched& before) { return before.buffer == access.buffer; });
  if (found == touched_.end()) found = touched_.insert(touched_.end(), {access.buffer, access.shares, false, false, true, false, false});
  Touched& now = *found;
  const bool writes = access.use == Access::Use::kWrite || access.use == Access::Use::kWritePart;
  if (writes && now.written && now.shares != access.shares) now.shares = nullptr;
  if (writes && !now.written) now.shares = access.shares;
  now.read = now.read || access.use == Access::Use::kRead;
  now.only_parts = now.only_parts && access.use != Access::Use::kWrite;
  now.written = now.written || writes;
  now.copy_read = now.copy_read || access.use == Access::Use::kReadCopy;
  now.copy_written = now.copy_written || access.use == Access::Use::kWriteCopy;
}

}  // namespace lockstep::device::cpu
