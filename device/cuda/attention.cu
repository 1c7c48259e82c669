#include <algorithm>
#include <stdexcept>

#include "device/cuda/attention.h"
#include "device/cuda/attention_launch.h"
#include "device/cuda/cache_view.h"
#include "device/cuda/kernels/attention_prefill.cuh"

namespace lockstep::device::cuda {
namespace {

constexpr std::size_t kMostPartialBytes = std::size_t{64} << 20;
constexpr float kLog2E = 1.44269504f;

std::size_t divide_up(std::size_t a, std::size_t b) { return (a + b - 1) / b; }

/// Tiles above this number keep the GPU busy without their keys being shared out.
std::size_t most_split_tiles(int num_multiprocessors) { return 2 * static_cast<std::size_t>(num_multiprocessors); }

/// The counters, at the beginning of the scratch memory.
std::size_t counter_bytes(int num_multiprocessors) {
  return divide_up(most_split_tiles(num_multiprocessors) * sizeof(unsigned), 256) * 256;
}

unsigned rows_of_token(const HeadMap& heads) { return std::min(heads.group, heads.num_heads); }

std::size_t record_bytes(const HeadMap& heads) {
  return sizeof(float) * state_floats(std::min(kTileRows, rows_of_token(heads)), state_stride(heads.head_dim));
}

/// Shares the keys of each tile of a decode step out to several blocks, where there are too few tiles and the results of the parts find
/// room. It looks at what stays the same for all steps of a recording.
void share_out(AttentionArguments& arguments, int num_multiprocessors, std::size_t tiles, std::size_t unit_keys, void* scratch) {
  const StepView& step = arguments.step;
  const std::size_t all_tiles = tiles * arguments.heads.num_kv_heads * step.num_sequences, units = divide_up(step.max_context, unit_keys);
  if (all_tiles > most_split_tiles(num_multiprocessors) || all_tiles * units * record_bytes(arguments.heads) > kMostPartialBytes) return;
  const std::size_t wanted = divide_up(2 * most_split_tiles(num_multiprocessors), all_tiles);
  arguments.parts = static_cast<std::uint32_t>(std::clamp<std::size_t>(wanted, 1, std::max<std::size_t>(units, 1)));
  arguments.max_units = static_cast<std::uint32_t>(units);
  arguments.counters = static_cast<unsigned*>(scratch);
  arguments.partials = reinterpret_cast<float*>(static_cast<std::byte*>(scratch) + counter_bytes(num_multiprocessors));
}

}  // namespace

std::size_t attention_scratch_bytes(const HeadMap& heads, const StepLimits& limits, std::size_t block_size, int num_multiprocessors) {
  const std::size_t tiles = divide_up(rows_of_token(heads), kTileRows) * heads.num_kv_heads * limits.max_sequences;
  const std::size_t units = divide_up(limits.max_sequence_blocks * block_size, kSpan);
  const std::size_t records = std::min(tiles, most_split_tiles(num_multiprocessors)) * units;
  return counter_bytes(num_multiprocessors) + std::min(records * record_bytes(heads), kMostPartialBytes);
}

void attention(const Launch& where, Rows qkv, const StepView& step, const HeadMap& heads, float scale, std::uint32_t window,
               const CudaKvCache& cache, std::size_t layer, void* scratch, Rows out, const ScoreBend& bend, const float* sinks) {
  if (step.num_sequences == 0 || heads.num_heads == 0) return;
  if (out.type == Activation::kInt8Blocks) throw std::invalid_argument("the CUDA device has no attention with int8 outputs");
  const bool is_exact = out.type == Activation::kFloat32, is_decode = step.max_tokens_of_sequence <= 1;
  const std::size_t rows = std::size_t{step.max_tokens_of_sequence} * rows_of_token(heads);
  if (rows == 0) return;
  AttentionArguments arguments{};
  arguments.qkv = static_cast<const float*>(qkv.data);
  arguments.qkv_stride = qkv.stride;
  arguments.step = step;
  arguments.heads = heads;
  arguments.cache = view_of(cache, layer);
  arguments.scale = is_exact ? scale : scale * kLog2E;
  arguments.bend = bend;
  arguments.sinks = sinks;
  arguments.sink_factor = is_exact ? 1.0f : kLog2E;
  if (!is_exact) {  // to base 2, as the scale
    arguments.bend.soft_cap *= kLog2E;
    arguments.bend.slope_factor *= kLog2E;
  }
  arguments.window = window;
  arguments.out = out.data;
  arguments.out_stride = out.stride;
  arguments.parts = 1;
  arguments.rows_limit = static_cast<std::uint32_t>(std::min<std::size_t>(kTileRows, rows));
  if (!is_exact && !is_decode) {
    const std::size_t all_rows = std::size_t{step.num_tokens} * rows_of_token(heads);
    const std::size_t most_tiles = all_rows / kPrefillRows + step.num_sequences;  // one of each sequence may be cut short
    return launch_prefill(where, arguments, static_cast<unsigned>(most_tiles), out.type);
  }
  const std::size_t tiles = divide_up(rows, kTileRows);
  if (is_decode) share_out(arguments, where.num_multiprocessors, tiles, is_exact ? kSpan : kGroup, scratch);
  if (is_exact) return launch_exact(where, arguments, static_cast<unsigned>(tiles));
  launch_decode(where, arguments, static_cast<unsigned>(tiles), out.type);
}

}  // namespace lockstep::device::cuda
