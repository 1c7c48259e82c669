#include "device/cuda/step_buffers.h"

#include <algorithm>
#include <stdexcept>

namespace lockstep::device::cuda {
namespace {

constexpr std::size_t kAlignment = 256;

std::size_t aligned(std::size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

}  // namespace

StepBuffers::StepBuffers(const StepLimits& limits) : limits_(limits) {
  std::size_t at = 0;
  const auto place = [&](std::size_t elements, std::size_t element_bytes) {
    const std::size_t offset = at;
    at = aligned(at + elements * element_bytes);
    return offset;
  };
  layout_.token_ids = place(limits.max_tokens, sizeof(std::int32_t));
  layout_.positions = place(limits.max_tokens, sizeof(std::int32_t));
  layout_.sequence_of = place(limits.max_tokens, sizeof(std::uint32_t));
  layout_.logit_rows = place(limits.max_logit_rows, sizeof(std::uint32_t));
  layout_.sequences = place(limits.max_sequences, sizeof(SequenceView));
  layout_.block_tables = place(limits.max_sequences * limits.num_tables * limits.max_sequence_blocks, sizeof(std::uint32_t));
  layout_.end = at;
  memory_ = DeviceMemory(layout_.end, "the step");
  staging_ = PinnedMemory(layout_.end, "the step");
  view_.token_ids = device<std::int32_t>(layout_.token_ids);
  view_.positions = device<std::int32_t>(layout_.positions);
  view_.sequence_of = device<std::uint32_t>(layout_.sequence_of);
  view_.logit_rows = device<std::uint32_t>(layout_.logit_rows);
  view_.sequences = device<SequenceView>(layout_.sequences);
  view_.block_tables = device<std::uint32_t>(layout_.block_tables);
  view_.block_table_stride = static_cast<std::uint32_t>(limits.num_tables * limits.max_sequence_blocks);
  check(cudaEventCreateWithFlags(&copied_, cudaEventDisableTiming), "creating an event");
}

StepBuffers::~StepBuffers() {
  if (copied_ != nullptr) cudaEventDestroy(copied_);
}

void StepBuffers::check_limits(const StepBatch& batch, std::size_t padded_rows) const {
  const auto require = [](std::size_t count, std::size_t limit, const char* what) {
    if (count > limit)
      throw std::invalid_argument("a step of " + std::to_string(count) + " " + what + "; " + std::to_string(limit) + " are possible");
  };
  require(std::max(batch.num_tokens(), padded_rows), limits_.max_tokens, "tokens");
  require(std::max(batch.logit_rows.size(), padded_rows), limits_.max_logit_rows, "logit rows");
  require(std::max(batch.sequences.size(), padded_rows), limits_.max_sequences, "sequences");
  require(batch.num_tables, limits_.num_tables, "block tables");
  for (std::size_t i = 0; i < batch.sequences.size(); ++i) {
    const std::size_t end = i + 1 < batch.sequences.size() ? batch.sequences[i + 1].block_table : batch.block_tables.size();
    require((end - batch.sequences[i].block_table) / batch.num_tables, limits_.max_sequence_blocks, "KV blocks of a sequence");
  }
}

void StepBuffers::fill(const StepBatch& batch, std::size_t padded_rows) {
  const std::size_t tokens = std::max(batch.num_tokens(), padded_rows);
  const std::size_t sequences = std::max(batch.sequences.size(), padded_rows);
  const std::size_t logits = std::max(batch.logit_rows.size(), padded_rows);
  auto* token_ids = host<std::int32_t>(layout_.token_ids);
  auto* positions = host<std::int32_t>(layout_.positions);
  auto* sequence_of = host<std::uint32_t>(layout_.sequence_of);
  auto* views = host<SequenceView>(layout_.sequences);
  auto* tables = host<std::uint32_t>(layout_.block_tables);
  std::fill(std::copy(batch.token_ids.begin(), batch.token_ids.end(), token_ids), token_ids + tokens, -1);
  std::fill(std::copy(batch.positions.begin(), batch.positions.end(), positions), positions + tokens, -1);
  auto* logit_rows = host<std::uint32_t>(layout_.logit_rows);
  std::fill(std::copy(batch.logit_rows.begin(), batch.logit_rows.end(), logit_rows), logit_rows + logits, 0u);
  view_.max_tokens_of_sequence = padded_rows > 0 ? 1 : 0;
  view_.max_context = 0;
  for (std::size_t i = 0; i < sequences; ++i) {
    if (i >= batch.sequences.size()) {
      views[i] = {static_cast<std::uint32_t>(i), 0, 0};
      sequence_of[i] = static_cast<std::uint32_t>(i);  // one token each
      continue;
    }
    const StepBatch::Sequence& sequence = batch.sequences[i];
    views[i] = {sequence.first_token, sequence.num_tokens, sequence.first_position};
    std::fill_n(sequence_of + sequence.first_token, sequence.num_tokens, static_cast<std::uint32_t>(i));
    const std::size_t end = i + 1 < batch.sequences.size() ? batch.sequences[i + 1].block_table : batch.block_tables.size();
    const std::size_t entries = (end - sequence.block_table) / batch.num_tables;
    for (std::size_t table = 0; table < batch.num_tables; ++table) {
      std::copy_n(batch.block_tables.begin() + static_cast<std::ptrdiff_t>(sequence.block_table + table * entries), entries,
                  tables + (i * limits_.num_tables + table) * limits_.max_sequence_blocks);
    }
    view_.max_tokens_of_sequence = std::max(view_.max_tokens_of_sequence, sequence.num_tokens);
    view_.max_context = std::max(view_.max_context, sequence.first_position + sequence.num_tokens);
  }
  if (padded_rows > 0) view_.max_context = static_cast<std::uint32_t>(limits_.max_positions);
  view_.num_tokens = static_cast<std::uint32_t>(tokens);
  view_.num_sequences = static_cast<std::uint32_t>(sequences);
  view_.num_logit_rows = static_cast<std::uint32_t>(logits);
}

void StepBuffers::upload(const StepBatch& batch, std::size_t padded_rows, cudaStream_t stream) {
  check_limits(batch, padded_rows);
  check(cudaEventSynchronize(copied_), "waiting for the upload of the step before");
  fill(batch, padded_rows);
  const std::size_t bytes = layout_.block_tables + batch.sequences.size() * view_.block_table_stride * sizeof(std::uint32_t);
  check(cudaMemcpyAsync(memory_.data(), staging_.data(), bytes, cudaMemcpyHostToDevice, stream), "uploading a step");
  check(cudaEventRecord(copied_, stream), "recording an event");
}

}  // namespace lockstep::device::cuda
