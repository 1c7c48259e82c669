#include "device/cpu/row_copies.h"

#include <algorithm>

namespace lockstep::device::cpu {

RowPlace RowCopies::place(const Matrix& matrix, std::size_t bytes) {
  auto known =
      std::find_if(known_.begin(), known_.end(), [&](const Known& each) { return each.data == matrix.data && each.bytes == bytes; });
  if (known == known_.end()) {
    const std::size_t lines = (bytes + sizeof(Line) - 1) / sizeof(Line) + 1;  // a line more: rows are read as whole vectors
    known = known_.insert(known_.end(), {matrix.data, bytes, used_lines_ * sizeof(Line), false});
    used_lines_ += lines;
    for (std::size_t thread = 1; thread < memory_.size(); ++thread) memory_[thread].lines.resize(used_lines_);
  }
  return {matrix, known->offset};
}

RowPlace RowCopies::find(const Matrix& matrix) const {
  for (const Known& known : known_) {
    if (known.data == matrix.data && known.valid) return {matrix, known.offset};
  }
  return {matrix, RowPlace::kNone};
}

void RowCopies::set_valid(const Matrix& matrix, bool valid) {
  for (Known& known : known_) {
    if (known.data == matrix.data) known.valid = valid;
  }
}

void RowCopies::invalidate_all() {
  for (Known& known : known_) known.valid = false;
}

}  // namespace lockstep::device::cpu
