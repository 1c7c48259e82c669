#include "comm/cuda/cuda_communicator.h"

#include <algorithm>
#include <atomic>
#include <deque>
#include <exception>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "comm/cuda/ipc_exchange.h"
#include "comm/cuda/nccl_all_reduce.h"
#include "comm/cuda/rank_card.h"
#include "comm/cuda/tuning.h"
#include "comm/tree_sum.h"
#include "device/cuda/error.h"
#include "device/cuda/memory.h"

namespace lockstep::comm {
namespace {

using cuda::built_in_table;
using cuda::card_error;
using cuda::exchange_cards;
using cuda::HostWords;
using cuda::IpcExchange;
using cuda::IpcView;
using cuda::Launch;
using cuda::make_card;
using cuda::make_tree_program;
using cuda::name_of;
using cuda::NcclAllReduce;
using cuda::RankCard;
using cuda::read_table;
using cuda::reduce_one_shot;
using cuda::reduce_one_shot_add_norm;
using cuda::reduce_two_shot;
using cuda::sum_gathered;
using cuda::Transport;
using cuda::TransportTable;
using cuda::TreeProgram;
using device::cuda::PinnedMemory;
using device::cuda::rows_of;

using Clock = std::chrono::steady_clock;

constexpr std::size_t most_programs = 16;
constexpr auto patience = std::chrono::milliseconds(500);  // with the rank's thread, before another one ends its operations
constexpr auto time_to_drain = std::chrono::seconds(2);    // after a failure, for kernels that have been told to leave

/// What kernels read and write. It is left alone for ever where a kernel hangs.
struct Lasting {
  PinnedMemory words;
  std::optional<IpcExchange> exchange;
  std::optional<NcclAllReduce> nccl;
};

class Member final : public CudaCommunicator {
 public:
  Member(Communicator& host, const CudaCommunicatorOptions& options);
  ~Member() override;
  Member(const Member&) = delete;
  Member& operator=(const Member&) = delete;

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::string_view name() const override { return "cuda"; }
  std::string description() const override;
  const TransportTable& table() const override { return table_; }

  void all_reduce(const TreeSum& tree, float* values, std::size_t count) override;
  void all_reduce_add_norm(device::Device& device, const TreeSum& tree, const device::Matrix& partial, std::size_t num_rows,
                           const ResidualNorm& then) override;
  void all_gather(std::span<const std::byte> mine, std::span<std::byte> all, std::span<const std::size_t> bytes_per_rank) override {
    guarded([&] { host_.all_gather(mine, all, bytes_per_rank); });
  }
  void gather(std::span<const std::byte> mine, std::span<std::byte> all, std::span<const std::size_t> bytes_per_rank, int root) override {
    guarded([&] { host_.gather(mine, all, bytes_per_rank, root); });
  }
  void broadcast(std::span<std::byte> bytes, int root) override {
    guarded([&] { host_.broadcast(bytes, root); });
  }
  void barrier() override {
    guarded([&] { host_.barrier(); });
  }
  void check() override {
    guarded([&] { look(); });
  }
  void waiting(Clock::duration so_far) override;
  void abort(std::string_view reason) noexcept override;
  void set_position(const Position& position) noexcept override {
    position_ = position;
    host_.set_position(position);
  }

 private:
  void open();
  void open_mapped_memory(std::span<const RankCard> cards);
  void look();
  const TreeProgram& program_of(const TreeSum& tree);
  Transport choose(const TreeProgram& program, std::size_t count) const;
  std::string late_report() const;
  [[noreturn]] void throw_first_reason();
  bool has_failed();
  void stop_operations() noexcept;
  void leave();
  bool drained(Clock::duration limit, bool all_is_well);
  template <class Call>
  void guarded(const Call& call);

  std::uint32_t word(const std::uint32_t& word) const {
    return std::atomic_ref(const_cast<std::uint32_t&>(word)).load(std::memory_order_acquire);
  }
  HostWords& words() const { return *lasting_->words.as<HostWords>(); }
  Launch where() const { return {options_.stream, options_.num_multiprocessors}; }

  Communicator& host_;
  const CudaCommunicatorOptions options_;
  const int rank_;
  const int size_;
  const int exceptions_at_birth_ = std::uncaught_exceptions();
  TransportTable table_;
  std::unique_ptr<Lasting> lasting_ = std::make_unique<Lasting>();
  std::deque<std::pair<TreeSum, TreeProgram>> programs_;  // of the latest trees
  Position position_;
  std::atomic<std::thread::id> user_ = std::this_thread::get_id();
  std::mutex mutex_;  // of the two below
  bool failed_ = false;
  std::string reason_;
};

std::uint64_t digest_of(const CudaCommunicatorOptions& options, const TransportTable& table) {
  std::uint64_t digest = 0xcbf29ce484222325u;
  const auto add = [&](std::uint64_t value) { digest = (digest ^ value) * 0x100000001b3u ^ digest >> 29; };
  for (const std::uint64_t value : {std::uint64_t{options.fast}, std::uint64_t{options.same_machine}, std::uint64_t{options.share_gpu},
                                    std::uint64_t{options.max_values}, std::uint64_t{options.max_roots}, std::uint64_t{options.slot_bytes}})
    add(value);
  for (const TransportTable::Entry& entry : table.entries) {
    add(entry.from_bytes);
    add(static_cast<std::uint64_t>(entry.transport));
  }
  return digest;
}

Member::Member(Communicator& host, const CudaCommunicatorOptions& options)
    : host_(host), options_(options), rank_(host.rank()), size_(host.size()) {
  try {
    open();
  } catch (const std::exception& error) {
    abort(error.what());
    stop_operations();
    throw;
  }
}

void Member::open() {
  if (options_.stream == nullptr) throw std::invalid_argument("communication between GPUs needs a stream of its own, not the default one");
  table_ = options_.table ? *options_.table : options_.tuning.empty() ? built_in_table(options_.same_machine) : read_table(options_.tuning);
  const std::vector<RankCard> cards = exchange_cards(host_, make_card(digest_of(options_, table_)));
  if (const std::string error = card_error(cards, options_.share_gpu); !error.empty()) throw CommError(error);
  lasting_->words = PinnedMemory(sizeof(HostWords), "the words between host and GPU");
  new (lasting_->words.data()) HostWords;
  if (size_ == 1) return;
  if (table_.uses_mapped_memory() && !options_.fast) open_mapped_memory(cards);
  if (table_.uses_nccl() || options_.fast) lasting_->nccl.emplace(host_, options_.deadline, options_.max_values * options_.max_roots);
  host_.barrier();
}

/// Where some ranks cannot map each other's memory, all go without; a table from a file must not ask for it then.
void Member::open_mapped_memory(std::span<const RankCard> cards) {
  std::string error;
  if (!options_.same_machine) error = "the ranks are on several machines";
  if (size_ > static_cast<int>(IpcView::max_ranks)) error = "there are more than " + std::to_string(IpcView::max_ranks) + " ranks";
  std::optional<IpcExchange>& exchange = lasting_->exchange;
  if (error.empty()) {
    exchange.emplace(host_, options_.stream, cards, options_.slot_bytes, &words());
    error = exchange->error();
  }
  if (error.empty()) return;
  if (exchange) {
    exchange->close();
    host_.barrier();
    exchange.reset();
  }
  if (!options_.tuning.empty()) throw CommError(options_.tuning.string() + " asks for memory that all ranks can map, but " + error);
  table_ = built_in_table(false);
}

Member::~Member() {
  try {
    if (std::uncaught_exceptions() > exceptions_at_birth_)
      throw CommError("rank " + std::to_string(rank_) + " has left because of an error");
    if (!has_failed()) leave();
  } catch (const std::exception& error) {
    abort(error.what());
  }
  if (has_failed()) stop_operations();
  if (has_failed() && !drained(time_to_drain, false)) (void)lasting_.release();  // to free what a kernel uses would hang
}

/// Nobody frees memory that a peer still reads, or that it has mapped.
void Member::leave() {
  if (!drained(options_.deadline, true)) throw CommError(late_report());
  if (options_.forget_recordings) options_.forget_recordings();
  if (lasting_->nccl) lasting_->nccl->group().finish();
  host_.barrier();
  if (!lasting_->exchange) return;
  lasting_->exchange->close();
  host_.barrier();
}

/// Waits for the stream. A stream under capture has nothing that could be waited for.
bool Member::drained(Clock::duration limit, bool all_is_well) {
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  if (cudaStreamIsCapturing(options_.stream, &capture) != cudaSuccess || capture != cudaStreamCaptureStatusNone) return true;
  const auto start = Clock::now();
  while (cudaStreamQuery(options_.stream) == cudaErrorNotReady) {
    if (all_is_well) look();
    if (Clock::now() - start >= limit) return false;
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
  return true;
}

std::string Member::description() const {
  if (options_.fast) return "ncclAllReduce";
  std::string text = lasting_->exchange ? "CUDA IPC" : "NCCL";
  if (lasting_->exchange && lasting_->nccl) text += " and NCCL";
  for (const TransportTable::Entry& entry : table_.entries)
    text += ", " + std::string(name_of(entry.transport)) + " from " + std::to_string(entry.from_bytes);
  return text + " bytes";
}

void Member::all_reduce(const TreeSum& tree, float* values, std::size_t count) {
  guarded([&] {
    look();
    if (const std::string error = tree_error(tree, size_); !error.empty()) throw CommError("all_reduce: " + error);
    if (count == 0) return;
    const TreeProgram& program = program_of(tree);
    if (size_ == 1) return sum_gathered(where(), program, {0, values, count, nullptr, 0, 1}, values, count);
    if (options_.fast) return lasting_->nccl->fast(where(), tree, values, count);
    switch (choose(program, count)) {
      case Transport::kOneShot: return reduce_one_shot(where(), lasting_->exchange->view(), program, values, count);
      case Transport::kTwoShot: return reduce_two_shot(where(), lasting_->exchange->view(), program, values, count);
      case Transport::kNcclGather: return lasting_->nccl->gather(where(), program, tree, values, count);
      case Transport::kNcclSlices: return lasting_->nccl->slices(where(), program, tree, values, count);
    }
  });
}

void Member::all_reduce_add_norm(device::Device& device, const TreeSum& tree, const device::Matrix& partial, std::size_t num_rows,
                                 const ResidualNorm& then) {
  const std::size_t count = num_rows * partial.columns;
  if (size_ == 1 || then.keep_sum || options_.fast || count == 0 || !tree_error(tree, size_).empty() ||
      choose(program_of(tree), count) != Transport::kOneShot) {
    return Communicator::all_reduce_add_norm(device, tree, partial, num_rows, then);
  }
  guarded([&] {
    look();
    reduce_one_shot_add_norm(where(), lasting_->exchange->view(), program_of(tree), rows_of(partial), num_rows, rows_of(then.x), then.bias,
                             then.norm, rows_of(then.out));
  });
}

const TreeProgram& Member::program_of(const TreeSum& tree) {
  const auto found = std::find_if(programs_.begin(), programs_.end(), [&](const auto& known) { return known.first == tree; });
  if (found != programs_.end()) return found->second;
  if (programs_.size() == most_programs) programs_.pop_back();
  return programs_.emplace_front(tree, make_tree_program(tree)).second;
}

Transport Member::choose(const TreeProgram& program, std::size_t count) const {
  return table_.choose(sizeof(float) * count * program.num_roots);
}

/// Throws if the group cannot go on.
void Member::look() {
  if (const std::uint32_t other = word(words().mismatch); other != 0) {
    const auto [low, high] = std::minmax({rank_, static_cast<int>(other) - 1});
    throw CommError("ranks " + std::to_string(low) + " and " + std::to_string(high) +
                    " have called all_reduce with different trees, sizes or transports, or a different op");
  }
  host_.check();
  if (!lasting_->nccl) return;
  if (const std::string error = lasting_->nccl->group().error(); !error.empty()) throw CommError(error);
}

void Member::waiting(Clock::duration so_far) {
  guarded([&] {
    look();
    if (so_far >= options_.deadline) throw CommError(late_report());
  });
}

std::string Member::late_report() const {
  std::string late;
  for (int peer = 0; peer < size_ && peer < static_cast<int>(HostWords::max_ranks); ++peer) {
    if (word(words().waiting[peer]) != 0) late += (late.empty() ? "" : ", ") + std::to_string(peer);
  }
  return "rank " + (late.empty() ? "(unknown)" : late) + " is late: rank " + std::to_string(rank_) + " waited for its GPU for " +
         std::to_string(options_.deadline.count()) + " ms, which is the deadline, at step " + std::to_string(position_.step) + ", node " +
         position_.node;
}

void Member::abort(std::string_view reason) noexcept {
  {
    const std::lock_guard lock(mutex_);
    if (failed_) return;
    failed_ = true;
    reason_ = reason;
  }
  host_.abort(reason);
  if (lasting_->words.data() != nullptr) std::atomic_ref(words().abort).store(1, std::memory_order_release);
  if (!lasting_->nccl || user_.load() == std::this_thread::get_id()) return;
  // The rank's thread sees the word, or the host's notice, and ends NCCL's operations; unless it hangs in a call.
  if (!lasting_->nccl->group().wait_for_end(patience)) lasting_->nccl->group().abort();
}

/// What the rank's own thread does about a failure, whoever noticed it first. NCCL would wait for recordings.
void Member::stop_operations() noexcept {
  if (!lasting_->nccl) return;
  if (options_.forget_recordings) options_.forget_recordings();
  lasting_->nccl->group().abort();
}

bool Member::has_failed() {
  const std::lock_guard lock(mutex_);
  return failed_;
}

/// The one that all ranks show.
void Member::throw_first_reason() {
  host_.check();
  const std::lock_guard lock(mutex_);
  throw CommError(reason_);
}

/// What fails here fails everywhere: peers would wait for ever.
template <class Call>
void Member::guarded(const Call& call) {
  user_ = std::this_thread::get_id();
  if (has_failed()) {
    stop_operations();
    throw_first_reason();
  }
  try {
    call();
  } catch (const CommError& error) {  // several ranks may find something at the same time
    abort(error.what());
    stop_operations();
    throw_first_reason();
  } catch (const std::exception& error) {
    abort(error.what());
    stop_operations();
    throw;
  }
}

}  // namespace

std::unique_ptr<CudaCommunicator> make_cuda_communicator(Communicator& host, const CudaCommunicatorOptions& options) {
  return std::make_unique<Member>(host, options);
}

}  // namespace lockstep::comm
