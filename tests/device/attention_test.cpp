#include <array>
#include <numeric>

#include <gtest/gtest.h>

#include "tests/device/reference.h"

namespace lockstep::device {
namespace {

using namespace reference;

struct Case {
  std::size_t heads, kv_heads, head_dim, block_size;
  DType dtype;
  std::uint32_t window;
  float soft_cap = 0.0f;
  bool sloped = false;
  KvQuantisation quantised = KvQuantisation::kNone;
  bool has_sinks = false;
};

/// A few sequences, as steps of them: prompts of different lengths in chunks, then tokens one at a time. What is computed for a token must
/// not depend on any of it.
struct Scene {
  Case shape;
  std::vector<std::size_t> lengths;
  AttentionSpec spec;
  std::vector<std::vector<float>> rows;  // of each sequence: [length, qkv columns]
  std::vector<float> cosines, sines;
  std::vector<float> sinks;  // [heads], or empty

  std::size_t columns() const { return (shape.heads + 2 * shape.kv_heads) * shape.head_dim; }

  explicit Scene(const Case& c, std::vector<std::size_t> sequence_lengths) : shape(c), lengths(std::move(sequence_lengths)) {
    spec.num_heads = c.heads;
    spec.num_kv_heads = c.kv_heads;
    spec.head_dim = c.head_dim;
    for (std::size_t head = 0; head < c.heads; ++head) spec.kv_head_of.push_back(static_cast<std::uint32_t>(head * c.kv_heads / c.heads));
    spec.scale = 1.0f / std::sqrt(static_cast<float>(c.head_dim));
    spec.window = c.window;
    spec.soft_cap = c.soft_cap;
    for (std::size_t head = 0; c.sloped && head < c.heads; ++head) spec.slopes.push_back(std::ldexp(1.0f, -1 - static_cast<int>(head)));
    if (c.has_sinks) sinks = random_floats(c.heads, 99, 6.0f);
    for (std::size_t i = 0; i < lengths.size(); ++i)
      rows.push_back(random_floats(lengths[i] * columns(), static_cast<std::uint32_t>(100 + i), 2.0f));
    const std::size_t half = c.head_dim / 4 * 2 / 2;  // rotate about half of the dims
    for (std::size_t position = 0; position < 5000; ++position) {
      for (std::size_t i = 0; i < half; ++i) {
        const double angle = static_cast<double>(position) * std::pow(10000.0, -static_cast<double>(i) / static_cast<double>(half));
        cosines.push_back(static_cast<float>(std::cos(angle)));
        sines.push_back(static_cast<float>(std::sin(angle)));
      }
    }
  }
  std::size_t rotary_dim() const { return shape.head_dim / 4 * 2; }
};

/// Runs the scene in steps of at most `chunk` tokens of each sequence (all sequences together, or one after another) and gives the outputs
/// of each sequence. With two tables the layer goes by the second one, and another, which is filled too, by the first.
std::vector<std::vector<float>> run_scene(const Scene& scene, Device& device, std::size_t chunk, bool together,
                                          Activation type = Activation::kFloat32, std::uint32_t num_tables = 1) {
  const std::size_t block_size = scene.shape.block_size, out_columns = scene.shape.heads * scene.shape.head_dim;
  std::size_t blocks = 0;
  for (const std::size_t length : scene.lengths) blocks += (length + block_size - 1) / block_size;
  std::vector<KvPlace> places;
  if (num_tables > 1) places = {{0, 0}, {1, 0}};
  const auto cache = device.allocate_kv_cache(
      {2, num_tables * blocks, block_size, scene.shape.kv_heads, scene.shape.head_dim, scene.shape.dtype, scene.shape.quantised, places});
  const RotaryTable table{scene.cosines, scene.sines, scene.rotary_dim()};
  std::vector<std::vector<float>> outputs(scene.lengths.size());
  std::vector<std::size_t> done(scene.lengths.size(), 0);
  for (;;) {
    StepBatch batch;
    std::vector<float> qkv;
    std::vector<std::size_t> members;
    std::size_t next_block = blocks;  // blocks are handed out from the last one down, so that tables are not ascending
    for (std::size_t i = 0; i < scene.lengths.size(); ++i) {
      const std::size_t count = (scene.lengths[i] + block_size - 1) / block_size;
      next_block -= count;
      const std::size_t tokens = std::min(chunk, scene.lengths[i] - done[i]);
      if (tokens == 0 || (!together && !members.empty())) continue;
      batch.sequences.push_back({static_cast<std::uint32_t>(batch.num_tokens()), static_cast<std::uint32_t>(tokens),
                                 static_cast<std::uint32_t>(done[i]), static_cast<std::uint32_t>(batch.block_tables.size())});
      const std::size_t used = (done[i] + tokens + block_size - 1) / block_size;
      for (std::size_t b = 0; b < num_tables * used; ++b)
        batch.block_tables.push_back(static_cast<std::uint32_t>(next_block + (count - 1 - b % used + 3) % count + b / used * blocks));
      for (std::size_t t = 0; t < tokens; ++t) {
        batch.token_ids.push_back(0);
        batch.positions.push_back(static_cast<std::int32_t>(done[i] + t));
      }
      const float* row = scene.rows[i].data() + done[i] * scene.columns();
      qkv.insert(qkv.end(), row, row + tokens * scene.columns());
      members.push_back(i);
      done[i] += tokens;
    }
    if (members.empty()) return outputs;
    const OwnedMatrix in = upload(device, qkv, scene.columns());
    const OwnedMatrix out = make_matrix(device, type, batch.num_tokens(), out_columns);
    batch.num_tables = num_tables;
    device.begin_step(batch);
    const auto walk = [&] {
      device.rotate_and_append(in.matrix, scene.spec, &table, *cache, 1);
      device.attention(in.matrix, scene.spec, *cache, 1, out.matrix, scene.sinks.empty() ? nullptr : scene.sinks.data());
    };
    if (num_tables == 1) {
      walk();
    } else {
      device.run_step(walk);
      const OwnedMatrix others = upload(device, std::vector<float>(qkv.size(), 3.0f), scene.columns());
      device.rotate_and_append(others.matrix, scene.spec, &table, *cache, 0);
    }
    const std::vector<float> values = download(device, out.matrix, batch.num_tokens());
    for (std::size_t m = 0; m < members.size(); ++m) {
      const auto from = values.begin() + static_cast<std::ptrdiff_t>(batch.sequences[m].first_token * out_columns);
      outputs[members[m]].insert(outputs[members[m]].end(), from,
                                 from + static_cast<std::ptrdiff_t>(batch.sequences[m].num_tokens * out_columns));
    }
  }
}

/// A key or value of a head as it comes out of the cache.
void pass_through_cache(const Case& shape, float* x) {
  const std::span<float> vector(x, shape.head_dim);
  if (shape.quantised != KvQuantisation::kNone) return reference::pass_through_eight_bits(shape.quantised, vector);
  for (float& value : vector) {
    if (shape.dtype == DType::kF16) value = half_to_float(float_to_half(value));
    if (shape.dtype == DType::kBF16) value = bfloat16_to_float(float_to_bfloat16(value));
  }
}

/// Attention in double precision, straight from the formula.
std::vector<float> attention_of(const Scene& scene, std::size_t sequence) {
  const Case& c = scene.shape;
  const std::size_t length = scene.lengths[sequence], columns = scene.columns(), half = scene.rotary_dim() / 2;
  std::vector<float> rows = scene.rows[sequence];
  for (std::size_t t = 0; t < length; ++t) {
    for (std::size_t head = 0; head < c.heads + 2 * c.kv_heads; ++head) {
      float* x = &rows[t * columns + head * c.head_dim];
      for (std::size_t i = 0; head < c.heads + c.kv_heads && i < half; ++i) {
        const float cosine = scene.cosines[t * half + i], sine = scene.sines[t * half + i], a = x[i], b = x[half + i];
        x[i] = std::fma(a, cosine, -(b * sine));
        x[half + i] = std::fma(b, cosine, a * sine);
      }
      if (head >= c.heads) pass_through_cache(c, x);
    }
  }
  std::vector<float> out(length * c.heads * c.head_dim);
  for (std::size_t t = 0; t < length; ++t) {
    for (std::size_t head = 0; head < c.heads; ++head) {
      const std::size_t kv = scene.spec.kv_head_of[head], first = c.window && t + 1 > c.window ? t + 1 - c.window : 0;
      std::vector<double> weights, sums(c.head_dim, 0.0);
      double highest = -1e300, total = 0;
      for (std::size_t key = first; key <= t; ++key) {
        double score = 0;
        for (std::size_t d = 0; d < c.head_dim; ++d) {
          score += double{rows[t * columns + head * c.head_dim + d]} * double{rows[key * columns + (c.heads + kv) * c.head_dim + d]};
        }
        score *= double{scene.spec.scale};
        if (c.soft_cap != 0.0f) score = double{c.soft_cap} * std::tanh(score / double{c.soft_cap});
        if (c.sloped) score += double{scene.spec.slopes[head]} * static_cast<double>(key);
        weights.push_back(score);
        highest = std::max(highest, weights.back());
      }
      if (c.has_sinks) highest = std::max(highest, double{scene.sinks[head]});
      if (c.has_sinks) total = std::exp(double{scene.sinks[head]} - highest);
      for (std::size_t key = first; key <= t; ++key) {
        const double p = std::exp(weights[key - first] - highest);
        total += p;
        for (std::size_t d = 0; d < c.head_dim; ++d)
          sums[d] += p * double{rows[key * columns + (c.heads + c.kv_heads + kv) * c.head_dim + d]};
      }
      for (std::size_t d = 0; d < c.head_dim; ++d) out[(t * c.heads + head) * c.head_dim + d] = static_cast<float>(sums[d] / total);
    }
  }
  return out;
}

const std::vector<Case>& cases() {
  static const std::vector<Case> all{{9, 3, 64, 16, DType::kF16, 0},
                                     {4, 4, 20, 32, DType::kF32, 0},
                                     {6, 2, 16, 48, DType::kBF16, 0},
                                     {5, 1, 80, 16, DType::kF16, 70},
                                     {2, 1, 8, 64, DType::kF32, 5},
                                     {2, 2, 128, 16, DType::kF32, 0},
                                     {16, 1, 32, 80, DType::kF16, 200},
                                     {6, 2, 24, 16, DType::kF32, 0, 2.5f, false},
                                     {4, 4, 16, 32, DType::kBF16, 33, 0.0f, true},
                                     {3, 1, 40, 16, DType::kF16, 90, 4.0f, true},
                                     {9, 3, 64, 16, DType::kF32, 0, 0.0f, false, KvQuantisation::kInt8},
                                     {4, 2, 20, 32, DType::kF32, 70, 0.0f, false, KvQuantisation::kInt8},
                                     {12, 1, 24, 48, DType::kF32, 0, 2.5f, false, KvQuantisation::kInt8},
                                     {9, 3, 64, 16, DType::kF32, 90, 0.0f, false, KvQuantisation::kFloat8},
                                     {4, 2, 20, 32, DType::kF32, 0, 0.0f, true, KvQuantisation::kFloat8},
                                     {12, 1, 8, 16, DType::kF32, 0, 0.0f, false, KvQuantisation::kFloat8},
                                     {6, 2, 16, 16, DType::kF32, 0, 0.0f, false, KvQuantisation::kNone, true},
                                     {4, 4, 64, 32, DType::kBF16, 70, 3.0f, false, KvQuantisation::kNone, true},
                                     {12, 1, 24, 16, DType::kF32, 5, 0.0f, false, KvQuantisation::kInt8, true}};
  return all;
}

TEST(Attention, IsCloseToTheFormulaInDoublePrecision) {
  float largest = 0;
  for (const Case& c : cases()) {
    // A slope makes scores of up to 128, whose last bit is larger than that of the others'.
    const float share = c.sloped ? 0.25f : 1.0f;
    const Scene scene(c, {1, 70, 257});
    const auto device = make_cpu_device({2});
    const auto outputs = run_scene(scene, *device, 512, true);
    for (std::size_t i = 0; i < scene.lengths.size(); ++i) {
      const std::vector<float> expected = attention_of(scene, i);
      ASSERT_EQ(outputs[i].size(), expected.size());
      for (std::size_t at = 0; at < expected.size(); ++at) largest = std::max(largest, share * std::fabs(outputs[i][at] - expected[at]));
    }
  }
  EXPECT_LT(largest, 5e-6f);
  RecordProperty("largest_difference", std::to_string(largest));
}

/// Each a test of its own: under the sanitizers one takes long.
class AttentionOf : public testing::TestWithParam<std::size_t> {};

TEST_P(AttentionOf, GivesTheSameBitsForEveryChunkingBatchInstructionSetAndThreadCount) {
  const Scene scene(cases().at(GetParam()), {3, 130, 65, 300});
  const auto plain = make_cpu_device({1, Isa::kPortable});
  const auto expected = run_scene(scene, *plain, 512, false);
  for (const CpuOptions& options : all_options()) {
    const auto device = make_cpu_device(options);
    for (const std::size_t chunk : {1, 7, 64, 512}) {
      if (options.isa == Isa::kPortable && chunk < 64) continue;
      const auto outputs = run_scene(scene, *device, chunk, true);
      for (std::size_t i = 0; i < outputs.size(); ++i)
        EXPECT_EQ(count_different(outputs[i], expected[i]), 0u) << device->description() << " chunk " << chunk << " sequence " << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(EveryShape, AttentionOf, testing::Range(std::size_t{0}, cases().size()));

struct LongSequence {
  Case shape;
  std::size_t length;
};

void PrintTo(const LongSequence& sequence, std::ostream* out) { *out << sequence.length << "_" << name_of(sequence.shape.quantised); }

class AttentionOfOneLongSequence : public testing::TestWithParam<LongSequence> {};

TEST_P(AttentionOfOneLongSequence, IsSpreadOverThreadsWithoutChangingABit) {
  const auto& [shape, length] = GetParam();
  const Scene scene(shape, {length});
  const auto expected = run_scene(scene, *make_cpu_device({1}), length, true);
  for (const CpuOptions& options : all_options()) {
    if (options.isa == Isa::kPortable) continue;
    const auto outputs = run_scene(scene, *make_cpu_device(options), length - 1, true);  // the last token is a decode step
    EXPECT_EQ(count_different(outputs[0], expected[0]), 0u) << length << " keys, " << name_of(shape.quantised);
  }
}

INSTANTIATE_TEST_SUITE_P(EveryCache, AttentionOfOneLongSequence,
                         testing::Values(LongSequence{{3, 1, 64, 16, DType::kF16, 0}, 1500},
                                         LongSequence{{3, 1, 64, 16, DType::kF16, 0, 0.0f, false, KvQuantisation::kInt8}, 1500},
                                         LongSequence{{3, 1, 64, 16, DType::kF16, 0, 0.0f, false, KvQuantisation::kFloat8}, 1500},
                                         LongSequence{{3, 1, 64, 16, DType::kF16, 0, 0.0f, false, KvQuantisation::kNone, true}, 1400},
                                         // more spans than a block of queries has room for
                                         LongSequence{{9, 1, 16, 16, DType::kF16, 0}, 4500}));

TEST(Attention, ALayerGoesByItsOwnBlockTable) {
  const Scene scene({9, 3, 64, 16, DType::kF16, 0}, {3, 130, 65});
  const auto expected = run_scene(scene, *make_cpu_device({1}), 512, true);
  for (const CpuOptions& options : all_options()) {
    for (const std::size_t chunk : {1, 40}) {
      const auto outputs = run_scene(scene, *make_cpu_device(options), chunk, true, Activation::kFloat32, 2);
      for (std::size_t i = 0; i < outputs.size(); ++i) EXPECT_EQ(count_different(outputs[i], expected[i]), 0u) << chunk;
    }
  }
  const auto device = make_cpu_device({1});
  const auto cache = device->allocate_kv_cache({2, 1, 16, 3, 64, DType::kF32, KvQuantisation::kNone, {{0, 0}, {1, 0}}});
  StepBatch batch;
  batch.token_ids = batch.positions = {0};
  batch.sequences = {{.num_tokens = 1}};
  batch.block_tables = {0};
  const OwnedMatrix qkv = upload(*device, std::vector<float>(15 * 64), 15 * 64);
  device->begin_step(batch);
  EXPECT_THROW(device->rotate_and_append(qkv.matrix, scene.spec, nullptr, *cache, 1), std::invalid_argument) << "there is no second table";
}

TEST(Attention, ASingleKeyGivesItsValue) {
  const Scene scene({4, 2, 24, 16, DType::kF32, 0}, {1});
  for (const CpuOptions& options : all_options()) {
    const auto outputs = run_scene(scene, *make_cpu_device(options), 1, true);
    for (std::size_t head = 0; head < 4; ++head) {
      for (std::size_t d = 0; d < 24; ++d) EXPECT_EQ(outputs[0][head * 24 + d], scene.rows[0][(4 + 2 + head / 2) * 24 + d]);
    }
  }
}

/// The weight of one key beside a sink of the same score is a half; a sink that is far above takes all, one far below nothing.
TEST(Attention, ASinkTakesItsShareAndHasNoValue) {
  Scene scene({3, 1, 16, 16, DType::kF32, 1, 0.0f, false, KvQuantisation::kNone, true}, {1});
  std::fill_n(scene.rows[0].begin(), 48, 0.0f);  // queries of zeros: every score is 0
  scene.sinks = {0.0f, 200.0f, -200.0f};
  for (const CpuOptions& options : all_options()) {
    const auto outputs = run_scene(scene, *make_cpu_device(options), 1, true);
    for (std::size_t d = 0; d < 16; ++d) {
      const float value = scene.rows[0][4 * 16 + d];
      EXPECT_EQ(outputs[0][d], value / 2);
      EXPECT_LT(std::fabs(outputs[0][16 + d]), 1e-37f);
      EXPECT_EQ(outputs[0][32 + d], value);
    }
  }
}

TEST(Attention, AWindowOfOneKeySeesItself) {
  const Scene scene({1, 1, 16, 16, DType::kF32, 1}, {100});
  const auto outputs = run_scene(scene, *make_cpu_device({2}), 100, true);
  for (std::size_t t = 0; t < 100; ++t) EXPECT_EQ(outputs[0][t * 16], scene.rows[0][t * 48 + 32]);
}

TEST(Attention, QuantisesItsOutputAsConvertDoes) {
  const Scene scene({4, 2, 24, 16, DType::kF32, 0}, {20});
  for (const CpuOptions& options : all_options()) {
    const auto device = make_cpu_device(options);
    const auto floats = run_scene(scene, *device, 20, true), blocks = run_scene(scene, *device, 20, true, Activation::kInt8Blocks);
    const OwnedMatrix converted = upload(*device, floats[0], 96, Activation::kInt8Blocks);
    EXPECT_EQ(count_different(blocks[0], download(*device, converted.matrix, 20)), 0u);
  }
}

TEST(Attention, ANaNKeySpoilsOnlyTheQueriesThatSeeIt) {
  for (const KvQuantisation quantised : {KvQuantisation::kNone, KvQuantisation::kInt8, KvQuantisation::kFloat8}) {
    Scene scene({1, 1, 16, 16, DType::kF32, 0, 0.0f, false, quantised}, {80});
    scene.rows[0][70 * 48 + 16] = std::nanf("");
    for (const CpuOptions& options : all_options()) {
      const auto outputs = run_scene(scene, *make_cpu_device(options), 80, true);
      for (std::size_t t = 0; t < 80; ++t) EXPECT_EQ(std::isfinite(outputs[0][t * 16]), t < 70) << t << " " << name_of(quantised);
    }
  }
}

TEST(RotateAndAppend, RefusesAPositionOutsideTheTable) {
  Scene scene({1, 1, 16, 16, DType::kF32, 0}, {4});
  scene.cosines.resize(3 * scene.rotary_dim() / 2);
  EXPECT_THROW(run_scene(scene, *make_cpu_device({1}), 4, true), std::out_of_range);
}

}  // namespace
}  // namespace lockstep::device
