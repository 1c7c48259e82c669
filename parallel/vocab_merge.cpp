#include "parallel/vocab_merge.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <stdexcept>
#include <string>

namespace lockstep::parallel {
namespace {

/// @pre candidates come in the order of their ids
bool beats(const device::Top& candidate, const device::Top& best) {
  if (candidate.id < 0 || std::isnan(candidate.logit)) return false;
  return best.id < 0 || candidate.logit > best.logit;
}

}  // namespace

void merge_tops(std::span<const device::Top> tops, std::span<const std::size_t> shares, std::span<device::Top> merged) {
  if (tops.size() != shares.size() * merged.size()) {
    throw std::invalid_argument("merge of tops: " + std::to_string(tops.size()) + " tops of " + std::to_string(shares.size()) +
                                " ranks for " + std::to_string(merged.size()) + " rows");
  }
  for (std::size_t row = 0; row < merged.size(); ++row) {
    device::Top best;
    std::size_t first_id = 0;
    for (std::size_t rank = 0; rank < shares.size(); ++rank) {
      device::Top candidate = tops[rank * merged.size() + row];
      best.finite = best.finite && candidate.finite;
      if (candidate.id >= 0) candidate.id += static_cast<std::int32_t>(first_id);
      if (beats(candidate, best)) {
        best.logit = candidate.logit;
        best.id = candidate.id;
      }
      first_id += shares[rank];
    }
    merged[row] = best;
  }
}

std::vector<std::size_t> gathered_row_bytes(std::span<const std::size_t> shares, std::size_t num_rows) {
  std::vector<std::size_t> bytes(shares.size());
  std::transform(shares.begin(), shares.end(), bytes.begin(), [&](std::size_t share) { return share * num_rows * sizeof(float); });
  return bytes;
}

void assemble_rows(std::span<const float> gathered, std::span<const std::size_t> shares, std::size_t num_rows, std::span<float> rows) {
  const std::size_t vocab_size = std::accumulate(shares.begin(), shares.end(), std::size_t{0});
  if (gathered.size() != vocab_size * num_rows || rows.size() != gathered.size()) {
    throw std::invalid_argument("rows of logits: " + std::to_string(gathered.size()) + " gathered values, room for " +
                                std::to_string(rows.size()) + ", but " + std::to_string(num_rows) + " rows of " +
                                std::to_string(vocab_size) + " are expected");
  }
  std::size_t first_id = 0;
  for (const std::size_t share : shares) {
    for (std::size_t row = 0; row < num_rows; ++row) {
      std::copy_n(gathered.begin() + static_cast<std::ptrdiff_t>(first_id * num_rows + row * share), share,
                  rows.begin() + static_cast<std::ptrdiff_t>(row * vocab_size + first_id));
    }
    first_id += share;
  }
}

}  // namespace lockstep::parallel
