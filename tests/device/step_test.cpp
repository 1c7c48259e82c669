// Layers in a step on several threads: the bits of one thread, and how often the threads meet.
#include <gtest/gtest.h>

#include "device/cpu/cpu_step_device.h"
#include "tests/device/reference.h"

namespace lockstep::device {
namespace {

using namespace reference;

/// A decoder layer of random weights.
struct Shape {
  std::size_t heads, kv_heads, head_dim, hidden, inner;
  DType dtype, value_dtype;  // of everything, and of the values: another type makes them a product of their own
  bool norms_heads;
};

class Layers {
 public:
  Layers(const Shape& shape, std::size_t threads, std::size_t most_rows)
      : shape_(shape),
        device_({.num_threads = threads}),
        blocks_(info(shape.dtype).block_quantised() ? Activation::kInt8Blocks : Activation::kFloat32) {
    const std::size_t queries = shape.heads * shape.head_dim, keys = shape.kv_heads * shape.head_dim, columns = queries + 2 * keys;
    if (shape.dtype == shape.value_dtype) {
      qkv_.push_back(load(shape.dtype, columns, shape.hidden, 1, {queries, keys, keys}));
    } else {
      qkv_.push_back(load(shape.dtype, queries + keys, shape.hidden, 1, {queries, keys}));
      qkv_.push_back(load(shape.value_dtype, keys, shape.hidden, 2, {}));
    }
    o_ = load(shape.dtype, shape.hidden, queries, 3, {});
    gate_up_ = load(shape.dtype, 2 * shape.inner, shape.hidden, 4, {shape.inner, shape.inner});
    down_ = load(shape.dtype, shape.hidden, shape.inner, 5, {});
    const auto matrix = [&](Activation type, std::size_t width) { return make_matrix(device_, type, most_rows, width); };
    x_ = matrix(Activation::kFloat32, shape.hidden);
    h_ = matrix(blocks_, shape.hidden);
    products_ = matrix(Activation::kFloat32, columns);
    attended_ = matrix(blocks_, queries);
    delta_ = matrix(Activation::kFloat32, shape.hidden);
    gates_ = matrix(Activation::kFloat32, 2 * shape.inner);
    inner_ = matrix(blocks_, shape.inner);
    spec_ = {shape.heads, shape.kv_heads, shape.head_dim, {}, 0.2f, 0};
    for (std::size_t head = 0; head < shape.heads; ++head)
      spec_.kv_head_of.push_back(static_cast<std::uint32_t>(head / (shape.heads / shape.kv_heads)));
    weights_ = random_floats(std::max(shape.hidden, shape.head_dim), 6);
    cosines_ = random_floats(kContext * shape.head_dim / 2, 7);
    sines_ = random_floats(kContext * shape.head_dim / 2, 8);
    table_ = {cosines_, sines_, shape.head_dim};
    cache_ = device_.allocate_kv_cache({1, most_rows * kContext / 16, 16, shape.kv_heads, shape.head_dim, DType::kF32});
    device_.prepare_steps({.max_tokens = most_rows, .max_logit_rows = most_rows, .max_sequences = most_rows, .max_positions = kContext});
  }

  /// One new token for each of `rows` sequences, through so many layers: the stream behind them, and behind the last norm.
  std::vector<float> decode(std::size_t rows, std::size_t num_layers, std::size_t position) {
    StepBatch batch;
    for (std::size_t i = 0; i < rows; ++i) {
      const std::size_t own = position + 3 * i;
      batch.sequences.push_back(
          {static_cast<std::uint32_t>(i), 1, static_cast<std::uint32_t>(own), static_cast<std::uint32_t>(batch.block_tables.size()), 1});
      for (std::size_t b = 0; b <= own / 16; ++b) batch.block_tables.push_back(static_cast<std::uint32_t>(i * kContext / 16 + b));
      batch.token_ids.push_back(0);
      batch.positions.push_back(static_cast<std::int32_t>(own));
    }
    const std::vector<float> values = random_floats(rows * shape_.hidden, static_cast<std::uint32_t>(100 + position));
    device_.write_floats(values, x_.matrix.data);
    device_.begin_step(batch);
    device_.run_step([&] {
      device_.norm(x_.matrix, rows, Norm::rms(weights_.data(), 1e-5f), h_.matrix);
      for (std::size_t layer = 0; layer < num_layers; ++layer) add_layer(rows);
    });
    barriers_ = device_.barriers();
    std::vector<float> result = download(device_, x_.matrix, rows), normed = download(device_, h_.matrix, rows);
    result.insert(result.end(), normed.begin(), normed.end());
    return result;
  }

  std::size_t barriers() const { return barriers_; }

 private:
  static constexpr std::size_t kContext = 256;

  std::unique_ptr<Weight> load(DType dtype, std::size_t rows, std::size_t columns, std::uint32_t seed, std::vector<std::size_t> parts) {
    StoredWeight stored = make_weight(dtype, rows, columns, make_leaves(dtype, columns, 5), seed);
    stored.spec.part_rows = std::move(parts);
    return device_.load_weight(stored.spec, stored.reader());
  }

  void add_layer(std::size_t rows) {
    const std::size_t queries = shape_.heads * shape_.head_dim;
    const Norm norm = Norm::rms(weights_.data(), 1e-5f);
    std::size_t column = 0;
    for (const auto& weight : qkv_) {
      device_.linear(h_.matrix, rows, *weight, nullptr, products_.matrix, column);
      column += weight->spec().rows;
    }
    if (shape_.norms_heads) {
      device_.norm_heads(products_.matrix, rows, 0, shape_.heads, shape_.head_dim, norm);
      device_.norm_heads(products_.matrix, rows, queries, shape_.kv_heads, shape_.head_dim, norm);
    }
    device_.rotate_and_append(products_.matrix, spec_, &table_, *cache_, 0);
    device_.attention(products_.matrix, spec_, *cache_, 0, attended_.matrix, nullptr);
    device_.linear(attended_.matrix, rows, *o_, nullptr, delta_.matrix, 0);
    device_.add_norm(x_.matrix, delta_.matrix, rows, nullptr, norm, h_.matrix);
    device_.linear(h_.matrix, rows, *gate_up_, nullptr, gates_.matrix, 0);
    device_.gated({Nonlinearity::kSilu}, gates_.matrix, rows, inner_.matrix);
    device_.linear(inner_.matrix, rows, *down_, nullptr, delta_.matrix, 0);
    device_.add_norm(x_.matrix, delta_.matrix, rows, nullptr, norm, h_.matrix);
  }

  Shape shape_;
  cpu::CpuDevice device_;
  Activation blocks_;
  std::vector<std::unique_ptr<Weight>> qkv_;
  std::unique_ptr<Weight> o_, gate_up_, down_;
  OwnedMatrix x_, h_, products_, attended_, delta_, gates_, inner_;
  AttentionSpec spec_;
  std::vector<float> weights_, cosines_, sines_;
  RotaryTable table_;
  std::unique_ptr<KvCache> cache_;
  std::size_t barriers_ = 0;
};

const std::vector<Shape> kShapes = {
    {9, 3, 32, 288, 288, DType::kQ8_0, DType::kQ8_0, false},  // a block of the inner columns may lie in the shares of two threads
    {9, 3, 64, 576, 1536, DType::kQ4_0, DType::kQ8_0, false}, {8, 2, 64, 512, 1024, DType::kQ4_1, DType::kQ4_1, true},
    {10, 5, 32, 320, 96, DType::kF32, DType::kF32, true},     {7, 1, 32, 224, 160, DType::kF16, DType::kF16, false},
};

TEST(Step, GivesTheBitsOfOneThreadOnAnyNumber) {
  constexpr std::size_t kMostRows = 33;
  for (const Shape& shape : kShapes) {
    Layers alone(shape, 1, kMostRows);
    for (const std::size_t threads : {2, 3, 4, 7, 10}) {
      Layers together(shape, threads, kMostRows);
      for (const std::size_t rows : {std::size_t{1}, std::size_t{2}, std::size_t{5}, kMostRows}) {
        for (const std::size_t position : {0, 70, 100}) {
          const std::vector<float> expected = alone.decode(rows, 3, position);
          ASSERT_TRUE(std::all_of(expected.begin(), expected.end(), [](float value) { return std::isfinite(value); }));
          ASSERT_EQ(count_different(expected, together.decode(rows, 3, position)), 0u)
              << shape.heads << " heads, " << threads << " threads, " << rows << " rows, position " << position;
        }
      }
    }
  }
}

TEST(Step, GivesTheBitsOfOneThreadWhereProductsAreTakenInPieces) {
  constexpr std::size_t kRows = 33;
  const Shape shape{16, 8, 64, 1024, 2048, DType::kF32, DType::kF32, true};
  Layers alone(shape, 1, kRows);
  const std::vector<float> expected = alone.decode(kRows, 2, 70);
  for (const std::size_t threads : {2, 3}) {  // on two all products, on three some
    Layers together(shape, threads, kRows);
    ASSERT_EQ(count_different(expected, together.decode(kRows, 2, 70)), 0u) << threads << " threads";
    EXPECT_GT(together.barriers(), 2u * 6u) << "who computed what would be known";
  }
}

/// The product of 200 tokens, and their tops.
struct ProductAndTops {
  std::vector<float> product;
  std::vector<Top> tops;
  std::size_t openings;
};

ProductAndTops multiply(DType dtype, Activation type, const CpuOptions& options, bool parts) {
  constexpr std::size_t kTokens = 200, kRows = 8320, kColumns = 256;
  cpu::CpuDevice device(options);
  StoredWeight stored = make_weight(dtype, kRows, kColumns, make_leaves(dtype, kColumns, 2), 1);
  if (parts) stored.spec.part_rows = {4096, 4224};
  const std::unique_ptr<Weight> weight = device.load_weight(stored.spec, stored.reader());
  const OwnedMatrix in = make_matrix(device, type, kTokens, kColumns);
  const OwnedMatrix floats = make_matrix(device, Activation::kFloat32, kTokens, kColumns);
  const OwnedMatrix out = make_matrix(device, Activation::kFloat32, kTokens, kRows);
  device.write_floats(random_floats(kTokens * kColumns, 2), floats.matrix.data);
  const StepBatch batch;
  device.begin_step(batch);
  device.run_step([&] {
    device.norm(floats.matrix, kTokens, Norm::rms(nullptr, 1e-5f), in.matrix);
    device.linear_top(in.matrix, kTokens, *weight, nullptr, out.matrix, {});
  });
  ProductAndTops result{{}, std::vector<Top>(kTokens), device.openings()};
  device.read_tops(result.tops);
  result.product = download(device, out.matrix, kTokens);
  return result;
}

TEST(Step, GivesTheSameBitsWhoeverDoesThePiecesOfALongProduct) {
  for (const auto& [dtype, type] : {std::pair(DType::kF16, Activation::kFloat32), std::pair(DType::kQ4_0, Activation::kInt8Blocks),
                                    std::pair(DType::kQ4_0, Activation::kFloat32)}) {
    for (const bool parts : {false, true}) {
      const ProductAndTops alone = multiply(dtype, type, {.num_threads = 1}, parts);
      EXPECT_EQ(alone.openings, 0u);
      for (const std::size_t threads : {2, 3}) {
        for (const cpu::Walk walk : {cpu::Walk::kAll, cpu::Walk::kAsTheyCan, cpu::Walk::kHalf}) {
          const ProductAndTops together = multiply(dtype, type, {.num_threads = threads, .walk = walk}, parts);
          EXPECT_GT(together.openings, 0u) << "it is not long";
          EXPECT_EQ(count_different(alone.product, together.product), 0u) << info(dtype).name << ", " << threads << " threads";
          for (std::size_t t = 0; t < alone.tops.size(); ++t) {
            EXPECT_EQ(alone.tops[t].id, together.tops[t].id);
            EXPECT_EQ(alone.tops[t].logit, together.tops[t].logit);
          }
        }
      }
    }
  }
}

TEST(Step, MeetsFourTimesALayerWhateverTheHeadsAndThreads) {
  for (const Shape& shape : kShapes) {
    for (const std::size_t threads : {2, 3, 4, 7, 10}) {
      Layers layers(shape, threads, 1);
      layers.decode(1, 2, 0);
      const std::size_t of_two = layers.barriers();
      layers.decode(1, 3, 1);
      EXPECT_EQ(layers.barriers() - of_two, 4u) << shape.heads << " heads, " << threads << " threads";
    }
  }
}

}  // namespace
}  // namespace lockstep::device
