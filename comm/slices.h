#pragma once

#include <algorithm>
#include <cstddef>

namespace lockstep::comm {

/// The additions that a rank is spared when each sums a slice, less the copying of the others' results, which costs about as much as one
/// addition a value. With two ranks of one root it never pays.
inline std::size_t additions_saved(std::size_t total_roots, std::size_t ranks, std::size_t count) {
  const std::size_t others = (total_roots - 1) * (ranks - 1);
  return others > ranks ? count * (others - ranks) / ranks : 0;
}

/// How a large all_reduce is cut: `count` values in pieces, every piece in one slice per rank, which that rank sums. A slice is whole cache
/// lines, but for the last.
class Slices {
 public:
  /// `slice_limit`: the most values of a slice that a slot has room for.
  Slices(std::size_t count, std::size_t ranks, std::size_t slice_limit) : count_(count) {
    const std::size_t even_share = (count + ranks - 1) / ranks;
    slice_ = std::min(slice_limit / alignment * alignment, (even_share + alignment - 1) / alignment * alignment);
    piece_ = slice_ * ranks;
  }

  bool fit() const { return slice_ != 0; }  // else a slot is too small, and nothing below may be called
  std::size_t slice() const { return slice_; }
  std::size_t num_pieces() const { return (count_ + piece_ - 1) / piece_; }
  std::size_t begin_of_piece(std::size_t piece) const { return piece * piece_; }
  std::size_t length_of_piece(std::size_t piece) const { return std::min(piece_, count_ - piece * piece_); }
  std::size_t begin_of_slice(std::size_t piece, int rank) const { return begin_of_piece(piece) + offset(piece, rank); }
  std::size_t length_of_slice(std::size_t piece, int rank) const { return std::min(slice_, length_of_piece(piece) - offset(piece, rank)); }

 private:
  static constexpr std::size_t alignment = 16;

  std::size_t offset(std::size_t piece, int rank) const {
    return std::min(static_cast<std::size_t>(rank) * slice_, length_of_piece(piece));
  }

  std::size_t count_;
  std::size_t slice_ = 0;
  std::size_t piece_ = 0;
};

}  // namespace lockstep::comm
