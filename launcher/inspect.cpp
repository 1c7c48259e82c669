#include "launcher/inspect.h"

#include <algorithm>

#include <fmt/format.h>

#include "device/cpu/cpu_device.h"
#include "engine/model/open_model.h"
#include "engine/session.h"
#include "launcher/session_options.h"
#include "parallel/plan.h"

namespace lockstep::launcher {
namespace {

/// The cost of each number of ranks, up to what the model allows.
std::string imbalance_table(const parallel::ModelDims& dims) {
  constexpr std::size_t kMostLines = 16;
  std::string text = fmt::format("{:>5}  {:>20}  {:>22}\n", "ranks", "imbalance of a layer", "imbalance with LM head");
  const std::size_t most = parallel::leaves_of(dims).max_ranks();
  for (std::size_t ranks = 1; ranks <= std::min(most, kMostLines); ++ranks) {
    text += fmt::format("{:>5}  {:>20.3f}  {:>22.3f}\n", ranks, parallel::imbalance(dims, ranks), parallel::weight_imbalance(dims, ranks));
  }
  return text + fmt::format("1 to {} ranks are possible\n", most);
}

std::string kv_line(const engine::ModelSpec& spec) {
  device::KvCacheSpec kv{.num_layers = spec.num_layers, .block_size = 1, .num_kv_heads = spec.num_kv_heads, .head_dim = spec.head_dim};
  const std::size_t in_32_bits = kv.bytes_per_block();
  kv.quantised = device::KvQuantisation::kInt8;
  return fmt::format("KV cache: {} bytes a token in 8 bits, {} in 16 bits, {} in 32 bits (all ranks together, each KV head once)\n",
                     kv.bytes_per_block(), in_32_bits / 2, in_32_bits);
}

}  // namespace

std::string inspect(const RunConfig& config) {
  const engine::OpenedModel model = engine::open_model(config.model);
  const parallel::Graph graph = engine::graph_of(model, weight_dtype(config));
  const auto ranks = static_cast<std::size_t>(config.tensor_parallel_size);
  parallel::check_num_ranks(graph.dims, ranks);
  std::string text = model.description + "\n";
  text += fmt::format("model hash {}\n", model.model_hash);
  text += kv_line(model.spec);
  text += fmt::format("\nimbalance is the largest share / the even share\n{}", imbalance_table(graph.dims));
  text += fmt::format("\nshares on {} rank{}\n{}", ranks, ranks == 1 ? "" : "s", parallel::describe_shards(graph.dims, ranks));
  if (config.print_graph)
    text += "\n" + parallel::print(parallel::plan(graph, static_cast<std::size_t>(config.rank), ranks, device::cpu_activation_for));
  return text;
}

}  // namespace lockstep::launcher
