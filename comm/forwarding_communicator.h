#pragma once

#include "comm/communicator.h"

namespace lockstep::comm {

/// Passes every call on to another communicator: the base of those that watch or change a few. A call that is new in Communicator is passed
/// on here, once, so that none of them keeps the default in place of the transport's own.
class ForwardingCommunicator : public Communicator {
 public:
  /// `next` must outlive this object.
  explicit ForwardingCommunicator(Communicator& next) : next_(next) {}

  int rank() const override { return next_.rank(); }
  int size() const override { return next_.size(); }
  std::string_view name() const override { return next_.name(); }
  void all_reduce(const TreeSum& tree, float* values, std::size_t count) override { next_.all_reduce(tree, values, count); }
  void all_reduce_add_norm(device::Device& device, const TreeSum& tree, const device::Matrix& partial, std::size_t num_rows,
                           const ResidualNorm& then) override {
    next_.all_reduce_add_norm(device, tree, partial, num_rows, then);
  }
  void all_gather(std::span<const std::byte> mine, std::span<std::byte> all, std::span<const std::size_t> bytes_per_rank) override {
    next_.all_gather(mine, all, bytes_per_rank);
  }
  void gather(std::span<const std::byte> mine, std::span<std::byte> all, std::span<const std::size_t> bytes_per_rank, int root) override {
    next_.gather(mine, all, bytes_per_rank, root);
  }
  void broadcast(std::span<std::byte> bytes, int root) override { next_.broadcast(bytes, root); }
  void barrier() override { next_.barrier(); }
  void check() override { next_.check(); }
  void abort(std::string_view reason) noexcept override { next_.abort(reason); }
  void set_position(const Position& position) noexcept override { next_.set_position(position); }

 protected:
  Communicator& next() { return next_; }

 private:
  Communicator& next_;
};

}  // namespace lockstep::comm
