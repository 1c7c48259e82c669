// A step on its way to the GPU: what a recorded graph reads is what was uploaded for it.

#include "device/cuda/step_buffers.h"

#include <gtest/gtest.h>

#include "tests/simt/simt.h"

namespace lockstep::device::cuda {
namespace {

StepBatch decode_batch(std::int32_t token, std::uint32_t position) {
  StepBatch batch;
  batch.token_ids = {token};
  batch.positions = {static_cast<std::int32_t>(position)};
  batch.sequences = {{0, 1, position, 0}};
  batch.block_tables.assign(position / 16 + 1, 3);
  batch.logit_rows = {0};
  return batch;
}

class StepUpload : public testing::TestWithParam<simt::StreamOrder> {
 protected:
  void SetUp() override {
    simt::reset();
    simt::config().stream_order = GetParam();
    ASSERT_EQ(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), cudaSuccess);
  }
  void TearDown() override {
    cudaStreamDestroy(stream_);
    simt::reset();
  }

  cudaStream_t stream_ = nullptr;
};

TEST_P(StepUpload, IsNotOverwrittenByTheNextOneBeforeTheGpuHasIt) {
  StepBuffers steps({.max_tokens = 8, .max_logit_rows = 8, .max_sequences = 8, .max_positions = 64, .max_sequence_blocks = 4});
  const DeviceMemory seen(2 * sizeof(std::int32_t), "a test");
  for (const std::int32_t step : {0, 1}) {
    steps.upload(decode_batch(100 + step, 5), 0, stream_);
    ASSERT_EQ(
        cudaMemcpyAsync(seen.as<std::int32_t>() + step, steps.view().token_ids, sizeof(std::int32_t), cudaMemcpyDeviceToDevice, stream_),
        cudaSuccess);
  }
  std::int32_t tokens[2] = {};
  ASSERT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
  ASSERT_EQ(cudaMemcpy(tokens, seen.data(), sizeof tokens, cudaMemcpyDeviceToHost), cudaSuccess);
  EXPECT_EQ(tokens[0], 100);
  EXPECT_EQ(tokens[1], 101);
}

TEST_P(StepUpload, OfADecodeStepIsFilledUpWithPads) {
  StepBuffers steps({.max_tokens = 8, .max_logit_rows = 8, .max_sequences = 8, .max_positions = 64, .max_sequence_blocks = 4});
  steps.upload(decode_batch(7, 20), 4, stream_);
  ASSERT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
  const StepView& view = steps.view();
  EXPECT_EQ(view.num_tokens, 4u);
  EXPECT_EQ(view.num_sequences, 4u);
  EXPECT_EQ(view.max_tokens_of_sequence, 1u);
  EXPECT_EQ(view.max_context, 64u);  // of all there can be: a recording serves them
  std::int32_t tokens[4], positions[4];
  SequenceView sequences[4];
  cudaMemcpy(tokens, view.token_ids, sizeof tokens, cudaMemcpyDeviceToHost);
  cudaMemcpy(positions, view.positions, sizeof positions, cudaMemcpyDeviceToHost);
  cudaMemcpy(sequences, view.sequences, sizeof sequences, cudaMemcpyDeviceToHost);
  EXPECT_EQ(tokens[0], 7);
  EXPECT_EQ(sequences[0].first_position, 20u);
  for (int pad = 1; pad < 4; ++pad) {
    EXPECT_EQ(tokens[pad], -1);
    EXPECT_EQ(positions[pad], -1);
    EXPECT_EQ(sequences[pad].num_tokens, 0u);
  }
}

TEST_P(StepUpload, PutsTheBlockTablesOfASequenceAtEqualDistances) {
  StepBuffers steps(
      {.max_tokens = 8, .max_logit_rows = 8, .max_sequences = 8, .max_positions = 64, .max_sequence_blocks = 4, .num_tables = 2});
  StepBatch batch;
  batch.token_ids = batch.positions = {17, 3};
  batch.sequences = {{0, 1, 17, 0}, {1, 1, 3, 4}};
  batch.block_tables = {1, 2, 3, 4, 5, 6};  // two blocks in each table, then one
  batch.num_tables = 2;
  batch.logit_rows = {0, 1};
  steps.upload(batch, 0, stream_);
  ASSERT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
  ASSERT_EQ(steps.view().block_table_stride, 8u);
  std::uint32_t tables[13];
  cudaMemcpy(tables, steps.view().block_tables, sizeof tables, cudaMemcpyDeviceToHost);
  EXPECT_EQ(std::vector<std::uint32_t>({tables[0], tables[1], tables[4], tables[5], tables[8], tables[12]}), batch.block_tables);
  batch.num_tables = 3;
  EXPECT_THROW(steps.upload(batch, 0, stream_), std::invalid_argument);
}

TEST_P(StepUpload, RefusesMoreThanItHasRoomFor) {
  StepBuffers steps({.max_tokens = 2, .max_logit_rows = 2, .max_sequences = 1, .max_positions = 64, .max_sequence_blocks = 1});
  EXPECT_THROW(steps.upload(decode_batch(7, 20), 0, stream_), std::invalid_argument);  // two blocks
  EXPECT_THROW(steps.upload(decode_batch(7, 5), 2, stream_), std::invalid_argument);   // two sequences, with the pad
}

INSTANTIATE_TEST_SUITE_P(Orders, StepUpload,
                         testing::Values(simt::StreamOrder::kEager, simt::StreamOrder::kLazy, simt::StreamOrder::kLastFirst));

}  // namespace
}  // namespace lockstep::device::cuda
