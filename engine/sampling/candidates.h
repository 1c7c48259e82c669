#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "device/cpu/isa.h"

namespace lockstep::engine {

/// Ids in the order of candidates: logit descending, then id ascending (0 and -0 are equal). Sorted no further than it is read: a
/// vocabulary is long, and what matters of it is mostly short.
class CandidateOrder {
 public:
  explicit CandidateOrder(device::Isa isa = device::supported_isas().back()) : isa_(isa) {}
  /// Starts over on `logits` [vocab_size], all finite; the memory must stay until the next reset.
  void reset(std::span<const float> logits);
  std::size_t size() const { return logits_.size(); }
  /// The id at this place of the order. @pre place < size()
  std::uint32_t operator[](std::size_t place) {
    if (place >= num_sorted_) sort_up_to(place + 1);
    return static_cast<std::uint32_t>(keys_[place]);
  }

 private:
  void sort_up_to(std::size_t count);

  device::Isa isa_;
  std::span<const float> logits_;
  std::vector<std::uint64_t> keys_;  // ascending in the order of candidates; the id is the low half
  std::size_t num_sorted_ = 0;
  bool holds_all_ = false;  // keys_ has every id, not just the first ones
};

}  // namespace lockstep::engine
