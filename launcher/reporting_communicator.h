#pragma once

#include <memory>

#include "comm/communicator.h"
#include "launcher/rank_control.h"

namespace lockstep::launcher {

/// A communicator that shows the positions that it is told to the rank's control thread as well. The rest goes to the one inside.
class ReportingCommunicator final : public comm::Communicator {
 public:
  /// `control` must outlive this object.
  ReportingCommunicator(std::unique_ptr<comm::Communicator> inside, RankControl& control) : inside_(std::move(inside)), control_(control) {
    control_.on_abort([this](std::string_view reason) { inside_->abort(reason); });
  }
  ~ReportingCommunicator() override { control_.on_abort({}); }

  int rank() const override { return inside_->rank(); }
  int size() const override { return inside_->size(); }
  std::string_view name() const override { return inside_->name(); }
  void all_reduce(const comm::TreeSum& tree, float* values, std::size_t count) override { inside_->all_reduce(tree, values, count); }
  void all_reduce_add_norm(device::Device& device, const comm::TreeSum& tree, const device::Matrix& partial, std::size_t num_rows,
                           const comm::ResidualNorm& then) override {
    inside_->all_reduce_add_norm(device, tree, partial, num_rows, then);
  }
  void all_gather(std::span<const std::byte> mine, std::span<std::byte> all, std::span<const std::size_t> bytes_per_rank) override {
    inside_->all_gather(mine, all, bytes_per_rank);
  }
  void gather(std::span<const std::byte> mine, std::span<std::byte> all, std::span<const std::size_t> bytes_per_rank, int root) override {
    inside_->gather(mine, all, bytes_per_rank, root);
  }
  void broadcast(std::span<std::byte> bytes, int root) override { inside_->broadcast(bytes, root); }
  void barrier() override { inside_->barrier(); }
  void check() override { inside_->check(); }
  void abort(std::string_view reason) noexcept override { inside_->abort(reason); }
  void set_position(const comm::Position& position) noexcept override {
    inside_->set_position(position);
    control_.set_position(position);
  }

 private:
  std::unique_ptr<comm::Communicator> inside_;
  RankControl& control_;
};

}  // namespace lockstep::launcher
