#include "comm/mpi.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

#include "comm/call_record.h"
#include "comm/slices.h"
#include "comm/tree_sum.h"
#include "device/futex.h"

namespace lockstep::comm {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int data_tag = 1;
constexpr int abort_tag = 2;
constexpr std::size_t abort_bytes = 3500;  // below every transport's eager limit: such a message leaves even if nobody receives it
constexpr std::size_t message_cost = 8;    // a second round of messages costs more than one in shared memory by about this factor
constexpr auto time_to_tell_peers = std::chrono::milliseconds(200);

/// Goes before the data of every message.
struct Header {
  CallRecord record;
  std::uint64_t call = 0;
  Position position;
};

/// What MPI may still read and write after a failure; it is left alone then, never freed.
struct Lasting {
  MPI_Comm data = MPI_COMM_NULL;
  MPI_Comm control = MPI_COMM_NULL;
  std::vector<std::vector<std::byte>> outgoing;  // one per peer; [rank] is the one that goes to everybody
  std::vector<std::vector<std::byte>> incoming;
  std::array<char, abort_bytes> abort_sent{};
  std::array<char, abort_bytes> abort_received{};
};

class MpiCommunicator final : public Communicator {
 public:
  MpiCommunicator(MPI_Comm group, const CommunicatorOptions& options);
  ~MpiCommunicator() override;
  MpiCommunicator(const MpiCommunicator&) = delete;
  MpiCommunicator& operator=(const MpiCommunicator&) = delete;

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::string_view name() const override { return "mpi"; }
  void all_reduce(const TreeSum& tree, float* values, std::size_t count) override;
  void all_gather(std::span<const std::byte> mine, std::span<std::byte> all, std::span<const std::size_t> bytes_per_rank) override;
  void gather(std::span<const std::byte> mine, std::span<std::byte> all, std::span<const std::size_t> bytes_per_rank, int root) override;
  void broadcast(std::span<std::byte> bytes, int root) override;
  void barrier() override;
  void check() override;
  void abort(std::string_view reason) noexcept override;
  void set_position(const Position& position) noexcept override { position_ = position; }

 private:
  void open(MPI_Comm group);
  void begin(const CallRecord& record, const std::string& error);
  void gather_pieces(std::span<const std::byte> mine, std::span<std::byte> all, std::span<const std::size_t> bytes_per_rank, int root);
  void reduce_direct(const TreeSum& tree, float* values, std::size_t count);
  void reduce_sliced(const TreeSum& tree, float* values, std::size_t count, const Slices& slices);
  void point_at_roots(const TreeSum& tree, const float* values, std::size_t count, std::size_t begin, std::size_t length);

  /// The data of the message to `peer` (rank_: to all peers), and of the one that came from it.
  std::byte* outgoing(int peer) { return lasting_->outgoing[static_cast<std::size_t>(peer)].data() + sizeof(Header); }
  std::byte* incoming(int peer) { return lasting_->incoming[static_cast<std::size_t>(peer)].data() + sizeof(Header); }
  template <class BytesTo>
  void exchange(bool one_for_all, const BytesTo& bytes_to);
  void check_headers();
  void wait_for_all(std::vector<MPI_Request>& requests);
  void poll();
  bool has_failed();
  void send_abort();
  std::string late_report();
  void check(int code, const char* what);
  void check_root(int root);
  [[noreturn]] void fail(const std::string& reason);

  int rank_ = 0;
  int size_ = 1;
  CommunicatorOptions options_;
  CallRecord record_;
  std::uint64_t call_ = 0;
  Position position_;
  std::unique_ptr<Lasting> lasting_ = std::make_unique<Lasting>();
  bool ready_ = false;                 // both communicators are there
  std::vector<MPI_Request> requests_;  // of the round: [peer] receives, [size + peer] sends
  std::vector<MPI_Request> abort_requests_;
  MPI_Request abort_receive_ = MPI_REQUEST_NULL;
  std::vector<Header> heard_;  // the last header of each rank
  std::vector<const float*> sources_;
  TreeScratch scratch_;

  std::atomic<std::thread::id> user_ = std::this_thread::get_id();
  bool any_thread_may_send_ = false;
  const int exceptions_at_birth_ = std::uncaught_exceptions();
  std::recursive_mutex mutex_;  // the three below, and the sending of an abort
  bool failed_ = false;
  bool peers_know_ = false;
  std::string reason_;
};

MpiCommunicator::MpiCommunicator(MPI_Comm group, const CommunicatorOptions& options) : options_(options) {
  MPI_Comm_rank(group, &rank_);
  MPI_Comm_size(group, &size_);
  check_options(options, size_);
  heard_.resize(static_cast<std::size_t>(size_));
  requests_.assign(2 * heard_.size(), MPI_REQUEST_NULL);
  record_ = barrier_record();
  try {
    open(group);
  } catch (...) {
    (void)lasting_.release();
    throw;
  }
}

void MpiCommunicator::open(MPI_Comm group) {
  for (MPI_Comm* duplicate : {&lasting_->data, &lasting_->control}) {  // one after the other: each agrees on an identifier
    std::vector<MPI_Request> request(1, MPI_REQUEST_NULL);
    check(MPI_Comm_idup(group, duplicate, request.data()), "MPI_Comm_idup");
    wait_for_all(request);
    MPI_Comm_set_errhandler(*duplicate, MPI_ERRORS_RETURN);
  }
  int level = MPI_THREAD_SINGLE;
  MPI_Query_thread(&level);
  any_thread_may_send_ = level == MPI_THREAD_MULTIPLE;
  const std::vector<std::byte> room(sizeof(Header) + options_.slot_bytes);
  lasting_->outgoing.assign(heard_.size(), room);
  lasting_->incoming.assign(heard_.size(), room);
  const int bytes = static_cast<int>(abort_bytes);
  check(MPI_Irecv(lasting_->abort_received.data(), bytes, MPI_CHAR, MPI_ANY_SOURCE, abort_tag, lasting_->control, &abort_receive_),
        "MPI_Irecv");
  ready_ = true;
  // Ranks with other options would cut their messages in another way: the first exchange compares them.
  begin({Operation::barrier, 0, options_.slot_bytes, options_.slice_from_additions}, {});
  exchange(true, [](int) { return 0; });
}

MpiCommunicator::~MpiCommunicator() {
  int finalized = 0;
  MPI_Finalized(&finalized);
  if (std::uncaught_exceptions() > exceptions_at_birth_ && !has_failed() && finalized == 0) {
    user_ = std::this_thread::get_id();
    abort("rank " + std::to_string(rank_) + " has left because of an error");
  }
  if (has_failed() || finalized != 0) {
    if (finalized == 0 && !peers_know_) send_abort();
    (void)lasting_.release();  // MPI may still read and write them
    return;
  }
  MPI_Cancel(&abort_receive_);
  MPI_Wait(&abort_receive_, MPI_STATUS_IGNORE);
  MPI_Comm_free(&lasting_->control);
  MPI_Comm_free(&lasting_->data);
}

void MpiCommunicator::begin(const CallRecord& record, const std::string& error) {
  user_ = std::this_thread::get_id();
  if (!error.empty()) fail(describe(record) + ": " + error);
  if (size_ > 1) poll();
  if (has_failed()) fail({});
  record_ = record;
  ++call_;
}

void MpiCommunicator::barrier() {
  begin(barrier_record(), {});
  exchange(true, [](int) { return 0; });
}

void MpiCommunicator::check() {
  user_ = std::this_thread::get_id();
  if (size_ > 1) poll();
  if (has_failed()) fail({});
}

void MpiCommunicator::broadcast(std::span<std::byte> bytes, int root) {
  check_root(root);
  begin(broadcast_record(bytes.size(), root), {});
  std::size_t start = 0;
  do {
    const std::size_t length = std::min(options_.slot_bytes, bytes.size() - start);
    if (rank_ == root && length != 0) std::memcpy(outgoing(rank_), bytes.data() + start, length);
    exchange(true, [&](int) { return rank_ == root ? length : 0; });
    if (rank_ != root && length != 0) std::memcpy(bytes.data() + start, incoming(root), length);
    start += length;
  } while (start < bytes.size());
}

void MpiCommunicator::all_gather(std::span<const std::byte> mine, std::span<std::byte> all, std::span<const std::size_t> bytes_per_rank) {
  begin(gather_record(Operation::all_gather, bytes_per_rank, 0), gather_error(mine, all, bytes_per_rank, rank_, size_, true));
  gather_pieces(mine, all, bytes_per_rank, -1);
}

void MpiCommunicator::gather(std::span<const std::byte> mine, std::span<std::byte> all, std::span<const std::size_t> bytes_per_rank,
                             int root) {
  check_root(root);
  begin(gather_record(Operation::gather, bytes_per_rank, root), gather_error(mine, all, bytes_per_rank, rank_, size_, rank_ == root));
  gather_pieces(mine, all, bytes_per_rank, root);
}

/// `root`: who receives, -1 for everybody.
void MpiCommunicator::gather_pieces(std::span<const std::byte> mine, std::span<std::byte> all, std::span<const std::size_t> bytes_per_rank,
                                    int root) {
  const std::size_t longest = *std::max_element(bytes_per_rank.begin(), bytes_per_rank.end());
  const auto receives = [&](int peer) { return root < 0 || root == peer; };
  std::size_t start = 0;
  const auto length_of = [&](int peer) {
    const std::size_t bytes = bytes_per_rank[static_cast<std::size_t>(peer)];
    return bytes > start ? std::min(options_.slot_bytes, bytes - start) : 0;
  };
  do {
    const std::byte* own = mine.data() + start;
    if (length_of(rank_) != 0) std::memcpy(outgoing(rank_), own, length_of(rank_));
    exchange(true, [&](int peer) { return receives(peer) ? length_of(rank_) : 0; });
    std::size_t place = start;
    for (int peer = 0; receives(rank_) && peer < size_; ++peer) {
      if (length_of(peer) != 0) std::memcpy(all.data() + place, peer == rank_ ? own : incoming(peer), length_of(peer));
      place += bytes_per_rank[static_cast<std::size_t>(peer)];
    }
    start += options_.slot_bytes;
  } while (start < longest);
}

void MpiCommunicator::all_reduce(const TreeSum& tree, float* values, std::size_t count) {
  begin(all_reduce_record(tree, count), tree_error(tree, size_));
  const std::size_t most_roots = *std::max_element(tree.roots_per_rank.begin(), tree.roots_per_rank.end());
  const Slices slices(count, static_cast<std::size_t>(size_), options_.slot_bytes / sizeof(float) / most_roots);
  if (additions_saved(total_roots(tree), static_cast<std::size_t>(size_), count) <= message_cost * options_.slice_from_additions ||
      !slices.fit()) {
    reduce_direct(tree, values, count);
  } else {
    reduce_sliced(tree, values, count, slices);
  }
}

/// `sources_`: where the roots of all ranks lie, this rank's from `begin` on in its own memory, the others' in their messages, [roots,
/// length].
void MpiCommunicator::point_at_roots(const TreeSum& tree, const float* values, std::size_t count, std::size_t begin, std::size_t length) {
  sources_.clear();
  for (int peer = 0; peer < size_; ++peer) {
    const float* first = peer == rank_ ? values + begin : reinterpret_cast<const float*>(incoming(peer));
    const std::size_t stride = peer == rank_ ? count : length;
    for (std::size_t root = 0; root < tree.roots_per_rank[static_cast<std::size_t>(peer)]; ++root)
      sources_.push_back(first + root * stride);
  }
}

/// All roots go to everybody, who finishes the tree.
void MpiCommunicator::reduce_direct(const TreeSum& tree, float* values, std::size_t count) {
  const auto roots_of = [&](int peer) -> std::size_t { return tree.roots_per_rank[static_cast<std::size_t>(peer)]; };
  const std::size_t most_roots = *std::max_element(tree.roots_per_rank.begin(), tree.roots_per_rank.end());
  const std::size_t piece = options_.slot_bytes / sizeof(float) / most_roots;
  if (piece == 0)
    fail("all_reduce: " + std::to_string(most_roots) + " roots do not fit in a slot of " + std::to_string(options_.slot_bytes) + " bytes");
  std::size_t start = 0;
  do {
    const std::size_t length = std::min(piece, count - start);
    for (std::size_t root = 0; length != 0 && root < roots_of(rank_); ++root) {
      std::memcpy(outgoing(rank_) + root * length * sizeof(float), values + root * count + start, length * sizeof(float));
    }
    exchange(true, [&](int) { return roots_of(rank_) * length * sizeof(float); });
    point_at_roots(tree, values, count, start, length);
    tree_sum(tree, sources_, values + start, length, scratch_);
    start += length;
  } while (start < count);
}

/// Each rank gets its slice of all roots, finishes the tree there, and sends the result to everybody.
void MpiCommunicator::reduce_sliced(const TreeSum& tree, float* values, std::size_t count, const Slices& slices) {
  const auto roots_of = [&](int peer) -> std::size_t { return tree.roots_per_rank[static_cast<std::size_t>(peer)]; };
  for (std::size_t piece = 0; piece < slices.num_pieces(); ++piece) {
    const auto slice_bytes = [&](int peer) { return slices.length_of_slice(piece, peer) * sizeof(float); };
    const auto slice_of = [&](int peer) { return values + slices.begin_of_slice(piece, peer); };
    for (int peer = 0; peer < size_; ++peer) {
      for (std::size_t root = 0; peer != rank_ && slice_bytes(peer) != 0 && root < roots_of(rank_); ++root) {
        std::memcpy(outgoing(peer) + root * slice_bytes(peer), slice_of(peer) + root * count, slice_bytes(peer));
      }
    }
    exchange(false, [&](int peer) { return roots_of(rank_) * slice_bytes(peer); });
    point_at_roots(tree, values, count, slices.begin_of_slice(piece, rank_), slices.length_of_slice(piece, rank_));
    tree_sum(tree, sources_, slice_of(rank_), slices.length_of_slice(piece, rank_), scratch_);
    if (slice_bytes(rank_) != 0) std::memcpy(outgoing(rank_), slice_of(rank_), slice_bytes(rank_));
    exchange(true, [&](int) { return slice_bytes(rank_); });
    for (int peer = 0; peer < size_; ++peer) {
      if (peer != rank_ && slice_bytes(peer) != 0) std::memcpy(slice_of(peer), incoming(peer), slice_bytes(peer));
    }
  }
}

/// One round: a message, if only a header, from everybody to everybody. `one_for_all`: all peers get (a part of) the same data,
/// outgoing(rank_).
template <class BytesTo>
void MpiCommunicator::exchange(bool one_for_all, const BytesTo& bytes_to) {
  const Header header{record_, call_, position_};
  const std::size_t ranks = heard_.size();
  for (std::size_t peer = 0; peer < ranks; ++peer) {
    if (static_cast<int>(peer) == rank_) continue;
    std::vector<std::byte>& buffer = lasting_->incoming[peer];
    check(MPI_Irecv(buffer.data(), static_cast<int>(buffer.size()), MPI_BYTE, static_cast<int>(peer), data_tag, lasting_->data,
                    &requests_[peer]),
          "MPI_Irecv");
  }
  if (one_for_all) std::memcpy(static_cast<void*>(outgoing(rank_) - sizeof(Header)), &header, sizeof header);
  for (std::size_t peer = 0; peer < ranks; ++peer) {
    if (static_cast<int>(peer) == rank_) continue;
    std::byte* message = outgoing(one_for_all ? rank_ : static_cast<int>(peer)) - sizeof(Header);
    if (!one_for_all) std::memcpy(static_cast<void*>(message), &header, sizeof header);
    const int bytes = static_cast<int>(sizeof header + bytes_to(static_cast<int>(peer)));
    check(MPI_Isend(message, bytes, MPI_BYTE, static_cast<int>(peer), data_tag, lasting_->data, &requests_[ranks + peer]), "MPI_Isend");
  }
  wait_for_all(requests_);
  check_headers();
}

void MpiCommunicator::check_headers() {
  for (std::size_t peer = 0; peer < heard_.size(); ++peer) {
    if (static_cast<int>(peer) == rank_) {
      heard_[peer] = {record_, call_, position_};
    } else {
      std::memcpy(static_cast<void*>(&heard_[peer]), lasting_->incoming[peer].data(), sizeof(Header));
    }
  }
  for (std::size_t peer = 1; peer < heard_.size(); ++peer) {
    if (heard_[peer].record != heard_[0].record) fail(describe_mismatch(0, heard_[0].record, static_cast<int>(peer), heard_[peer].record));
  }
}

/// Polls; gives the core away after a while, and sleeps a little when nothing comes for long.
void MpiCommunicator::wait_for_all(std::vector<MPI_Request>& requests) {
  const auto start = Clock::now();
  for (std::uint64_t turn = 1;; ++turn) {
    int done = 0;
    check(MPI_Testall(static_cast<int>(requests.size()), requests.data(), &done, MPI_STATUSES_IGNORE), "MPI_Testall");
    if (done != 0) return;
    if (turn % 16 == 0) poll();
    if (has_failed()) fail({});
    if (turn < 200) {
      device::spin_pause();
      continue;
    }
    const auto waited = Clock::now() - start;
    if (waited >= options_.deadline) fail(late_report());
    if (waited < std::chrono::milliseconds(2)) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  }
}

/// Passes on an abort of this rank that came from another thread, and takes one of a peer.
void MpiCommunicator::poll() {
  if (abort_receive_ == MPI_REQUEST_NULL) return;
  const std::lock_guard lock(mutex_);
  if (failed_ && !peers_know_) send_abort();
  int arrived = 0;
  MPI_Test(&abort_receive_, &arrived, MPI_STATUS_IGNORE);
  if (arrived == 0) return;
  if (!failed_) reason_.assign(lasting_->abort_received.data(), strnlen(lasting_->abort_received.data(), abort_bytes));
  failed_ = true;
  peers_know_ = true;  // who gave up has told everybody
}

bool MpiCommunicator::has_failed() {
  const std::lock_guard lock(mutex_);
  return failed_;
}

void MpiCommunicator::abort(std::string_view reason) noexcept {
  const std::lock_guard lock(mutex_);
  if (failed_) return;
  failed_ = true;
  reason_ = reason.substr(0, abort_bytes - 1);
  if (any_thread_may_send_ || user_.load() == std::this_thread::get_id()) send_abort();
}

void MpiCommunicator::send_abort() {
  const std::lock_guard lock(mutex_);
  peers_know_ = true;
  if (!ready_) return;
  std::copy(reason_.begin(), reason_.end(), lasting_->abort_sent.begin());
  for (int peer = 0; peer < size_; ++peer) {
    if (peer == rank_) continue;
    abort_requests_.push_back(MPI_REQUEST_NULL);
    MPI_Isend(lasting_->abort_sent.data(), static_cast<int>(abort_bytes), MPI_CHAR, peer, abort_tag, lasting_->control,
              &abort_requests_.back());
  }
  const auto start = Clock::now();
  int done = 0;
  while (done == 0 && Clock::now() - start < time_to_tell_peers) {
    MPI_Testall(static_cast<int>(abort_requests_.size()), abort_requests_.data(), &done, MPI_STATUSES_IGNORE);
  }
}

std::string MpiCommunicator::late_report() {
  if (!ready_)
    return "a rank has not come within " + std::to_string(options_.deadline.count()) + " ms, the deadline, to make the MPI communicator";
  std::string text;
  std::string late;
  for (int each = 0; each < size_; ++each) {
    const Header& heard = heard_[static_cast<std::size_t>(each)];
    MPI_Request& receive = requests_[static_cast<std::size_t>(each)];
    int arrived = 1;
    if (receive != MPI_REQUEST_NULL) MPI_Test(&receive, &arrived, MPI_STATUS_IGNORE);
    const std::string line = "step " + std::to_string(each == rank_ ? position_.step : heard.position.step) + ", node " +
                             std::string(each == rank_ ? position_.node : heard.position.node);
    text += "\n  rank " + std::to_string(each) + ": ";
    if (each == rank_) {
      text += line + ", in collective " + std::to_string(call_) + ": " + describe(record_);
    } else if (arrived != 0) {
      text += "has come to collective " + std::to_string(call_);
    } else {
      text +=
          "not heard from; last in collective " + std::to_string(heard.call) + ": " + describe(heard.record) + ", at " + line + "  <- late";
      late += (late.empty() ? "" : ", ") + std::to_string(each);
    }
  }
  return "rank " + (late.empty() ? "(unknown)" : late) + " is late: rank " + std::to_string(rank_) + " waited for " +
         std::to_string(options_.deadline.count()) + " ms, which is the deadline. Where the ranks stand, as rank " + std::to_string(rank_) +
         " knows:" + text;
}

void MpiCommunicator::check(int code, const char* what) {
  if (code == MPI_SUCCESS) return;
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  MPI_Error_string(code, text.data(), &length);
  fail(std::string("rank ") + std::to_string(rank_) + ": " + what + ": " + std::string(text.data(), static_cast<std::size_t>(length)) +
       " in collective " + std::to_string(call_) + ": " + describe(record_) + " (has a rank died?)");
}

void MpiCommunicator::check_root(int root) {
  if (root < 0 || root >= size_) fail("rank " + std::to_string(root) + " is the root, but there are " + std::to_string(size_) + " ranks");
}

void MpiCommunicator::fail(const std::string& reason) {
  if (!reason.empty()) abort(reason);
  const std::lock_guard lock(mutex_);
  if (!peers_know_) send_abort();
  throw CommError(reason_);
}

}  // namespace

std::unique_ptr<Communicator> make_mpi_communicator(MPI_Comm group, const CommunicatorOptions& options) {
  return std::make_unique<MpiCommunicator>(group, options);
}

}  // namespace lockstep::comm
