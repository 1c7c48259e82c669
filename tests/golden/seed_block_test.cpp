// The block that the project began with (RMSNorm, causal attention of 8 heads without positions over past keys and values, SwiGLU 512 x
// 1376) as a graph: the whole prompt, token by token, and in pieces of 4, 1 and 5. Its weights are made on the spot; where LOCKSTEP_GOLDENS
// names the reference set, they and the results are those of the founding text.

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <numeric>
#include <thread>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "comm/threads.h"
#include "device/cpu/cpu_device.h"
#include "engine/model/blocks.h"
#include "engine/runtime/runner.h"
#include "engine/weights/loader.h"
#include "engine/weights/safetensors.h"
#include "tests/support/temporary_folder.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
using Tensors = std::map<std::string, std::pair<std::vector<std::size_t>, std::vector<float>>>;

constexpr std::size_t kHidden = 512, kHeads = 8, kDim = 64, kInner = 1376, kTokens = 10, kPrompts = 2;
constexpr float kEps = 1e-6f;

std::vector<float> random_floats(std::size_t count, std::uint32_t seed, float size) {
  std::uint32_t state = seed * 2654435761u + 1;
  std::vector<float> values(count);
  for (float& value : values) {
    state = state * 1664525u + 1013904223u;
    value = size * (static_cast<float>(state >> 8) / 8388608.0f - 1.0f);
  }
  return values;
}

std::vector<float> read_all(const engine::WeightSource& source, const std::string& name) {
  const engine::StoredTensor* tensor = source.find(name);
  if (tensor == nullptr) throw std::runtime_error("no tensor " + name);
  std::vector<float> values(tensor->bytes / sizeof(float));
  source.read(*tensor, 0, std::as_writable_bytes(std::span(values)));
  return values;
}

fs::path golden_folder() {
  const char* root = std::getenv("LOCKSTEP_GOLDENS");
  return root == nullptr ? fs::path() : fs::path(root) / "seed_block";
}

/// The weights, and as "x" the inputs: each is the embedding of a token of its own.
Tensors block_tensors() {
  const std::map<std::string, std::vector<std::size_t>> shapes{{"norm.weight", {kHidden}},
                                                               {"attn.c_attn.weight", {3 * kHidden, kHidden}},
                                                               {"attn.c_proj.weight", {kHidden, kHidden}},
                                                               {"ffn.w_gate.weight", {kInner, kHidden}},
                                                               {"ffn.w_up.weight", {kInner, kHidden}},
                                                               {"ffn.w_down.weight", {kHidden, kInner}}};
  const bool golden = !golden_folder().empty();
  Tensors tensors;
  std::uint32_t seed = 1;
  for (const auto& [name, shape] : shapes) {
    const std::size_t count = std::accumulate(shape.begin(), shape.end(), std::size_t{1}, std::multiplies<>());
    tensors[name] = {shape, golden ? read_all(*engine::read_safetensors(golden_folder() / "weights.safetensors"), name)
                                   : random_floats(count, seed++, shape.size() == 1 ? 1.5f : 0.07f)};
  }
  tensors["x.weight"] = {{kPrompts * kTokens, kHidden},
                         golden ? read_all(*engine::read_safetensors(golden_folder() / "golden.safetensors"), "x")
                                : random_floats(kPrompts * kTokens * kHidden, seed, 1.0f)};
  return tensors;
}

void write_safetensors(const fs::path& path, const Tensors& tensors) {
  nlohmann::json header;
  std::size_t offset = 0;
  for (const auto& [name, tensor] : tensors) {
    const std::size_t bytes = tensor.second.size() * sizeof(float);
    header[name] = {{"dtype", "F32"}, {"shape", tensor.first}, {"data_offsets", {offset, offset + bytes}}};
    offset += bytes;
  }
  const std::string text = header.dump();
  const std::uint64_t size = text.size();
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(&size), sizeof size);
  file << text;
  for (const auto& [name, tensor] : tensors)
    file.write(reinterpret_cast<const char*>(tensor.second.data()), static_cast<std::streamsize>(tensor.second.size() * sizeof(float)));
}

engine::ModelSpec block_spec() {
  engine::ModelSpec spec;
  spec.architecture = "llama";  // whose names need no translation
  spec.source = "the seed block";
  spec.hidden_size = kHidden;
  spec.num_layers = 1;
  spec.num_heads = spec.num_kv_heads = kHeads;
  spec.head_dim = kDim;
  spec.intermediate_size = kInner;
  spec.vocab_size = kPrompts * kTokens;
  spec.max_position_embeddings = 16;
  spec.norm.eps = kEps;
  spec.rope.rotary_dim = 0;
  spec.tie_word_embeddings = true;
  return spec;
}

parallel::Graph block_graph(const engine::ModelSpec& spec) {
  using Branch = engine::GraphBuilder::Branch;
  engine::GraphBuilder builder(spec);
  const auto x = builder.embedding({.tokens = "x"});
  const engine::AttentionModules attention{
      .q = "attn.q", .k = "attn.k", .v = "attn.v", .o = "attn.c_proj", .fused = "attn.c_attn", .fusion = engine::Fusion::kParts};
  builder.add(x, builder.attention(builder.norm(x, "norm", 0), attention, 0), Branch::kAttention, 0);
  builder.add(x, builder.feed_forward(builder.norm(x, "norm", 0), {.gate = "ffn.w_gate", .up = "ffn.w_up", .down = "ffn.w_down"}, 0),
              Branch::kFeedForward, 0);
  builder.head(x, "norm", "x");
  return builder.take();
}

/// y of one prompt [tokens, hidden], the prompt given in these pieces.
std::vector<float> run_block(const fs::path& weights, int ranks, std::size_t prompt, const std::vector<std::size_t>& pieces) {
  const engine::ModelSpec spec = block_spec();
  const auto source = engine::read_safetensors(weights);
  parallel::Graph graph = block_graph(spec);
  engine::bind_tensors(graph, spec, *source, device::DType::kF32);
  const auto communicators = comm::make_thread_communicators(ranks, {});
  std::vector<float> y;
  const auto run_rank = [&](int rank) {
    const auto device = device::make_cpu_device({1});
    parallel::RankGraph plan =
        parallel::plan(graph, static_cast<std::size_t>(rank), static_cast<std::size_t>(ranks), device::cpu_activation_for);
    engine::LoadedShard shard = engine::load_shard(plan, spec, *source, *device);
    const engine::RunnerOptions options{.max_tokens = kTokens,
                                        .max_logit_rows = kTokens,
                                        .max_sequences = 1,
                                        .max_positions = 16,
                                        .kv = {.num_blocks = 2, .block_size = 16, .dtype = device::DType::kF32}};
    engine::Runner runner(std::move(plan), std::move(shard), options, *device, *communicators[static_cast<std::size_t>(rank)]);
    runner.set_tap([&](const std::string& name, std::size_t, std::size_t, std::span<const float> values) {
      if (rank == 0 && name == "layer.0.out") y.insert(y.end(), values.begin(), values.end());
    });
    engine::StepPlan step;
    engine::StepResult result;
    std::size_t first = 0;
    for (const std::size_t count : pieces) {
      step.clear();
      ++step.sequence;
      for (std::size_t t = first; t < first + count; ++t) {
        step.batch.token_ids.push_back(static_cast<std::int32_t>(prompt * kTokens + t));
        step.batch.positions.push_back(static_cast<std::int32_t>(t));
      }
      step.batch.sequences = {{0, static_cast<std::uint32_t>(count), static_cast<std::uint32_t>(first), 0, kTokens}};
      step.batch.block_tables = {1};
      runner.run(step, result);
      first += count;
    }
  };
  std::vector<std::thread> peers;
  for (int rank = 1; rank < ranks; ++rank) peers.emplace_back(run_rank, rank);
  run_rank(0);
  for (std::thread& peer : peers) peer.join();
  return y;
}

using Row = std::vector<double>;

Row times(const std::vector<float>& w, std::size_t first_row, std::size_t rows, const Row& x) {
  Row y(rows, 0.0);
  for (std::size_t r = 0; r < rows; ++r) {
    for (std::size_t k = 0; k < x.size(); ++k) y[r] += double{w[(first_row + r) * x.size() + k]} * x[k];
  }
  return y;
}

Row norm_of(const Row& x, const std::vector<float>& weight) {
  double squares = 0;
  for (const double value : x) squares += value * value;
  Row y(x);
  for (std::size_t i = 0; i < y.size(); ++i) y[i] *= double{weight[i]} / std::sqrt(squares / static_cast<double>(x.size()) + double{kEps});
  return y;
}

/// The block in double precision.
std::vector<float> reference(const Tensors& tensors, std::size_t prompt) {
  const auto of = [&](const char* name) -> const std::vector<float>& { return tensors.at(name).second; };
  std::vector<Row> keys, values;
  std::vector<float> out;
  for (std::size_t t = 0; t < kTokens; ++t) {
    const auto from = of("x.weight").begin() + static_cast<std::ptrdiff_t>((prompt * kTokens + t) * kHidden);
    Row x(from, from + kHidden);
    const Row qkv = times(of("attn.c_attn.weight"), 0, 3 * kHidden, norm_of(x, of("norm.weight")));
    keys.emplace_back(qkv.begin() + kHidden, qkv.begin() + 2 * kHidden);
    values.emplace_back(qkv.begin() + 2 * kHidden, qkv.end());
    Row heads(kHidden, 0.0);
    for (std::size_t head = 0; head < kHeads; ++head) {
      Row weights;
      double total = 0;
      for (const Row& key : keys) {
        double score = 0;
        for (std::size_t d = 0; d < kDim; ++d) score += qkv[head * kDim + d] * key[head * kDim + d];
        weights.push_back(std::exp(score / std::sqrt(static_cast<double>(kDim))));
        total += weights.back();
      }
      for (std::size_t key = 0; key < keys.size(); ++key) {
        for (std::size_t d = 0; d < kDim; ++d) heads[head * kDim + d] += weights[key] / total * values[key][head * kDim + d];
      }
    }
    const Row attended = times(of("attn.c_proj.weight"), 0, kHidden, heads);
    for (std::size_t i = 0; i < kHidden; ++i) x[i] += attended[i];
    const Row h = norm_of(x, of("norm.weight"));
    Row gate = times(of("ffn.w_gate.weight"), 0, kInner, h);
    const Row up = times(of("ffn.w_up.weight"), 0, kInner, h);
    for (std::size_t i = 0; i < kInner; ++i) gate[i] = gate[i] / (1.0 + std::exp(-gate[i])) * up[i];
    const Row fed = times(of("ffn.w_down.weight"), 0, kHidden, gate);
    for (std::size_t i = 0; i < kHidden; ++i) out.push_back(static_cast<float>(x[i] + fed[i]));
  }
  return out;
}

float largest_difference(const std::vector<float>& a, const std::vector<float>& b) {
  EXPECT_EQ(a.size(), b.size());
  float largest = 0;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) largest = std::max(largest, std::fabs(a[i] - b[i]));
  return largest;
}

TEST(SeedBlock, RunsAsAGraphWholeTokenByTokenAndInPiecesOnAnyNumberOfRanks) {
  const test::TemporaryFolder folder;
  const Tensors tensors = block_tensors();
  const fs::path weights = folder.path() / "block.safetensors";
  write_safetensors(weights, tensors);
  for (std::size_t prompt = 0; prompt < kPrompts; ++prompt) {
    const std::vector<float> whole = run_block(weights, 1, prompt, {kTokens});
    EXPECT_LE(largest_difference(whole, reference(tensors, prompt)), 2e-5f);
    if (!golden_folder().empty()) {
      const std::vector<float> y = read_all(*engine::read_safetensors(golden_folder() / "golden.safetensors"), "y");
      const auto first = y.begin() + static_cast<std::ptrdiff_t>(prompt * kTokens * kHidden);
      EXPECT_LE(largest_difference(whole, {first, first + kTokens * kHidden}), 2e-5f);
    }
    EXPECT_EQ(run_block(weights, 1, prompt, std::vector<std::size_t>(kTokens, 1)), whole) << "token by token";
    EXPECT_EQ(run_block(weights, 1, prompt, {4, 1, 5}), whole) << "in pieces";
    for (const int ranks : {2, 3, 8}) EXPECT_EQ(run_block(weights, ranks, prompt, {4, 1, 5}), whole) << ranks << " ranks";
  }
}

}  // namespace
}  // namespace lockstep
