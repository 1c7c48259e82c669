// The CPU kernels against what the machine can do at most, measured in the same run: GB/s of weights for one token against a read probe,
// operations for batches.
//   kernels_bench --benchmark_filter='decode/Q4_0'
#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <string>

#include <benchmark/benchmark.h>

#include "device/cpu/cpu_device.h"
#include "device/cpu/probe.h"

namespace lockstep::device {
namespace {

struct Owned {
  std::unique_ptr<Buffer> buffer;
  Matrix matrix;
};

Owned make_matrix(Device& device, Activation type, std::size_t rows, std::size_t columns) {
  Owned owned{device.allocate(device.matrix_bytes(type, rows, columns)), {}};
  std::memset(owned.buffer->data(), 0, owned.buffer->size_bytes());
  owned.matrix = {owned.buffer->data(), columns, rows, type};
  return owned;
}

/// Random numbers; whatever may be a float of 16 or 32 bits is small.
void fill(std::span<std::byte> to, DType dtype, std::uint32_t seed) {
  std::minstd_rand generator(seed);
  for (std::byte& byte : to) byte = static_cast<std::byte>(generator() >> 8);
  const std::size_t block = info(dtype).block_bytes, step = info(dtype).block_quantised() ? 2 : block;
  for (std::size_t at = 0; at + block <= to.size(); at += block) {
    for (std::size_t i = step - 1; i < block; i += step) to[at + i] &= std::byte{0xBF};  // the exponent's top bit
    if (dtype == DType::kMXFP4) to[at] = std::byte{120};
  }
}

/// Products of one shape over as many weights as no cache holds, or few of them for batches.
void products(benchmark::State& state, DType dtype, Isa isa, std::size_t threads, std::size_t rows, std::size_t columns, std::size_t tokens,
              std::size_t num_leaves) {
  const auto device = make_cpu_device({threads, isa});
  const std::size_t bytes = rows * row_bytes(dtype, columns);
  const std::size_t count = tokens == 1 ? std::max<std::size_t>(1, (std::size_t{200} << 20) / bytes) : 4;
  WeightSpec spec{"bench", dtype, rows, columns, {}};
  for (std::size_t leaf = 1; leaf <= num_leaves; ++leaf) {  // a balanced tree: after leaf i, as many merges as i has factors of two
    std::uint32_t merges = 0;
    while (leaf % (std::size_t{2} << merges) == 0) ++merges;
    spec.leaves.push_back({static_cast<std::uint32_t>(columns / 32 * leaf / num_leaves * 32), merges, leaf == num_leaves});
  }
  std::vector<std::byte> stored(64 * row_bytes(dtype, columns));
  fill(stored, dtype, 1);
  std::vector<std::unique_ptr<Weight>> weights;
  for (std::size_t i = 0; i < count; ++i) {
    weights.push_back(device->load_weight(
        spec, [&](std::size_t, std::size_t, std::span<std::byte> to) { std::memcpy(to.data(), stored.data(), to.size()); }));
  }
  const bool blocks = info(dtype).block_quantised();
  const Owned floats = make_matrix(*device, Activation::kFloat32, tokens, columns);
  for (std::size_t i = 0; i < tokens * columns; ++i) static_cast<float*>(floats.matrix.data)[i] = std::sin(static_cast<float>(i));
  const Owned in = make_matrix(*device, Activation::kInt8Blocks, tokens, columns / 32 * 32);
  if (blocks) device->convert(floats.matrix, tokens, in.matrix);
  const Owned out = make_matrix(*device, Activation::kFloat32, tokens, rows);
  for (auto _ : state) {
    for (const auto& weight : weights) device->linear(blocks ? in.matrix : floats.matrix, tokens, *weight, nullptr, out.matrix);
  }
  const double runs = static_cast<double>(state.iterations() * count);
  if (tokens == 1) {
    state.counters["GB/s"] = benchmark::Counter(1e-9 * runs * static_cast<double>(bytes), benchmark::Counter::kIsRate);
    state.counters["probe_GB/s"] = 1e-9 * measure_read_bandwidth(threads, std::size_t{200} << 20, 0.3);
  } else {
    state.counters["GOP/s"] = benchmark::Counter(2e-9 * runs * static_cast<double>(rows * columns * tokens), benchmark::Counter::kIsRate);
    const PeakRates peak = measure_peak_rates(isa);
    state.counters["peak_GOP/s"] = 1e-9 * static_cast<double>(threads) * (blocks ? peak.integers : peak.floats);
  }
}

struct KvType {
  DType dtype;
  KvQuantisation quantised = KvQuantisation::kNone;
};

/// `tokens` new tokens of each of `sequences` sequences behind `context` tokens, with the heads of SmolLM2-135M.
void attention(benchmark::State& state, const KvType& type, Isa isa, std::size_t threads, std::size_t sequences, std::size_t context,
               std::size_t tokens) {
  const auto device = make_cpu_device({threads, isa});
  AttentionSpec spec{9, 3, 64, {0, 0, 0, 1, 1, 1, 2, 2, 2}, 0.125f, 0};
  const std::size_t length = context + tokens, blocks_each = (length + 15) / 16, columns = 15 * 64;
  KvCacheSpec kv{1, blocks_each * sequences, 16, 3, 64, type.dtype, type.quantised};
  const std::size_t token_bytes = kv.bytes_per_block() / kv.block_size;
  const std::size_t layers = std::max<std::size_t>(1, tokens > 1 ? 1 : (std::size_t{100} << 20) / (sequences * length * token_bytes));
  kv.num_layers = layers;
  const auto cache = device->allocate_kv_cache(kv);
  const auto batch_of = [&](std::size_t first, std::size_t count) {
    StepBatch batch;
    for (std::size_t s = 0; s < sequences; ++s) {
      batch.sequences.push_back({static_cast<std::uint32_t>(s * count), static_cast<std::uint32_t>(count),
                                 static_cast<std::uint32_t>(first), static_cast<std::uint32_t>(s * blocks_each)});
      for (std::size_t b = 0; b < blocks_each; ++b) batch.block_tables.push_back(static_cast<std::uint32_t>(s * blocks_each + b));
      for (std::size_t t = 0; t < count; ++t) batch.positions.push_back(static_cast<std::int32_t>(first + t));
    }
    batch.token_ids.resize(sequences * count);
    return batch;
  };
  const StepBatch fill_batch = batch_of(0, length), batch = batch_of(context, tokens);
  const Owned all = make_matrix(*device, Activation::kFloat32, sequences * length, columns);
  for (std::size_t i = 0; i < sequences * length * columns; ++i)
    static_cast<float*>(all.matrix.data)[i] = std::sin(static_cast<float>(i % 1777));
  device->begin_step(fill_batch);
  for (std::size_t layer = 0; layer < layers; ++layer) device->rotate_and_append(all.matrix, spec, nullptr, *cache, layer);
  const Owned out = make_matrix(*device, Activation::kFloat32, sequences * tokens, 9 * 64);
  device->begin_step(batch);
  for (auto _ : state) {
    for (std::size_t layer = 0; layer < layers; ++layer) device->attention(all.matrix, spec, *cache, layer, out.matrix);
  }
  const double runs = static_cast<double>(state.iterations() * layers * sequences);
  double pairs = 0;
  for (std::size_t t = 0; t < tokens; ++t) pairs += static_cast<double>(context + t + 1);
  if (tokens == 1) {
    state.counters["GB/s"] = benchmark::Counter(1e-9 * runs * static_cast<double>(length * token_bytes), benchmark::Counter::kIsRate);
    state.counters["probe_GB/s"] = 1e-9 * measure_read_bandwidth(threads, std::size_t{200} << 20, 0.3);
  }
  state.counters["GFLOP/s"] = benchmark::Counter(1e-9 * runs * pairs * 9 * 64 * 4, benchmark::Counter::kIsRate);
}

/// What a step costs beside its products: rows of the example model's width, more than a cache holds where there are several. GB/s: rows
/// in and out, the int8 ones with their scales and sums.
void row_ops(benchmark::State& state, Isa isa, std::size_t rows) {
  const auto device = make_cpu_device({1, isa});
  const Owned x = make_matrix(*device, Activation::kFloat32, rows, 576), blocks = make_matrix(*device, Activation::kInt8Blocks, rows, 576);
  const std::vector<float> weight(576, 1.0f);
  for (std::size_t i = 0; i < rows * 576; ++i) static_cast<float*>(x.matrix.data)[i] = std::sin(static_cast<float>(i));
  for (auto _ : state) device->norm(x.matrix, rows, Norm::rms(weight.data(), 1e-5f), blocks.matrix);
  const double bytes = static_cast<double>(rows * (576 * 4 + 576 / 32 * (32 + 12)));
  state.counters["GB/s"] = benchmark::Counter(1e-9 * static_cast<double>(state.iterations()) * bytes, benchmark::Counter::kIsRate);
  if (rows > 1) state.counters["probe_GB/s"] = 1e-9 * measure_read_bandwidth(1, std::size_t{200} << 20, 0.3);
}

void swiglu_op(benchmark::State& state, Isa isa, std::size_t rows) {
  const auto device = make_cpu_device({1, isa});
  const Owned x = make_matrix(*device, Activation::kFloat32, rows, 3072),
              blocks = make_matrix(*device, Activation::kInt8Blocks, rows, 1536);
  for (auto _ : state) device->gated({Nonlinearity::kSilu}, x.matrix, rows, blocks.matrix);
  const double bytes = static_cast<double>(rows * (3072 * 4 + 1536 / 32 * (32 + 12)));
  state.counters["GB/s"] = benchmark::Counter(1e-9 * static_cast<double>(state.iterations()) * bytes, benchmark::Counter::kIsRate);
  if (rows > 1) state.counters["probe_GB/s"] = 1e-9 * measure_read_bandwidth(1, std::size_t{200} << 20, 0.3);
}

/// One thread is measured by its processor time, which a busy machine falsifies less; more of them by the clock on the wall.
benchmark::internal::Benchmark* timed(benchmark::internal::Benchmark* run, std::size_t threads) {
  return threads == 1 ? run : run->UseRealTime();
}

[[maybe_unused]] const int kRegistered = [] {
  for (const Isa isa : supported_isas()) {
    const std::string name(isa_name(isa));
    for (const DType dtype :
         {DType::kF32, DType::kF16, DType::kBF16, DType::kQ8_0, DType::kQ4_0, DType::kQ4_1, DType::kQ5_0, DType::kQ5_1, DType::kQ2_K,
          DType::kQ3_K, DType::kQ4_K, DType::kQ5_K, DType::kQ6_K, DType::kIQ4_NL, DType::kIQ4_XS, DType::kMXFP4}) {
      const std::string type(info(dtype).name);
      for (const std::size_t threads : {1, 2}) {
        const std::string suffix = "/" + type + "/" + name + "/threads:" + std::to_string(threads);
        const auto add = [&](const std::string& kind, std::size_t rows, std::size_t columns, std::size_t tokens, std::size_t leaves) {
          timed(benchmark::RegisterBenchmark((kind + suffix).c_str(), products, dtype, isa, threads, rows, columns, tokens, leaves),
                threads)
              ->MinTime(isa == Isa::kPortable ? 0.01 : 0.4);
        };
        const std::size_t hidden = info(dtype).block_size > 32 ? 512 : 576;  // whole super-blocks
        add("decode", 3072, hidden, 1, 1);
        add("decode_16_leaves", 576, 1536, 1, 16);
        add("batch_of_8", 3072, hidden, 8, 1);
        add("prefill_of_128", 3072, hidden, 128, 1);
        add("prefill_of_128_big", 4096, 4096, 128, 1);
        add("prefill_of_128_16_leaves", 576, 1536, 128, 16);
      }
    }
    for (const KvType& kv : {KvType{DType::kF32}, KvType{DType::kF16}, KvType{DType::kBF16}, KvType{DType::kF32, KvQuantisation::kInt8},
                             KvType{DType::kF32, KvQuantisation::kFloat8}}) {
      for (const std::size_t threads : {1, 2}) {
        const std::string type(kv.quantised == KvQuantisation::kNone ? info(kv.dtype).name : name_of(kv.quantised));
        const std::string suffix = "/" + type + "/" + name + "/threads:" + std::to_string(threads);
        const auto add = [&](const std::string& kind, std::size_t sequences, std::size_t context, std::size_t tokens) {
          timed(benchmark::RegisterBenchmark((kind + suffix).c_str(), attention, kv, isa, threads, sequences, context, tokens), threads);
        };
        add("attention_decode_1x2048", 1, 2048, 1);
        add("attention_decode_32x256", 32, 256, 1);
        add("attention_prefill_512", 1, 0, 512);
      }
    }
    for (const std::size_t rows : {1, 8192}) {
      const std::string suffix = "_of_" + std::to_string(rows) + "/" + name;
      benchmark::RegisterBenchmark(("rms_norm_to_int8_576" + suffix).c_str(), row_ops, isa, rows);
      benchmark::RegisterBenchmark(("swiglu_to_int8_1536" + suffix).c_str(), swiglu_op, isa, rows);
    }
  }
  return 0;
}();

}  // namespace
}  // namespace lockstep::device
