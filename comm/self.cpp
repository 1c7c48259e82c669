#include "comm/self.h"

#include <algorithm>
#include <mutex>

#include "comm/call_record.h"
#include "comm/tree_sum.h"

namespace lockstep::comm {
namespace {

class SelfCommunicator final : public Communicator {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  std::string_view name() const override { return "self"; }

  void all_reduce(const TreeSum& tree, float* values, std::size_t count) override {
    begin(tree_error(tree, 1));
    roots_.clear();
    for (std::size_t root = 0; root < total_roots(tree); ++root) roots_.push_back(values + root * count);
    tree_sum(tree, roots_, values, count, scratch_);
  }

  void all_gather(std::span<const std::byte> mine, std::span<std::byte> all, std::span<const std::size_t> bytes_per_rank) override {
    begin(gather_error(mine, all, bytes_per_rank, 0, 1, true));
    std::copy(mine.begin(), mine.end(), all.begin());
  }

  void gather(std::span<const std::byte> mine, std::span<std::byte> all, std::span<const std::size_t> bytes_per_rank, int root) override {
    begin(root == 0 ? "" : no_such_rank(root));
    all_gather(mine, all, bytes_per_rank);
  }

  void broadcast(std::span<std::byte>, int root) override { begin(root == 0 ? "" : no_such_rank(root)); }
  void barrier() override { begin(""); }
  void check() override { begin(""); }

  void abort(std::string_view reason) noexcept override {
    const std::lock_guard lock(mutex_);
    if (!aborted_) reason_ = reason;
    aborted_ = true;
  }

  void set_position(const Position&) noexcept override {}

 private:
  static std::string no_such_rank(int root) { return "rank " + std::to_string(root) + " is the root, but there is 1 rank"; }

  void begin(std::string_view error) {
    if (!error.empty()) abort(error);
    const std::lock_guard lock(mutex_);
    if (aborted_) throw CommError(reason_);
  }

  std::mutex mutex_;  // abort() may come from any thread
  bool aborted_ = false;
  std::string reason_;
  std::vector<const float*> roots_;
  TreeScratch scratch_;
};

}  // namespace

std::unique_ptr<Communicator> make_self_communicator() { return std::make_unique<SelfCommunicator>(); }

}  // namespace lockstep::comm
