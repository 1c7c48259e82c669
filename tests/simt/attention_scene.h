#pragma once

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "device/cuda/attention.h"
#include "tests/simt/device_rows.h"

/// A few sequences whose attention is computed in steps of different make: what comes out for a token must not depend on the steps.
namespace lockstep::device::cuda {

struct Shape {
  std::size_t heads, group, offset, head_dim, block_size;
  DType cache;
  std::uint32_t window;
  KvQuantisation quantised = KvQuantisation::kNone;
  float soft_cap = 0.0f;
  bool sloped = false;
  bool has_sinks = false;

  std::vector<float> sinks() const { return has_sinks ? reference::random_floats(heads, 99, 6.0f) : std::vector<float>(); }
  std::vector<float> slopes() const {
    std::vector<float> all;
    for (std::size_t head = 0; sloped && head < heads; ++head) all.push_back(std::ldexp(1.0f, -1 - static_cast<int>(head)));
    return all;
  }
  std::size_t kv_heads() const { return (heads - 1 + offset) / group + 1; }
  std::size_t columns() const { return (heads + 2 * kv_heads()) * head_dim; }
  std::size_t half() const { return head_dim / 4; }  // about half of the dims are rotated
  std::string name() const {
    return std::to_string(heads) + " heads, group " + std::to_string(group) + ", head_dim " + std::to_string(head_dim) + ", block " +
           std::to_string(block_size) + ", window " + std::to_string(window) + ", " +
           (quantised == KvQuantisation::kNone   ? std::string(info(cache).name)
            : quantised == KvQuantisation::kInt8 ? "INT8"
                                                 : "FP8");
  }
};

struct Scene {
  Shape shape;
  std::vector<std::size_t> lengths;
  std::vector<std::vector<float>> rows;  // of each sequence: [length, qkv columns]
  std::vector<float> cosines, sines;     // [positions, half]

  Scene(const Shape& c, std::vector<std::size_t> sequence_lengths) : shape(c), lengths(std::move(sequence_lengths)) {
    for (std::size_t i = 0; i < lengths.size(); ++i) {
      rows.push_back(reference::random_floats(lengths[i] * c.columns(), static_cast<std::uint32_t>(100 + i), 2.0f));
    }
    for (std::size_t position = 0; position < *std::max_element(lengths.begin(), lengths.end()); ++position) {
      for (std::size_t i = 0; i < c.half(); ++i) {
        const double angle = static_cast<double>(position) * std::pow(10000.0, -static_cast<double>(i) / static_cast<double>(c.half()));
        cosines.push_back(static_cast<float>(std::cos(angle)));
        sines.push_back(static_cast<float>(std::sin(angle)));
      }
    }
  }

  float scale() const { return 1.0f / std::sqrt(static_cast<float>(shape.head_dim)); }
  HeadMap heads() const {
    return {static_cast<std::uint32_t>(shape.heads), static_cast<std::uint32_t>(shape.kv_heads()),
            static_cast<std::uint32_t>(shape.head_dim), static_cast<std::uint32_t>(shape.group), static_cast<std::uint32_t>(shape.offset)};
  }
  std::size_t blocks_of(std::size_t tokens) const { return (tokens + shape.block_size - 1) / shape.block_size; }
  std::size_t num_blocks() const {
    std::size_t blocks = 0;
    for (const std::size_t length : lengths) blocks += blocks_of(length);
    return blocks;
  }
};

/// How the tokens are cut into steps.
struct Steps {
  std::size_t prefill = 1000;     // tokens of each sequence in the first step
  std::size_t chunk = 1000;       // in the later ones
  bool together = true;           // all sequences in one step, or one after another
  std::size_t pads = 0;           // sequences without tokens, and tokens without a position, that are added
  std::uint32_t max_context = 0;  // as a recording has it; 0: what the step has
  int multiprocessors = 8;        // many of them: the keys of a decode step are spread over many blocks
};

/// The step that is cut off next; empty when all is done. Blocks are handed out so that tables are not ascending.
struct CutStep {
  StepBatch batch;
  std::vector<float> qkv;
  std::vector<std::size_t> members;
};

inline CutStep cut_step(const Scene& scene, const Steps& steps, std::vector<std::size_t>& done) {
  CutStep cut;
  std::size_t next_block = scene.num_blocks();
  for (std::size_t i = 0; i < scene.lengths.size(); ++i) {
    const std::size_t count = scene.blocks_of(scene.lengths[i]);
    next_block -= count;
    const std::size_t tokens = std::min(done[i] == 0 ? steps.prefill : steps.chunk, scene.lengths[i] - done[i]);
    if (tokens == 0 || (!steps.together && !cut.members.empty())) continue;
    StepBatch& batch = cut.batch;
    batch.sequences.push_back({static_cast<std::uint32_t>(batch.num_tokens()), static_cast<std::uint32_t>(tokens),
                               static_cast<std::uint32_t>(done[i]), static_cast<std::uint32_t>(batch.block_tables.size())});
    for (std::size_t b = 0; b < scene.blocks_of(done[i] + tokens); ++b) {
      batch.block_tables.push_back(static_cast<std::uint32_t>(next_block + (count - 1 - b + 3 * count) % count));
    }
    for (std::size_t t = 0; t < tokens; ++t) {
      batch.token_ids.push_back(0);
      batch.positions.push_back(static_cast<std::int32_t>(done[i] + t));
    }
    const float* row = scene.rows[i].data() + done[i] * scene.shape.columns();
    cut.qkv.insert(cut.qkv.end(), row, row + tokens * scene.shape.columns());
    cut.members.push_back(i);
    done[i] += tokens;
  }
  return cut;
}

/// A StepView with the memory that it points to. What no kernel may read is filled with numbers that would show.
struct DeviceStep {
  DeviceMemory positions, sequence_of, sequences, block_tables;
  StepView view;

  DeviceStep(const Scene& scene, const Steps& steps, const StepBatch& batch) {
    constexpr std::uint32_t kNoBlock = 0x7FFFFFFF;
    std::size_t stride = 1;
    for (const std::size_t length : scene.lengths) stride = std::max(stride, scene.blocks_of(length));
    const std::size_t tokens = batch.num_tokens() + steps.pads, count = batch.sequences.size() + steps.pads;
    std::vector<std::int32_t> all_positions = batch.positions;
    all_positions.resize(tokens, -1);
    std::vector<std::uint32_t> owners(tokens, 0), tables(count * stride, kNoBlock);
    std::vector<SequenceView> views(count);
    for (std::size_t i = 0; i < batch.sequences.size(); ++i) {
      const StepBatch::Sequence& sequence = batch.sequences[i];
      views[i] = {sequence.first_token, sequence.num_tokens, sequence.first_position};
      std::fill_n(owners.begin() + sequence.first_token, sequence.num_tokens, static_cast<std::uint32_t>(i));
      const std::size_t used = scene.blocks_of(sequence.first_position + sequence.num_tokens);
      std::copy_n(batch.block_tables.begin() + sequence.block_table, used, tables.begin() + static_cast<std::ptrdiff_t>(i * stride));
      view.max_tokens_of_sequence = std::max(view.max_tokens_of_sequence, sequence.num_tokens);
      view.max_context = std::max(view.max_context, sequence.first_position + sequence.num_tokens);
    }
    if (steps.max_context != 0) view.max_context = steps.max_context;
    positions = to_device(all_positions);
    sequence_of = to_device(owners);
    sequences = to_device(views);
    block_tables = to_device(tables);
    view.positions = positions.as<std::int32_t>();
    view.sequence_of = sequence_of.as<std::uint32_t>();
    view.sequences = sequences.as<SequenceView>();
    view.block_tables = block_tables.as<std::uint32_t>();
    view.block_table_stride = static_cast<std::uint32_t>(stride);
    view.num_tokens = static_cast<std::uint32_t>(tokens);
    view.num_sequences = static_cast<std::uint32_t>(count);
  }
};

using Outputs = std::vector<std::vector<float>>;  // of each sequence: [length, heads * head_dim]

inline void append_outputs(const CutStep& cut, const std::vector<float>& values, std::size_t columns, Outputs& outputs) {
  for (std::size_t m = 0; m < cut.members.size(); ++m) {
    const StepBatch::Sequence& sequence = cut.batch.sequences[m];
    const auto from = values.begin() + static_cast<std::ptrdiff_t>(sequence.first_token * columns);
    std::vector<float>& to = outputs[cut.members[m]];
    to.insert(to.end(), from, from + static_cast<std::ptrdiff_t>(sequence.num_tokens * columns));
  }
}

inline Outputs run_on_cpu(const Scene& scene, Device& device) {
  const std::size_t columns = scene.shape.heads * scene.shape.head_dim;
  AttentionSpec spec;
  spec.num_heads = scene.shape.heads;
  spec.num_kv_heads = scene.shape.kv_heads();
  spec.head_dim = scene.shape.head_dim;
  for (std::size_t head = 0; head < scene.shape.heads; ++head) {
    spec.kv_head_of.push_back(static_cast<std::uint32_t>((head + scene.shape.offset) / scene.shape.group));
  }
  spec.scale = scene.scale();
  spec.window = scene.shape.window;
  spec.soft_cap = scene.shape.soft_cap;
  spec.slopes = scene.shape.slopes();
  const auto cache = device.allocate_kv_cache({2, scene.num_blocks(), scene.shape.block_size, scene.shape.kv_heads(), scene.shape.head_dim,
                                               scene.shape.cache, scene.shape.quantised});
  const RotaryTable table{scene.cosines, scene.sines, 2 * scene.shape.half()};
  std::vector<std::size_t> done(scene.lengths.size(), 0);
  const CutStep cut = cut_step(scene, {}, done);
  const reference::OwnedMatrix in = reference::upload(device, cut.qkv, scene.shape.columns());
  const reference::OwnedMatrix out = reference::make_matrix(device, Activation::kFloat32, cut.batch.num_tokens(), columns);
  device.begin_step(cut.batch);
  device.rotate_and_append(in.matrix, spec, &table, *cache, 1);
  const std::vector<float> sinks = scene.shape.sinks();
  device.attention(in.matrix, spec, *cache, 1, out.matrix, sinks.empty() ? nullptr : sinks.data());
  Outputs outputs(scene.lengths.size());
  append_outputs(cut, reference::download(device, out.matrix, cut.batch.num_tokens()), columns, outputs);
  return outputs;
}

/// Runs the scene on the GPU. The cache, the outputs and what pads have are NaN before; the scratch memory has to be left as it was.
inline Outputs run_on_gpu(const Scene& scene, Activation type, const Steps& steps) {
  const TestStream stream(steps.multiprocessors);
  const std::size_t columns = scene.shape.heads * scene.shape.head_dim;
  const CudaKvCache cache({2, scene.num_blocks(), scene.shape.block_size, scene.shape.kv_heads(), scene.shape.head_dim, scene.shape.cache,
                           scene.shape.quantised});
  const auto layer_bytes = static_cast<std::size_t>(static_cast<std::byte*>(cache.layer(1)) - static_cast<std::byte*>(cache.layer(0)));
  check(cudaMemset(cache.layer(0), 0xFF, 2 * layer_bytes), "filling the cache");
  const DeviceMemory cosines = to_device(scene.cosines), sines = to_device(scene.sines);
  const RotaryView rotary{cosines.as<float>(), sines.as<float>(), static_cast<std::uint32_t>(scene.shape.half())};
  const std::size_t longest = *std::max_element(scene.lengths.begin(), scene.lengths.end());
  const StepLimits limits{.max_sequences = scene.lengths.size() + steps.pads,
                          .max_positions = std::max<std::size_t>(longest, steps.max_context),
                          .max_sequence_blocks = scene.blocks_of(std::max<std::size_t>(longest, steps.max_context))};
  const DeviceMemory scratch(attention_scratch_bytes(scene.heads(), limits, scene.shape.block_size, steps.multiprocessors), "scratch");
  if (scratch.size_bytes() != 0) check(cudaMemset(scratch.data(), 0, scratch.size_bytes()), "clearing scratch");
  const DeviceMemory slopes = to_device(scene.shape.slopes()), sinks = to_device(scene.shape.sinks());
  const ScoreBend bend{.soft_cap = scene.shape.soft_cap, .slopes = scene.shape.sloped ? slopes.as<float>() : nullptr};
  Outputs outputs(scene.lengths.size());
  std::vector<std::size_t> done(scene.lengths.size(), 0);
  for (;;) {
    CutStep cut = cut_step(scene, steps, done);
    if (cut.members.empty()) break;
    const DeviceStep step(scene, steps, cut.batch);
    cut.qkv.resize(step.view.num_tokens * scene.shape.columns(), std::nanf(""));
    const DeviceRows qkv = upload_rows(cut.qkv, scene.shape.columns()), out = make_rows(type, step.view.num_tokens, columns);
    check(cudaMemset(out.rows.data, 0xFF, out.memory.size_bytes()), "filling the output");
    rotate_and_append(stream.launch(), qkv.rows, step.view, scene.heads(), rotary, cache, 1);
    attention(stream.launch(), qkv.rows, step.view, scene.heads(), scene.scale(), scene.shape.window, cache, 1, scratch.data(), out.rows,
              bend, scene.shape.has_sinks ? sinks.as<float>() : nullptr);
    stream.synchronize();
    append_outputs(cut, out.values(), columns, outputs);
  }
  for (const unsigned counter : from_device<unsigned>(scratch.data(), 2 * static_cast<std::size_t>(steps.multiprocessors))) {
    if (counter != 0) throw std::logic_error("the scratch memory of attention was not left zero");
  }
  return outputs;
}

/// A key or value as it comes out of the cache.
inline void pass_through_cache(const Shape& shape, float* x) {
  if (shape.quantised != KvQuantisation::kNone) return reference::pass_through_eight_bits(shape.quantised, {x, shape.head_dim});
  for (std::size_t d = 0; d < shape.head_dim; ++d) {
    x[d] = rounded(x[d], shape.cache == DType::kF16    ? Activation::kFloat16
                         : shape.cache == DType::kBF16 ? Activation::kBFloat16
                                                       : Activation::kFloat32);
  }
}

/// Attention in double precision, straight from the formula, on queries, keys and values as they are rounded for `type`.
inline Outputs attention_in_double(const Scene& scene, Activation type) {
  const Shape& shape = scene.shape;
  const std::size_t columns = shape.columns(), dim = shape.head_dim, half = shape.half();
  Outputs outputs;
  for (std::size_t s = 0; s < scene.lengths.size(); ++s) {
    std::vector<float> rows = scene.rows[s];
    std::vector<float> out;
    for (std::size_t t = 0; t < scene.lengths[s]; ++t) {
      for (std::size_t head = 0; head < shape.heads + 2 * shape.kv_heads(); ++head) {
        float* x = &rows[t * columns + head * dim];
        for (std::size_t i = 0; head < shape.heads + shape.kv_heads() && i < half; ++i) {
          const float cosine = scene.cosines[t * half + i], sine = scene.sines[t * half + i], a = x[i], b = x[half + i];
          x[i] = std::fma(a, cosine, -(b * sine));
          x[half + i] = std::fma(b, cosine, a * sine);
        }
        if (head >= shape.heads) pass_through_cache(shape, x);
        for (std::size_t d = 0; d < dim; ++d) x[d] = rounded(x[d], type);
      }
      for (std::size_t head = 0; head < shape.heads; ++head) {
        const std::size_t kv = (head + shape.offset) / shape.group;
        const std::size_t first = shape.window != 0 && t + 1 > shape.window ? t + 1 - shape.window : 0;
        std::vector<double> scores, sums(dim, 0.0);
        double highest = -1e300, total = 0;
        for (std::size_t key = first; key <= t; ++key) {
          double score = 0;
          for (std::size_t d = 0; d < dim; ++d) {
            score += double{rows[t * columns + head * dim + d]} * double{rows[key * columns + (shape.heads + kv) * dim + d]};
          }
          score *= double{scene.scale()};
          if (shape.soft_cap != 0.0f) score = double{shape.soft_cap} * std::tanh(score / double{shape.soft_cap});
          if (shape.sloped) score += double{shape.slopes()[head]} * static_cast<double>(key);
          scores.push_back(score);
          highest = std::max(highest, scores.back());
        }
        if (shape.has_sinks) highest = std::max(highest, double{shape.sinks()[head]});
        if (shape.has_sinks) total = std::exp(double{shape.sinks()[head]} - highest);
        for (std::size_t key = first; key <= t; ++key) {
          const double p = std::exp(scores[key - first] - highest);
          total += p;
          const float* value = &rows[key * columns + (shape.heads + shape.kv_heads() + kv) * dim];
          for (std::size_t d = 0; d < dim; ++d) sums[d] += p * double{value[d]};
        }
        for (const double sum : sums) out.push_back(static_cast<float>(sum / total));
      }
    }
    outputs.push_back(std::move(out));
  }
  return outputs;
}

}  // namespace lockstep::device::cuda
