#include "device/cpu/step_program.h"

#include <algorithm>

namespace lockstep::device::cpu {

StepProgram::Entry& StepProgram::next_entry() {
  if (size_ == entries_.size()) entries_.resize(std::max<std::size_t>(64, 2 * size_));
  return entries_[size_++];
}

WalkReport StepProgram::run(ThreadPool& pool, Walk walk) {
  meetings_ = {};
  for (std::size_t i = 0; i < size_; ++i) ++meetings_[static_cast<std::size_t>(entries_[i].before)];
  const bool opens = walk == Walk::kAsTheyCan;
  const WalkReport report = pool.walk(walk, [this, &pool, opens](std::size_t thread, std::size_t place) noexcept {
    for (std::size_t i = place; i < size_; ++i) {
      const Entry& entry = entries_[i];
      if (i != place) {
        const bool meets = entry.before == Meeting::kBarrier || (opens && entry.before == Meeting::kOpening);
        if (meets && pool.leave_at_barrier(thread, i)) return;
        if (entry.before == Meeting::kArrival) pool.arrive(thread);
      }
      entry.call(entry.stored, thread);
      if (pool.does_neighbours(thread)) entry.call(entry.stored, thread + 1);
    }
  });
  clear();
  return report;
}

void StepProgram::clear() {
  size_ = 0;
  touched_.clear();
}

StepProgram::Meeting StepProgram::note(std::span<const Access> accesses) {
  Meeting meeting = Meeting::kNone;
  for (const Access& access : accesses) meeting = std::max(meeting, needed(access));
  if (meeting == Meeting::kBarrier) touched_.clear();
  for (const Access& access : accesses) remember(access);
  return meeting;
}

StepProgram::Meeting StepProgram::needed(const Access& access) const {
  const auto found = std::find_if(touched_.begin(), touched_.end(), [&](const Touched& each) { return each.buffer == access.buffer; });
  if (found == touched_.end()) return Meeting::kNone;
  const Touched& before = *found;
  const bool same_shares = access.shares != nullptr && access.shares == before.shares;
  const auto barrier_if = [](bool conflict) { return conflict ? Meeting::kBarrier : Meeting::kNone; };
  switch (access.use) {
    case Access::Use::kRead: return barrier_if((before.written && !same_shares) || before.copy_written);
    case Access::Use::kReadAwaited:
    case Access::Use::kChangeAwaited: {
      const bool changes = access.use == Access::Use::kChangeAwaited;
      if (before.copy_written || (changes && (before.read || before.copy_read))) return Meeting::kBarrier;
      if (!before.written) return Meeting::kNone;
      return before.only_parts ? Meeting::kArrival : Meeting::kBarrier;
    }
    case Access::Use::kWrite: return barrier_if(before.read || before.written || before.copy_read || before.copy_written);
    case Access::Use::kWritePart:
      return barrier_if(before.read || (before.written && !before.only_parts) || before.copy_read || before.copy_written);
    case Access::Use::kReadCopy: return barrier_if(before.written);
    case Access::Use::kWriteCopy: return barrier_if(before.read || before.written);
  }
  return Meeting::kNone;
}

void StepProgram::remember(const Access& access) {
  auto found = std::find_if(touched_.begin(), touched_.end(), [&](const Touched& before) { return before.buffer == access.buffer; });
  if (found == touched_.end()) found = touched_.insert(touched_.end(), {access.buffer, access.shares, false, false, true, false, false});
  Touched& now = *found;
  const bool writes =
      access.use == Access::Use::kWrite || access.use == Access::Use::kWritePart || access.use == Access::Use::kChangeAwaited;
  if (writes && now.written && now.shares != access.shares) now.shares = nullptr;
  if (writes && !now.written) now.shares = access.shares;
  now.read = now.read || access.use == Access::Use::kRead || access.use == Access::Use::kReadAwaited;
  now.only_parts = now.only_parts && access.use != Access::Use::kWrite;
  now.written = now.written || writes;
  now.copy_read = now.copy_read || access.use == Access::Use::kReadCopy;
  now.copy_written = now.copy_written || access.use == Access::Use::kWriteCopy;
}

}  // namespace lockstep::device::cpu
