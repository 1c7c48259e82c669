#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "device/device.h"

namespace lockstep::parallel {

/// The head's rows are cut by vocabulary: rank r holds ids [first, first + share) of the vocabulary, ranks ascending. A share may be empty.

/// The tops of whole rows from those of the shares.
/// @param tops      [ranks][rows], ids relative to the rank's share; id -1 where the share is empty
/// @param shares    [ranks]: ids a rank holds
/// @param merged    [rows]: the largest logit, of equal ones the lowest id; finite where it is on every rank. id -1 if no rank has a number
/// to offer
/// @throws std::invalid_argument if the sizes do not match
void merge_tops(std::span<const device::Top> tops, std::span<const std::size_t> shares, std::span<device::Top> merged);

/// Bytes of each rank in the gathering of `num_rows` rows of logits: [ranks][rows, share of the rank] fp32, dense. What
/// Communicator::gather wants.
std::vector<std::size_t> gathered_row_bytes(std::span<const std::size_t> shares, std::size_t num_rows);

/// Puts gathered rows together: [ranks][rows, share] -> [rows, vocabulary].
/// @throws std::invalid_argument if the sizes do not match
void assemble_rows(std::span<const float> gathered, std::span<const std::size_t> shares, std::size_t num_rows, std::span<float> rows);

}  // namespace lockstep::parallel
