#include "comm/control_channel.h"

#include <algorithm>
#include <array>
#include <cstring>

namespace lockstep::comm {
namespace {

constexpr std::uint64_t frame_magic = 0x4c4e4e4843'4b434fu;
constexpr std::uint64_t max_bytes = std::uint64_t{1} << 30;

/// The first broadcast of a message has this shape, whatever the message's size.
struct Frame {
  std::uint64_t magic = frame_magic;
  std::uint64_t sequence = 0;
  std::uint64_t bytes = 0;
  std::array<std::byte, ControlChannel::inline_bytes> start;
};
static_assert(sizeof(Frame) == 1024);

}  // namespace

void ControlChannel::send(std::span<const std::byte> message) {
  if (communicator_.rank() != 0) fail("rank " + std::to_string(communicator_.rank()) + " sends; only rank 0 may");
  if (message.size() > max_bytes)
    fail("a message of " + std::to_string(message.size()) + " bytes; at most " + std::to_string(max_bytes) + " are sent");
  Frame frame{.sequence = ++sequence_, .bytes = message.size(), .start = {}};
  const std::size_t first = std::min(message.size(), inline_bytes);
  if (first != 0) std::memcpy(frame.start.data(), message.data(), first);
  communicator_.broadcast(std::as_writable_bytes(std::span(&frame, 1)), 0);
  if (message.size() == first) return;
  buffer_.assign(message.begin() + static_cast<std::ptrdiff_t>(first), message.end());  // broadcast wants memory that it may write
  communicator_.broadcast(buffer_, 0);
}

std::vector<std::byte> ControlChannel::receive() {
  std::vector<std::byte> message;
  receive(message);
  return message;
}

void ControlChannel::receive(std::vector<std::byte>& message) {
  if (communicator_.rank() == 0) fail("rank 0 receives; it is the one that sends");
  Frame frame{.magic = 0, .start = {}};
  communicator_.broadcast(std::as_writable_bytes(std::span(&frame, 1)), 0);
  if (frame.magic != frame_magic || frame.sequence != sequence_ + 1 || frame.bytes > max_bytes) {
    fail("rank " + std::to_string(communicator_.rank()) + " expects message " + std::to_string(sequence_ + 1) + ", what came says " +
         std::to_string(frame.sequence) + " with " + std::to_string(frame.bytes) + " bytes");
  }
  sequence_ = frame.sequence;
  message.resize(frame.bytes);
  const std::size_t first = std::min(message.size(), inline_bytes);
  if (first != 0) std::memcpy(message.data(), frame.start.data(), first);
  if (message.size() > first) communicator_.broadcast(std::span(message).subspan(first), 0);
}

void ControlChannel::fail(const std::string& reason) {
  const std::string text = "control channel: " + reason;
  communicator_.abort(text);
  throw CommError(text);
}

}  // namespace lockstep::comm
