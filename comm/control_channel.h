#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "comm/communicator.h"

namespace lockstep::comm {

/// Rank 0 to everyone: messages of any size (up to 1 GiB), in order. Collective: every send() of rank 0 meets one receive() of each other
/// rank, among the other calls of the communicator in the same order. A message up to `inline_bytes` is one broadcast, a larger one is two.
/// Errors are the communicator's; a message out of sequence, or a call by the wrong side, aborts it.
class ControlChannel {
 public:
  static constexpr std::size_t inline_bytes = 1000;

  /// `communicator` must outlive the channel. With one rank, send() goes nowhere.
  explicit ControlChannel(Communicator& communicator) : communicator_(communicator) {}

  void send(std::span<const std::byte> message);  // on rank 0
  void receive(std::vector<std::byte>& message);  // on the others: overwrites `message`, keeping its capacity
  std::vector<std::byte> receive();

 private:
  [[noreturn]] void fail(const std::string& reason);

  Communicator& communicator_;
  std::uint64_t sequence_ = 0;
  std::vector<std::byte> buffer_;
};

}  // namespace lockstep::comm
