#include "comm/region_communicator.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "comm/slices.h"
#include "device/futex.h"

namespace lockstep::comm {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto longest_sleep = std::chrono::milliseconds(20);        // so that an abort or the deadline is seen
constexpr auto time_between_looks = std::chrono::milliseconds(100);  // at the peers' locks

/// Additions of a norm's sum are cheaper: they need no pass over memory of their own.
constexpr std::size_t kFusedAdditions = 2;

void copy_bytes(std::byte* to, const std::byte* from, std::size_t bytes) {
  if (bytes != 0) std::memcpy(to, from, bytes);
}

}  // namespace

/// Marks the time inside a collective for the peers' reports.
class RegionCommunicator::Call {
 public:
  Call(RegionCommunicator& communicator, const CallRecord& record, const std::string& error)
      : status_(communicator.region_->status(communicator.rank_)) {
    if (!error.empty()) communicator.fail(describe(record) + ": " + error);
    if (communicator.region_->aborted()) throw CommError(communicator.region_->abort_reason());
    communicator.record_ = record;
    status_.operation.store(static_cast<std::uint32_t>(record.operation), std::memory_order_relaxed);
    status_.root.store(record.root, std::memory_order_relaxed);
    status_.size.store(record.size, std::memory_order_relaxed);
    status_.calls.store(status_.calls.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
    status_.in_call.store(1, std::memory_order_relaxed);
  }
  ~Call() { status_.in_call.store(0, std::memory_order_relaxed); }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

 private:
  RankStatus& status_;
};

RegionCommunicator::RegionCommunicator(std::shared_ptr<SharedRegion> region, int rank, const CommunicatorOptions& options,
                                       std::string_view name)
    : region_(std::move(region)),
      rank_(rank),
      size_(region_->size()),
      deadline_(options.deadline),
      spin_(device::spin_of(options.own_processors)),
      name_(name) {
  region_->status(rank_).attached.store(1, std::memory_order_release);
}

RegionCommunicator::~RegionCommunicator() {
  region_->status(rank_).left.store(1, std::memory_order_seq_cst);
  device::futex_wake_all(region_->arrival(rank_).epoch);
}

void RegionCommunicator::barrier() {
  const Call call(*this, barrier_record(), {});
  open_round();
  close_round();
}

void RegionCommunicator::broadcast(std::span<std::byte> bytes, int root) {
  check_root(root);
  const Call call(*this, broadcast_record(bytes.size(), root), {});
  std::size_t begin = 0;
  do {
    const std::size_t length = std::min(region_->slot_bytes(), bytes.size() - begin);
    open_round();
    if (rank_ == root) copy_bytes(slot(root), bytes.data() + begin, length);
    close_round();
    if (rank_ != root) copy_bytes(bytes.data() + begin, slot(root), length);
    begin += length;
  } while (begin < bytes.size());
}

void RegionCommunicator::all_gather(std::span<const std::byte> mine, std::span<std::byte> all,
                                    std::span<const std::size_t> bytes_per_rank) {
  const Call call(*this, gather_record(Operation::all_gather, bytes_per_rank, 0),
                  gather_error(mine, all, bytes_per_rank, rank_, size_, true));
  gather_pieces(mine, all, bytes_per_rank, true);
}

void RegionCommunicator::gather(std::span<const std::byte> mine, std::span<std::byte> all, std::span<const std::size_t> bytes_per_rank,
                                int root) {
  check_root(root);
  const bool receives = rank_ == root;
  const Call call(*this, gather_record(Operation::gather, bytes_per_rank, root),
                  gather_error(mine, all, bytes_per_rank, rank_, size_, receives));
  gather_pieces(mine, all, bytes_per_rank, receives);
}

void RegionCommunicator::gather_pieces(std::span<const std::byte> mine, std::span<std::byte> all,
                                       std::span<const std::size_t> bytes_per_rank, bool receives) {
  const std::size_t longest = *std::max_element(bytes_per_rank.begin(), bytes_per_rank.end());
  std::size_t begin = 0;
  const auto length_of = [&](std::size_t bytes) { return bytes > begin ? std::min(region_->slot_bytes(), bytes - begin) : 0; };
  do {
    open_round();
    copy_bytes(slot(rank_), mine.data() + begin, length_of(mine.size()));
    close_round();
    std::size_t place = begin;
    for (int peer = 0; receives && peer < size_; ++peer) {
      const std::size_t bytes = bytes_per_rank[static_cast<std::size_t>(peer)];
      copy_bytes(all.data() + place, slot(peer), length_of(bytes));
      place += bytes;
    }
    begin += region_->slot_bytes();
  } while (begin < longest);
}

void RegionCommunicator::all_reduce(const TreeSum& tree, float* values, std::size_t count) {
  const Call call(*this, all_reduce_record(tree, count), tree_error(tree, size_));
  if (additions_saved(total_roots(tree), static_cast<std::size_t>(size_), count) <= region_->slice_from_additions()) {
    reduce_direct(tree, values, count);
  } else {
    reduce_sliced(tree, values, count);
  }
}

/// Where the roots fit into a slot, and it does not pay to cut the sum in slices, the device adds them up, row by row, where it takes their
/// norms. It reads the slots of this round, this rank's too, later: not after begin_host_access(), which comes before the next call, and so
/// before any peer can be two rounds further.
void RegionCommunicator::all_reduce_add_norm(device::Device& device, const TreeSum& tree, const device::Matrix& partial,
                                             std::size_t num_rows, const ResidualNorm& then) {
  const std::size_t count = num_rows * partial.columns;
  const std::size_t most_roots =
      tree.roots_per_rank.empty() ? 0 : *std::max_element(tree.roots_per_rank.begin(), tree.roots_per_rank.end());
  const std::size_t ranks = static_cast<std::size_t>(size_);
  if (most_roots * count * sizeof(float) > region_->slot_bytes() || tree.roots_per_rank.size() != ranks ||
      additions_saved(total_roots(tree), ranks, count) > kFusedAdditions * region_->slice_from_additions())
    return Communicator::all_reduce_add_norm(device, tree, partial, num_rows, then);
  const Call call(*this, all_reduce_record(tree, count), tree_error(tree, size_));
  open_round();
  copy_roots(tree, static_cast<const float*>(partial.data), count, 0, count, float_slot(rank_));
  close_round();
  if (then.keep_sum) {
    float* sum = static_cast<float*>(partial.data);
    point_at_roots(tree, sum, count, 0, count, 0);
    tree_sum(tree, sources_, sum, count, scratch_);
    return device.add_norm(then.x, partial, num_rows, then.bias, then.norm, then.out);
  }
  point_at_roots(tree, float_slot(rank_), count, 0, count, 0);
  device.sum_add_norm(then.x, {sources_, tree.merges}, num_rows, then.bias, then.norm, then.out);
}

/// This rank's roots of the values [begin, begin + length), into `slot`: [roots, length].
void RegionCommunicator::copy_roots(const TreeSum& tree, const float* values, std::size_t count, std::size_t begin, std::size_t length,
                                    float* slot) const {
  const std::size_t roots = tree.roots_per_rank[static_cast<std::size_t>(rank_)];
  for (std::size_t root = 0; root < roots; ++root) std::copy_n(values + root * count + begin, length, slot + root * length);
}

/// `sources_`: where the roots of all ranks lie, this rank's in its own memory, the others' in the slots of this epoch, [roots, length]
/// after `slot_offset` values.
void RegionCommunicator::point_at_roots(const TreeSum& tree, const float* values, std::size_t count, std::size_t begin, std::size_t length,
                                        std::size_t slot_offset) {
  sources_.clear();
  for (int peer = 0; peer < size_; ++peer) {
    const float* first = peer == rank_ ? values + begin : float_slot(peer) + slot_offset;
    const std::size_t stride = peer == rank_ ? count : length;
    for (std::size_t root = 0; root < tree.roots_per_rank[static_cast<std::size_t>(peer)]; ++root)
      sources_.push_back(first + root * stride);
  }
}

void RegionCommunicator::reduce_direct(const TreeSum& tree, float* values, std::size_t count) {
  const std::size_t most_roots = *std::max_element(tree.roots_per_rank.begin(), tree.roots_per_rank.end());
  const std::size_t piece = region_->slot_bytes() / sizeof(float) / most_roots;
  if (piece == 0)
    fail("all_reduce: " + std::to_string(most_roots) + " roots do not fit in a slot of " + std::to_string(region_->slot_bytes()) +
         " bytes");
  std::size_t begin = 0;
  do {
    const std::size_t length = std::min(piece, count - begin);
    open_round();
    if (size_ > 1) copy_roots(tree, values, count, begin, length, float_slot(rank_));
    close_round();
    point_at_roots(tree, values, count, begin, length, 0);
    tree_sum(tree, sources_, values + begin, length, scratch_);
    begin += length;
  } while (begin < count);
}

/// Round k carries the roots of piece k and the finished slices of piece k - 1, so n pieces take n + 1 rounds. A slot is [slice of a
/// result][roots, piece].
void RegionCommunicator::reduce_sliced(const TreeSum& tree, float* values, std::size_t count) {
  const std::size_t ranks = static_cast<std::size_t>(size_);
  const std::size_t most_roots = *std::max_element(tree.roots_per_rank.begin(), tree.roots_per_rank.end());
  const Slices slices(count, ranks, region_->slot_bytes() / sizeof(float) / (1 + most_roots * ranks));
  if (!slices.fit()) return reduce_direct(tree, values, count);
  for (std::size_t piece = 0; piece <= slices.num_pieces(); ++piece) {
    const bool last = piece == slices.num_pieces();
    open_round();
    if (!last)
      copy_roots(tree, values, count, slices.begin_of_piece(piece), slices.length_of_piece(piece), float_slot(rank_) + slices.slice());
    close_round();
    for (int peer = 0; piece > 0 && peer < size_; ++peer) {
      std::copy_n(float_slot(peer), slices.length_of_slice(piece - 1, peer), values + slices.begin_of_slice(piece - 1, peer));
    }
    if (last) break;
    point_at_roots(tree, values, count, slices.begin_of_piece(piece), slices.length_of_piece(piece), slices.slice());
    for (const float*& source : sources_) source += slices.begin_of_slice(piece, rank_) - slices.begin_of_piece(piece);
    float* next_slot = reinterpret_cast<float*>(region_->slot(rank_, epoch_ + 1));
    tree_sum(tree, sources_, next_slot, slices.length_of_slice(piece, rank_), scratch_);
  }
}

bool RegionCommunicator::arrived(int peer) const {
  return static_cast<std::int32_t>(region_->arrival(peer).epoch.load(std::memory_order_acquire) - epoch_) >= 0;
}

void RegionCommunicator::close_round() {
  Arrival& mine = region_->arrival(rank_);
  mine.records[epoch_ & 1] = record_;
  mine.epoch.store(epoch_, std::memory_order_seq_cst);
  if (mine.waiters.load(std::memory_order_seq_cst) != 0) device::futex_wake_all(mine.epoch);
  for (int peer = 0; peer < size_; ++peer) {
    if (!arrived(peer)) wait_for(peer);
  }
  const CallRecord& first = region_->arrival(0).records[epoch_ & 1];
  for (int peer = 1; peer < size_; ++peer) {
    const CallRecord& record = region_->arrival(peer).records[epoch_ & 1];
    if (record != first) fail(describe_mismatch(0, first, peer, record));
  }
}

void RegionCommunicator::wait_for(int peer) {
  if (device::spin_until([&] { return arrived(peer); }, spin_)) return;
  Arrival& arrival = region_->arrival(peer);
  const auto start = Clock::now();
  auto next_look = start + time_between_looks;
  while (true) {
    arrival.waiters.fetch_add(1, std::memory_order_seq_cst);
    const std::uint32_t seen = arrival.epoch.load(std::memory_order_seq_cst);
    const bool sleeps = static_cast<std::int32_t>(seen - epoch_) < 0 && !region_->aborted() &&
                        region_->status(peer).left.load(std::memory_order_seq_cst) == 0;
    if (sleeps) device::futex_wait(arrival.epoch, seen, std::min<Clock::duration>(longest_sleep, deadline_));
    arrival.waiters.fetch_sub(1, std::memory_order_seq_cst);
    if (arrived(peer)) return;
    if (region_->aborted()) fail({});
    const auto now = Clock::now();
    if (now >= next_look || !sleeps) {
      look_for_the_dead(true);
      next_look = now + time_between_looks;
    }
    if (now - start >= deadline_) fail(late_report(peer));
  }
}

void RegionCommunicator::check() {
  if (region_->aborted()) fail({});
  const auto now = Clock::now();
  if (now < next_look_) return;
  look_for_the_dead(false);
  next_look_ = now + time_between_looks;
}

/// Fails if a rank has left or died that this round still needs; outside of a round, any rank.
void RegionCommunicator::look_for_the_dead(bool in_round) {
  for (int peer = 0; peer < size_; ++peer) {
    const RankStatus& status = region_->status(peer);
    if (peer == rank_ || status.attached.load(std::memory_order_acquire) == 0) continue;
    const bool left = status.left.load(std::memory_order_seq_cst) != 0;
    if (!left && region_->alive(peer)) continue;
    if (in_round && arrived(peer)) continue;  // it published before it went: the next round will miss it
    if (region_->aborted()) fail({});         // it went because somebody gave up
    fail(std::string(left ? "a rank has left while others wait for it" : "a rank has died") + ": " + region_->describe_rank(peer));
  }
}

std::string RegionCommunicator::late_report(int peer) {
  std::string text = "rank " + std::to_string(peer) + " is late: rank " + std::to_string(rank_) + " waited for " +
                     std::to_string(deadline_.count()) + " ms, which is the deadline. Where the ranks stand:";
  for (int each = 0; each < size_; ++each) text += "\n  " + region_->describe_rank(each) + (arrived(each) ? "" : "  <- late");
  return text;
}

void RegionCommunicator::check_root(int root) {
  if (root < 0 || root >= size_) fail("rank " + std::to_string(root) + " is the root, but there are " + std::to_string(size_) + " ranks");
}

/// Everybody throws the same text: the first that was published.
void RegionCommunicator::fail(const std::string& reason) {
  if (!reason.empty()) region_->abort(reason);
  throw CommError(region_->abort_reason());
}

}  // namespace lockstep::comm
