#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "comm/call_record.h"
#include "comm/communicator.h"
#include "comm/options.h"
#include "comm/shared_region.h"
#include "comm/tree_sum.h"
#include "device/futex.h"

namespace lockstep::comm {

/// The communicator over a shared region: ranks are threads ("threads") or processes ("shm").
///
/// A collective is a sequence of rounds. In a round every rank fills its slot of this epoch, publishes the epoch, waits for all others, and
/// reads their slots. Two slots per rank, used in turn, are enough: who has published epoch e has read all of e - 1, and nobody writes e +
/// 1 before all have published e.
class RegionCommunicator final : public Communicator {
 public:
  /// Attaches as `rank`, and returns at once.
  RegionCommunicator(std::shared_ptr<SharedRegion> region, int rank, const CommunicatorOptions& options, std::string_view name);
  ~RegionCommunicator() override;
  RegionCommunicator(const RegionCommunicator&) = delete;
  RegionCommunicator& operator=(const RegionCommunicator&) = delete;

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::string_view name() const override { return name_; }
  void all_reduce(const TreeSum& tree, float* values, std::size_t count) override;
  void all_reduce_add_norm(device::Device& device, const TreeSum& tree, const device::Matrix& partial, std::size_t num_rows,
                           const ResidualNorm& then) override;
  void all_gather(std::span<const std::byte> mine, std::span<std::byte> all, std::span<const std::size_t> bytes_per_rank) override;
  void gather(std::span<const std::byte> mine, std::span<std::byte> all, std::span<const std::size_t> bytes_per_rank, int root) override;
  void broadcast(std::span<std::byte> bytes, int root) override;
  void barrier() override;
  void check() override;
  void abort(std::string_view reason) noexcept override { region_->abort(reason); }
  void set_position(const Position& position) noexcept override { region_->set_position(rank_, position); }

 private:
  class Call;

  void gather_pieces(std::span<const std::byte> mine, std::span<std::byte> all, std::span<const std::size_t> bytes_per_rank, bool receives);
  void reduce_direct(const TreeSum& tree, float* values, std::size_t count);
  void reduce_sliced(const TreeSum& tree, float* values, std::size_t count);
  void copy_roots(const TreeSum& tree, const float* values, std::size_t count, std::size_t begin, std::size_t length, float* slot) const;
  void point_at_roots(const TreeSum& tree, const float* values, std::size_t count, std::size_t begin, std::size_t length,
                      std::size_t slot_offset);

  std::byte* slot(int rank) { return region_->slot(rank, epoch_); }
  float* float_slot(int rank) { return reinterpret_cast<float*>(slot(rank)); }
  void open_round() { ++epoch_; }
  void close_round();
  bool arrived(int peer) const;
  void wait_for(int peer);
  void look_for_the_dead(bool in_round);
  std::string late_report(int peer);
  void check_root(int root);
  [[noreturn]] void fail(const std::string& reason);

  std::shared_ptr<SharedRegion> region_;
  const int rank_;
  const int size_;
  const std::chrono::milliseconds deadline_;
  const device::Spin spin_;
  const std::string_view name_;
  std::uint32_t epoch_ = 0;
  std::chrono::steady_clock::time_point next_look_;  // of check(), at the peers' locks
  CallRecord record_;                                // of the call under way
  std::vector<const float*> sources_;                // one per root of the tree
  TreeScratch scratch_;
};

}  // namespace lockstep::comm
