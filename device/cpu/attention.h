#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "device/cpu/kernels.h"
#include "device/cpu/thread_pool.h"
#include "device/device.h"

namespace lockstep::device::cpu {

/// Spreads attention over the threads: by sequence, KV head and block of queries, and where that gives too few pieces (decode of few long
/// sequences), by spans too.
class AttentionRunner {
 public:
  AttentionRunner(ThreadPool& pool, const Kernels& kernels) : pool_(pool), kernels_(kernels) {}

  /// out [T, num_heads * head_dim] fp32.
  void run(const float* qkv, std::size_t qkv_columns, const StepBatch& batch, const AttentionSpec& spec, const CacheView& cache,
           float* out);

 private:
  /// Queries [first_query, first_query + count) of one sequence and KV head; query i is token i / heads and head i % heads of those that
  /// share it.
  struct Item {
    const StepBatch::Sequence* sequence;
    std::uint32_t kv_head;
    std::uint32_t first_query;
    std::uint32_t count;
    std::uint32_t first_span;
    std::uint32_t end_span;
    std::size_t states;  // offset in partial_states_; only where the spans are spread
  };
  struct Piece {
    std::uint32_t item;
    std::uint32_t first_span;
    std::uint32_t end_span;
  };
  struct Call {
    const float* qkv;
    std::size_t qkv_columns;
    const StepBatch& batch;
    const AttentionSpec& spec;
    const CacheView& cache;
    float* out;
  };

  void list_items(const Call& call);
  void cut_into_pieces(std::size_t state_floats);
  QueryBlock queries_of(const Call& call, const Item& item) const;
  float* output_of(const Call& call, const Item& item, std::size_t query) const;
  void run_piece(const Call& call, const Piece& piece, float* scratch);
  void merge_spans(const Call& call, const Item& item, float* state);

  ThreadPool& pool_;
  const Kernels& kernels_;
  std::vector<std::vector<std::uint32_t>> heads_of_;  // query heads of each KV head
  std::vector<Item> items_;
  std::vector<Piece> pieces_;
  std::vector<float> partial_states_;
  std::vector<std::vector<float>> scratch_;  // of each thread
};

}  // namespace lockstep::device::cpu
