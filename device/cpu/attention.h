#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "device/cpu/kernels.h"
#include "device/cpu/step_counters.h"
#include "device/cpu/thread_pool.h"
#include "device/device.h"

namespace lockstep::device::cpu {

/// One layer's attention, as every thread of a step sees it.
struct AttentionCall {
  const float* qkv = nullptr;  // [T, qkv_columns]
  std::size_t qkv_columns = 0;
  CacheView cache{};
  std::size_t block_table = 0;  // which of a sequence the layer goes by
  float scale = 0.0f;
  std::uint32_t window = 0;
  float soft_cap = 0.0f;          // see AttentionSpec
  const float* slopes = nullptr;  // [num_heads], or null
  const float* sinks = nullptr;   // likewise
  bool appends = false;           // decode: rotates the queries for itself, and appends keys and values
  bool awaits = false;            // the products of other threads, before the first piece that reads them
  const RotaryTable* table = nullptr;
  float* floats = nullptr;   // [T, num_heads * head_dim], or
  Int8View int8{};           // the same in blocks, if head_dim is a multiple of a block
  std::size_t counters = 0;  // from begin_call
};

/// Spreads attention over the threads of a step: by sequence, KV head, block of queries, and spans. In decode every thread has an equal run
/// of all spans of the step, so that one long sequence keeps all of them busy; who finishes the last part of a cut sequence merges it; it
/// begins with the KV heads of which it computed queries, keys and values itself. In prefill the threads take blocks of queries as they
/// come.
class AttentionRunner {
 public:
  AttentionRunner(ThreadPool& pool, const Kernels& kernels);

  /// What steps can hold, so that none of them has to take memory.
  void prepare(const StepLimits& limits) { limits_ = limits; }
  /// Lays out the step's work, unless it stands from the layer before. `by_shares`: queries, keys and values are parts of products, of
  /// each of which a thread has written its share of the columns. Not within a run.
  void plan(const StepBatch& batch, const AttentionSpec& spec, bool by_shares);
  void forget_plan() { batch_ = nullptr; }
  /// Whether attention can append the step's keys and values itself: one new token for each sequence.
  bool can_append() const { return decode_ && !kv_head_is_split_; }
  /// Counters of one call, zero. Not within a run, and before the run of the call.
  std::size_t begin_call();
  void end_calls() { counters_.reset(); }

  /// A thread's part. All threads of the pool call it.
  void run(const AttentionCall& call, std::size_t thread) noexcept;

  /// Rotates row `row` of qkv in place, by row `angles` of the table, and appends its keys and values. `scratch`: head_dim floats.
  void append_token(float* row, std::size_t angles, std::size_t num_heads, std::size_t num_kv_heads, const RotaryTable* table,
                    const CacheView& cache, std::uint32_t block, std::size_t offset, float* scratch) const;

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
    std::uint32_t merged_spans;  // of a cut item: the first ones, which are merged as they come
    std::uint32_t parts;
    std::uint32_t cut;   // which of the cut items, kWhole: none
    std::size_t states;  // of a cut item: offset in partial_states_
  };
  struct Piece {
    std::uint32_t item;
    std::uint32_t first_span;
    std::uint32_t end_span;
  };
  static constexpr std::uint32_t kWhole = static_cast<std::uint32_t>(-1), kNobody = kWhole;

  void reserve();
  void list_items(const AttentionSpec& spec);
  void find_owners(bool by_shares);
  bool owners_divide_heads() const;
  void share_out_spans();
  void share_out_heads();
  KeysPlace keys_of(const AttentionCall& call, const Item& item) const;
  QueryBlock queries_of(const AttentionCall& call, const Item& item) const;
  void rotate_queries(const AttentionCall& call, const Item& item, QueryBlock& block, float* rotated) const;
  void append_newest(const AttentionCall& call, const Item& item, float* rotated) const;
  void run_decode(const AttentionCall& call, std::size_t thread, float* scratch) noexcept;
  /// `next`: the piece behind this one, if any.
  void run_piece(const AttentionCall& call, const Piece& piece, const Piece* next, float* scratch) noexcept;
  void merge_spans(const AttentionCall& call, const Item& item, float* scratch) const;
  void finish(const AttentionCall& call, const Item& item, std::size_t query, const float* state, float* row) const;

  ThreadPool& pool_;
  const std::size_t num_threads_;
  const Kernels& kernels_;

  StepLimits limits_;

  // The plan.
  const StepBatch* batch_ = nullptr;
  std::size_t num_heads_ = 0, num_kv_heads_ = 0, head_dim_ = 0, state_floats_ = 0;
  std::uint32_t window_ = 0;
  std::vector<std::uint32_t> kv_head_of_;
  bool by_shares_ = false, decode_ = false, kv_head_is_split_ = false;
  std::vector<std::vector<std::uint32_t>> heads_of_;  // query heads of each KV head
  std::vector<std::uint32_t> owner_of_;               // the thread that computed all of a KV head and its queries, or kNobody
  std::vector<Item> items_;
  std::vector<Piece> pieces_;
  std::vector<std::size_t> first_piece_;  // decode: [threads + 1]
  std::uint32_t num_cut_ = 0;

  std::vector<float> partial_states_;
  StepCounters counters_;
  std::vector<std::vector<float>> scratch_;  // of each thread
};

}  // namespace lockstep::device::cpu
