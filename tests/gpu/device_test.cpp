// Every op of the Device interface on a GPU. In fp32 it has the bits of the CPU device; in 16 bits it is near the float64 result of the
// rounded inputs, and the same bits for any number of rows.

#include <algorithm>
#include <cmath>
#include <optional>

#include <gtest/gtest.h>

#include "comm/self.h"
#include "device/cuda/cuda_device.h"
#include "tests/gpu/gpus.h"
#include "tests/simt/attention_scene.h"  // no emulator call

namespace lockstep::device::cuda {
namespace {

using reference::count_different;
using reference::download;
using reference::make_leaves;
using reference::make_matrix;
using reference::OwnedMatrix;
using reference::random_floats;
using reference::StoredWeight;
using reference::upload;

constexpr Activation kHalfTypes[] = {Activation::kBFloat16, Activation::kFloat16};
constexpr std::size_t kRows = 5;
const std::vector<std::size_t> kWidths = {1, 33, 64, 576, 2052};

float unit_of(Activation type) { return type == Activation::kFloat16 ? 0x1p-11f : 0x1p-8f; }

class DeviceOnGpu : public test::OnGpus<testing::Test> {
 protected:
  void SetUp() override {
    OnGpus::SetUp();
    if (!IsSkipped()) rank_ = lockstep_cuda_plugin()->open_rank(*host_, {});
  }
  Device& gpu() { return *rank_.device; }
  Device& cpu() { return *cpu_; }

 private:
  std::unique_ptr<comm::Communicator> host_ = comm::make_self_communicator();
  std::unique_ptr<Device> cpu_ = make_cpu_device({1});
  comm::CudaRank rank_;
};

/// A norm's weight, a bias: fp32 in the memory of a device.
class Vector {
 public:
  Vector(Device& device, const std::vector<float>& values) : buffer_(device.allocate(values.size() * sizeof(float))) {
    device.write_floats(values, buffer_->data());
  }
  const float* data() const { return static_cast<const float*>(buffer_->data()); }

 private:
  std::unique_ptr<Buffer> buffer_;
};

std::vector<float> first_rows(const std::vector<float>& values, std::size_t count) {
  return {values.begin(), values.begin() + static_cast<std::ptrdiff_t>(count)};
}

// ------------------------------------------------------------------------------------------------------------ rows

struct RowResults {
  std::vector<float> normed, sum, sum_normed, biased, biased_normed, layer_normed, gated, limited, activated;
};

RowResults row_results(Device& device, std::size_t columns, Activation type) {
  const std::vector<float> x = random_floats(kRows * columns, 1, 3.0f), delta = random_floats(kRows * columns, 2);
  const Vector weight(device, random_floats(columns, 3)), bias(device, random_floats(columns, 4));
  RowResults results;
  const OwnedMatrix from = upload(device, delta, columns), out = make_matrix(device, type, kRows, columns);
  const OwnedMatrix plain = upload(device, x, columns);
  device.norm(plain.matrix, kRows, Norm::rms(weight.data(), 1e-5f), out.matrix);
  results.normed = download(device, out.matrix, kRows);
  device.add(plain.matrix, from.matrix, kRows, nullptr);
  results.sum = download(device, plain.matrix, kRows);
  device.add(plain.matrix, from.matrix, kRows, bias.data());
  results.biased = download(device, plain.matrix, kRows);
  const OwnedMatrix fused = upload(device, x, columns);
  device.add_norm(fused.matrix, from.matrix, kRows, nullptr, Norm::rms(weight.data(), 1e-5f), out.matrix);
  results.sum_normed = download(device, out.matrix, kRows);
  EXPECT_EQ(count_different(download(device, fused.matrix, kRows), results.sum), 0u);
  device.add_norm(fused.matrix, from.matrix, kRows, bias.data(), Norm::rms(weight.data(), 1e-5f), out.matrix);
  results.biased_normed = download(device, out.matrix, kRows);
  EXPECT_EQ(count_different(download(device, fused.matrix, kRows), results.biased), 0u);
  device.norm(plain.matrix, kRows, Norm::layer(weight.data(), bias.data(), 1e-5f), out.matrix);
  results.layer_normed = download(device, out.matrix, kRows);
  const OwnedMatrix gate_up = upload(device, random_floats(kRows * 2 * columns, 5, 12.0f), 2 * columns);
  device.gated({Nonlinearity::kSilu}, gate_up.matrix, kRows, out.matrix);
  results.gated = download(device, out.matrix, kRows);
  device.gated({Nonlinearity::kGeluQuick, 7.0f, 1.0f}, gate_up.matrix, kRows, out.matrix);
  results.limited = download(device, out.matrix, kRows);
  device.activate(Nonlinearity::kGelu, plain.matrix, kRows, out.matrix);
  results.activated = download(device, out.matrix, kRows);
  return results;
}

TEST_F(DeviceOnGpu, NormsSumsAndGatesInFloat32HaveTheBitsOfTheCpu) {
  for (const std::size_t columns : kWidths) {
    const RowResults found = row_results(gpu(), columns, Activation::kFloat32),
                     expected = row_results(cpu(), columns, Activation::kFloat32);
    for (const auto member :
         {&RowResults::normed, &RowResults::sum, &RowResults::sum_normed, &RowResults::biased, &RowResults::biased_normed,
          &RowResults::layer_normed, &RowResults::gated, &RowResults::limited, &RowResults::activated}) {
      EXPECT_EQ(count_different(found.*member, expected.*member), 0u) << columns;
    }
  }
}

TEST_F(DeviceOnGpu, NormsAndGatesIn16BitsAreNearThoseOfTheCpu) {
  for (const Activation type : kHalfTypes) {
    for (const std::size_t columns : kWidths) {
      const RowResults found = row_results(gpu(), columns, type), expected = row_results(cpu(), columns, Activation::kFloat32);
      for (const auto member : {&RowResults::normed, &RowResults::sum_normed, &RowResults::biased_normed}) {
        for (std::size_t i = 0; i < (found.*member).size(); ++i) {
          ASSERT_NEAR((found.*member)[i], (expected.*member)[i], unit_of(type) * std::fabs((expected.*member)[i]) + 0x1p-24f) << columns;
        }
      }
      for (std::size_t i = 0; i < found.layer_normed.size(); ++i) {  // the bias may take most of a value away
        ASSERT_NEAR(found.layer_normed[i], expected.layer_normed[i], unit_of(type) * std::fabs(expected.layer_normed[i]) + 0x1p-20f);
      }
      EXPECT_EQ(count_different(found.gated, rounded(expected.gated, type)), 0u) << columns;
      EXPECT_EQ(count_different(found.limited, rounded(expected.limited, type)), 0u) << columns;
      EXPECT_EQ(count_different(found.activated, rounded(expected.activated, type)), 0u) << columns;
    }
  }
}

TEST_F(DeviceOnGpu, ConvertsToTheNearest16Bits) {
  std::vector<float> x = random_floats(kRows * 68, 6, 70000.0f);
  const float special[] = {0.0f, -0.0f, 65519.0f, 65520.0f, -1e30f, INFINITY, -INFINITY, std::nanf(""), 3e-8f, 1e-45f, 1.0f + 0x1p-8f};
  std::copy(std::begin(special), std::end(special), x.begin());
  for (const Activation type : kHalfTypes) {
    const OwnedMatrix converted = upload(gpu(), x, 68, type);
    EXPECT_EQ(count_different(download(gpu(), converted.matrix, kRows), rounded(x, type)), 0u) << name_of(type);
  }
}

TEST_F(DeviceOnGpu, FindsTheTopsThatTheCpuFinds) {
  const auto tops_of = [](Device& device, const std::vector<float>& logits, std::size_t columns) {
    const std::size_t rows = logits.size() / columns;
    device.prepare_steps({.max_tokens = rows, .max_logit_rows = rows, .max_sequences = 1, .max_positions = 16, .max_sequence_blocks = 1});
    const OwnedMatrix matrix = upload(device, logits, columns);
    std::vector<Top> tops(rows);
    device.top_of_rows(matrix.matrix, rows);
    device.read_tops(tops);
    return tops;
  };
  for (const std::size_t columns : {1, 97, 32000}) {
    std::vector<float> logits = random_floats(4 * columns, 7);
    logits[columns / 2] = 2.0f;  // twice the largest
    logits[columns - 1] = 2.0f;
    logits[columns + columns / 3] = std::nanf("");
    std::fill_n(logits.begin() + static_cast<std::ptrdiff_t>(2 * columns), columns, -INFINITY);
    const std::vector<Top> found = tops_of(gpu(), logits, columns), expected = tops_of(cpu(), logits, columns);
    for (std::size_t row = 0; row < found.size(); ++row) {
      EXPECT_EQ(found[row].id, expected[row].id) << columns << " " << row;
      EXPECT_TRUE(reference::same(found[row].logit, expected[row].logit)) << columns << " " << row;
      EXPECT_EQ(found[row].finite, expected[row].finite) << columns << " " << row;
    }
  }
}

// ------------------------------------------------------------------------------------------------------------ products

/// [roots, tokens, rows] of a product whose result stands behind three other columns.
std::vector<float> product(Device& device, const StoredWeight& stored, const std::vector<float>& x, std::size_t tokens, bool with_bias) {
  constexpr std::size_t kBefore = 3;
  const WeightSpec& spec = stored.spec;
  const auto weight = device.load_weight(spec, stored.reader());
  const Vector bias(device, random_floats(spec.rows, 9));
  const OwnedMatrix in = upload(device, first_rows(x, tokens * spec.columns), spec.columns, device.activation_for(spec.dtype));
  const std::size_t rows = spec.num_roots() * tokens;
  const OwnedMatrix out = upload(device, std::vector<float>(rows * (kBefore + spec.rows), -7.0f), kBefore + spec.rows);
  device.linear(in.matrix, tokens, *weight, with_bias ? bias.data() : nullptr, out.matrix, kBefore);
  const std::vector<float> all = download(device, out.matrix, rows);
  std::vector<float> results;
  for (std::size_t row = 0; row < rows; ++row) {
    const auto begin = all.begin() + static_cast<std::ptrdiff_t>(row * (kBefore + spec.rows));
    EXPECT_EQ(std::count(begin, begin + kBefore, -7.0f), static_cast<std::ptrdiff_t>(kBefore));
    results.insert(results.end(), begin + kBefore, begin + static_cast<std::ptrdiff_t>(kBefore + spec.rows));
  }
  return results;
}

TEST_F(DeviceOnGpu, ProductsWithFloat32WeightsHaveTheBitsOfTheCpu) {
  for (const bool one_root_each : {false, true}) {
    for (const std::size_t columns : {50, 288, 1056}) {
      const StoredWeight weight = reference::make_weight(DType::kF32, 75, columns, make_leaves(DType::kF32, columns, 9, one_root_each), 10);
      const std::vector<float> x = random_floats(70 * columns, 11);
      for (const std::size_t tokens : {1, 7, 70}) {
        const bool with_bias = !one_root_each && tokens != 7;
        EXPECT_EQ(count_different(product(gpu(), weight, x, tokens, with_bias), product(cpu(), weight, x, tokens, with_bias)), 0u)
            << columns << " columns, " << tokens << " tokens";
      }
    }
  }
}

/// The product in double precision of what the GPU multiplies (docs/numerics.md, N8), and the sums of magnitudes.
void expect_near_double(const std::vector<float>& found, const StoredWeight& stored, const std::vector<float>& x, std::size_t tokens) {
  const WeightSpec& spec = stored.spec;
  const Activation type = spec.dtype == DType::kF16 ? Activation::kFloat16 : Activation::kBFloat16;
  std::vector<float> row(spec.columns);
  for (std::size_t r = 0; r < spec.rows; ++r) {
    dequantise(spec.dtype, std::span(stored.row(r), stored.row_size()), row);
    for (float& value : row) value = rounded(value, type);
    for (std::size_t t = 0; t < tokens; ++t) {
      double sum = 0, magnitude = 0;
      for (std::size_t k = 0; k < spec.columns; ++k) {
        const double term = double{row[k]} * double{rounded(x[t * spec.columns + k], type)};
        sum += term;
        magnitude += std::fabs(term);
      }
      const double bound = 0x1p-24 * static_cast<double>(spec.columns) * magnitude + 1e-30;
      ASSERT_LE(std::fabs(double{found[t * spec.rows + r]} - sum), bound) << spec.name << ", row " << r << ", token " << t;
    }
  }
}

TEST_F(DeviceOnGpu, ProductsOnTensorCoresAreNearTheDoubleOnesAndTheSameForAnyNumberOfTokens) {
  for (const DType dtype : {DType::kBF16, DType::kF16, DType::kQ8_0, DType::kQ4_0, DType::kQ4_1}) {
    for (const std::size_t columns : {288, 1056}) {
      const StoredWeight weight = reference::make_weight(dtype, 83, columns, make_leaves(dtype, columns, 3), 12);
      const std::vector<float> x = random_floats(150 * columns, 13);
      const std::vector<float> many = product(gpu(), weight, x, 150, false);
      expect_near_double(many, weight, x, 20);
      for (const std::size_t tokens : {1, 9, 64})
        EXPECT_EQ(count_different(product(gpu(), weight, x, tokens, false), first_rows(many, tokens * 83)), 0u) << weight.spec.name;
      // A root for each leaf: their sum, in the tree of the leaves, is the product.
      StoredWeight cut = weight;
      cut.spec.leaves = make_leaves(dtype, columns, 3, true);
      const std::vector<float> roots = product(gpu(), cut, x, 9, false);
      std::vector<float> sum;
      for (std::size_t i = 0; i < 9 * 83; ++i) sum.push_back((roots[i] + roots[9 * 83 + i]) + roots[2 * 9 * 83 + i]);
      EXPECT_EQ(count_different(sum, first_rows(many, 9 * 83)), 0u) << weight.spec.name;
    }
  }
}

// ------------------------------------------------------------------------------------------------------------ steps

constexpr StepLimits kLimits{.max_tokens = 400, .max_logit_rows = 8, .max_sequences = 8, .max_positions = 512, .max_sequence_blocks = 32};

StepBatch decode_batch(const std::vector<std::int32_t>& ids) {
  StepBatch batch;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const auto row = static_cast<std::uint32_t>(i);
    batch.sequences.push_back({row, 1, 4 + row, row});
    batch.token_ids.push_back(ids[i]);
    batch.positions.push_back(static_cast<std::int32_t>(4 + i));
    batch.block_tables.push_back(row);
    batch.logit_rows.push_back(row);
  }
  return batch;
}

TEST_F(DeviceOnGpu, EmbedsAndSelectsAsTheCpu) {
  const auto results = [](Device& device, DType dtype) {
    const StoredWeight stored = reference::make_weight(dtype, 40, 96, make_leaves(dtype, 96, 1), 14);
    const auto table = device.load_weight(stored.spec, stored.reader());
    StepBatch batch = decode_batch({0, 7, 39, 46, 3, 100});
    batch.logit_rows = {1, 4, 5};
    device.prepare_steps(kLimits);
    const StepRows rows = device.begin_step(batch);
    const OwnedMatrix all = make_matrix(device, Activation::kFloat32, rows.tokens, 96);
    const OwnedMatrix chosen = make_matrix(device, Activation::kFloat32, rows.logits, 96);
    device.embed(table.get(), 7, all.matrix);
    device.select_logit_rows(all.matrix, chosen.matrix);
    std::vector<float> values = first_rows(download(device, all.matrix, rows.tokens), 6 * 96);
    const std::vector<float> selected = first_rows(download(device, chosen.matrix, rows.logits), 3 * 96);
    values.insert(values.end(), selected.begin(), selected.end());
    return values;
  };
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16, DType::kQ8_0, DType::kQ4_0, DType::kQ4_1})
    EXPECT_EQ(count_different(results(gpu(), dtype), results(cpu(), dtype)), 0u) << info(dtype).name;
}

TEST_F(DeviceOnGpu, ARecordedStepComputesTheStepThatBeganLast) {
  const StoredWeight stored = reference::make_weight(DType::kF32, 40, 96, make_leaves(DType::kF32, 96, 1), 15);
  const auto run = [&](Device& device) {
    const auto table = device.load_weight(stored.spec, stored.reader());
    const Vector weight(device, random_floats(96, 16));
    device.prepare_steps(kLimits);
    const OwnedMatrix x = make_matrix(device, Activation::kFloat32, 8, 96), out = make_matrix(device, Activation::kFloat32, 8, 96);
    std::vector<float> all;
    for (std::int32_t step = 0; step < 6; ++step) {
      const StepBatch batch = decode_batch({step, 39 - step, 5 * step});
      const StepRows rows = device.begin_step(batch);
      device.run_step([&] {
        device.embed(table.get(), 0, x.matrix);
        device.norm(x.matrix, rows.tokens, Norm::rms(weight.data(), 1e-5f), out.matrix);
      });
      const std::vector<float> values = first_rows(download(device, out.matrix, rows.tokens), 3 * 96);
      all.insert(all.end(), values.begin(), values.end());
    }
    return all;
  };
  EXPECT_EQ(count_different(run(gpu()), run(cpu())), 0u);
}

TEST_F(DeviceOnGpu, ARecordedMixtureFollowsTheRouterOfEachStep) {
  constexpr std::size_t kExperts = 6, kHidden = 48, kInner = 96;
  const std::vector<Leaf> leaves = make_leaves(DType::kF32, kInner, 3), apart = make_leaves(DType::kF32, kInner, 3, true);
  const auto run = [&](Device& device) {
    std::vector<std::unique_ptr<Weight>> weights;
    std::vector<Expert> experts;
    for (std::uint32_t e = 0; e < kExperts; ++e) {
      const StoredWeight gate_up = reference::make_weight(DType::kF32, 2 * kInner, kHidden, {{kHidden, 0, true}}, 30 + e);
      const StoredWeight down = reference::make_weight(DType::kF32, kHidden, kInner, apart, 40 + e);
      weights.push_back(device.load_weight(gate_up.spec, gate_up.reader()));
      weights.push_back(device.load_weight(down.spec, down.reader()));
      experts.push_back({weights[2 * e].get(), weights[2 * e + 1].get()});
    }
    device.prepare_steps(kLimits);
    const OwnedMatrix h = upload(device, random_floats(4 * kHidden, 17), kHidden),
                      logits = upload(device, std::vector<float>(4 * kExperts), kExperts);
    const OwnedMatrix routing = make_matrix(device, Activation::kFloat32, 4, kExperts),
                      out = make_matrix(device, Activation::kFloat32, 4, kHidden);
    std::vector<float> all;
    for (std::uint32_t step = 0; step < 6; ++step) {
      const StepRows rows = device.begin_step(decode_batch({1, 2, 3}));
      device.write_floats(random_floats(4 * kExperts, 50 + step), logits.matrix.data);
      device.run_step([&] {
        device.route(logits.matrix, rows.tokens, {.per_token = 2, .renormalised = true}, routing.matrix);
        device.experts(h.matrix, rows.tokens, routing.matrix, 2, experts, {Nonlinearity::kSilu}, leaves, out.matrix);
      });
      const std::vector<float> values = first_rows(download(device, out.matrix, rows.tokens), 3 * kHidden);
      all.insert(all.end(), values.begin(), values.end());
    }
    return all;
  };
  EXPECT_EQ(count_different(run(gpu()), run(cpu())), 0u);
}

/// rotate_and_append and attention of a whole scene, cut into steps.
Outputs attend(Device& device, const Scene& scene, Activation type, const Steps& steps) {
  const Shape& shape = scene.shape;
  AttentionSpec spec{.num_heads = shape.heads, .num_kv_heads = shape.kv_heads(), .head_dim = shape.head_dim};
  for (std::size_t head = 0; head < shape.heads; ++head)
    spec.kv_head_of.push_back(static_cast<std::uint32_t>((head + shape.offset) / shape.group));
  spec.scale = scene.scale();
  spec.window = shape.window;
  const auto cache =
      device.allocate_kv_cache({2, scene.num_blocks(), shape.block_size, shape.kv_heads(), shape.head_dim, shape.cache, shape.quantised});
  const RotaryTable table{scene.cosines, scene.sines, 2 * shape.half()};
  const std::vector<float> sinks = shape.sinks();
  const std::optional<Vector> sinks_there = sinks.empty() ? std::nullopt : std::optional<Vector>(std::in_place, device, sinks);
  device.prepare_steps(kLimits);
  Outputs outputs(scene.lengths.size());
  std::vector<std::size_t> done(scene.lengths.size(), 0);
  for (;;) {
    const CutStep cut = cut_step(scene, steps, done);
    if (cut.members.empty()) return outputs;
    const StepRows rows = device.begin_step(cut.batch);
    std::vector<float> qkv = cut.qkv;
    qkv.resize(rows.tokens * shape.columns(), 0.0f);
    const OwnedMatrix in = upload(device, qkv, shape.columns());
    const OwnedMatrix out = make_matrix(device, type, rows.tokens, shape.heads * shape.head_dim);
    device.rotate_and_append(in.matrix, spec, &table, *cache, 1);
    device.attention(in.matrix, spec, *cache, 1, out.matrix, sinks_there ? sinks_there->data() : nullptr);
    append_outputs(cut, download(device, out.matrix, rows.tokens), shape.heads * shape.head_dim, outputs);
  }
}

const Steps kDecode{.prefill = 145, .chunk = 1};

void expect_equal(const Outputs& found, const Outputs& expected, const std::string& what) {
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t i = 0; i < found.size(); ++i) EXPECT_EQ(count_different(found[i], expected[i]), 0u) << what << ", sequence " << i;
}

float largest_difference(const Outputs& found, const Outputs& expected) {
  float largest = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    for (std::size_t at = 0; at < expected[i].size(); ++at) {
      const float difference = std::fabs(found.at(i).at(at) - expected[i][at]);
      largest = difference <= largest ? largest : difference;  // NaN is the largest
    }
  }
  return largest;
}

/// All at once: a device knows a rotary table by where it stands, so the tables of two scenes must not be at one place.
std::vector<Scene> scenes(const std::vector<Shape>& shapes, const std::vector<std::size_t>& lengths) {
  std::vector<Scene> all;
  for (const Shape& shape : shapes) all.emplace_back(shape, lengths);
  return all;
}

TEST_F(DeviceOnGpu, AttentionInFloat32HasTheBitsOfTheCpuInPrefillAndDecode) {
  for (const Scene& scene : scenes({{8, 4, 0, 64, 16, DType::kF32, 0},
                                    {5, 4, 2, 80, 32, DType::kF16, 70},
                                    {2, 1, 0, 128, 32, DType::kBF16, 0},
                                    {1, 1, 0, 256, 16, DType::kF32, 0},
                                    {6, 3, 0, 64, 16, DType::kF32, 0, KvQuantisation::kNone, 0.0f, false, true},
                                    {6, 3, 0, 64, 16, DType::kF32, 0, KvQuantisation::kInt8},
                                    {6, 3, 0, 64, 16, DType::kF32, 70, KvQuantisation::kFloat8}},
                                   {1, 70, 150})) {
    const Outputs expected = attend(cpu(), scene, Activation::kFloat32, {});
    expect_equal(attend(gpu(), scene, Activation::kFloat32, {}), expected, scene.shape.name());
    expect_equal(attend(gpu(), scene, Activation::kFloat32, kDecode), expected, scene.shape.name() + ", decode");
  }
}

TEST_F(DeviceOnGpu, AttentionIn16BitsIsNearTheDoubleOneAndTheSameInPrefillAndDecode) {
  for (const Scene& scene : scenes({{8, 4, 0, 128, 16, DType::kBF16, 0},
                                    {4, 4, 0, 64, 32, DType::kF16, 90},
                                    {3, 1, 0, 80, 16, DType::kF32, 0},
                                    {8, 8, 0, 64, 16, DType::kBF16, 90, KvQuantisation::kNone, 0.0f, false, true},
                                    {4, 2, 0, 64, 32, DType::kF32, 0, KvQuantisation::kFloat8},
                                    {4, 2, 0, 64, 32, DType::kF32, 0, KvQuantisation::kInt8}},
                                   {1, 150, 75})) {
    const Activation type = scene.shape.cache == DType::kF16 ? Activation::kFloat16 : Activation::kBFloat16;
    const Outputs found = attend(gpu(), scene, type, {});
    EXPECT_LE(largest_difference(found, attention_in_double(scene, type)), 2 * unit_of(type)) << scene.shape.name();
    expect_equal(attend(gpu(), scene, type, kDecode), found, scene.shape.name() + ", decode");
    expect_equal(attend(gpu(), scene, type, {.prefill = 40, .chunk = 37, .together = false}), found, scene.shape.name() + ", chunks");
  }
}

// ------------------------------------------------------------------------------------------------------------ memory

TEST_F(DeviceOnGpu, HasItsOwnMemory) {
  const std::size_t before = gpu().free_bytes();
  EXPECT_GT(before, 0u);
  const auto buffer = gpu().allocate(std::size_t{64} << 20);
  EXPECT_EQ(buffer->size_bytes(), std::size_t{64} << 20);
  EXPECT_LE(gpu().free_bytes(), before - (std::size_t{60} << 20));
}

TEST_F(DeviceOnGpu, WhatItCanDoIsMeasured) {
  EXPECT_GT(lockstep_cuda_plugin()->measure_bandwidth(gpu()), 1e3);
  EXPECT_GT(lockstep_cuda_plugin()->measure_peak_flops(gpu()), 1e3);
}

TEST(ChooseOrdinal, IsTheLocalRankAmongTheVisibleDevicesOrTheOnlyOne) {
  for (int local_rank = 0; local_rank < 4; ++local_rank) EXPECT_EQ(choose_ordinal(4, local_rank, 4, false), local_rank);
  for (int local_rank = 0; local_rank < 2; ++local_rank) EXPECT_EQ(choose_ordinal(1, local_rank, 2, false), 0) << "each task sees its own";
  EXPECT_THROW(choose_ordinal(2, 0, 3, false), std::invalid_argument);
  EXPECT_EQ(choose_ordinal(2, 2, 3, true), 0);
  EXPECT_THROW(choose_ordinal(0, 0, 1, true), std::invalid_argument);
}

}  // namespace
}  // namespace lockstep::device::cuda
