#include "launcher/session_options.h"

#include <algorithm>
#include <fstream>
#include <stdexcept>
#include <string>

#include "engine/io/usage_error.h"

namespace lockstep::launcher {
namespace {

/// What the kernel says could be had without swapping, in bytes; 1 GiB where it does not say.
std::uint64_t available_memory() {
  std::ifstream info("/proc/meminfo");
  for (std::string key, unit; info >> key;) {
    std::uint64_t kilobytes = 0;
    info >> kilobytes;
    std::getline(info, unit);
    if (key == "MemAvailable:") return kilobytes << 10;
  }
  return std::uint64_t{1} << 30;
}

}  // namespace

std::optional<device::DType> weight_dtype(const RunConfig& config) {
  return config.dtype == "auto" ? std::nullopt : device::dtype_from_name(config.dtype);
}

device::Isa instruction_set(const RunConfig& config) {
  if (config.instruction_set.empty()) return device::supported_isas().back();
  try {
    return device::isa_from_name(config.instruction_set);
  } catch (const std::runtime_error& error) {
    throw engine::UsageError(std::string("LOCKSTEP_ISA: ") + error.what());
  }
}

engine::SessionOptions session_options(const RunConfig& config, std::size_t local_ranks, bool device_has_memory) {
  constexpr std::uint64_t kMostByDefault = std::uint64_t{4} << 30;
  engine::SessionOptions options;
  options.model = config.model;
  options.dtype = weight_dtype(config);
  if (config.activation_dtype == "float32") options.activation = device::Activation::kFloat32;
  if (config.activation_dtype == "int8") options.activation = device::Activation::kInt8Blocks;
  if (config.kv_cache_dtype == "fp8") {
    options.kv_quantised = device::KvQuantisation::kFloat8;
  } else if (config.kv_cache_dtype == "int8") {
    options.kv_quantised = device::KvQuantisation::kInt8;
  } else if (config.kv_cache_dtype != "auto") {
    options.kv_dtype = device::dtype_from_name(config.kv_cache_dtype);
  }
  options.kv_cache_bytes = config.kv_cache_memory;
  options.memory_utilization = config.gpu_memory_utilization;
  if (!options.kv_cache_bytes && !device_has_memory)
    options.kv_cache_bytes = std::min(kMostByDefault, available_memory() / 4) / local_ranks;
  options.block_size = static_cast<std::size_t>(config.block_size);
  if (config.max_model_len > 0) options.max_model_len = static_cast<std::size_t>(config.max_model_len);
  options.max_num_seqs = static_cast<std::size_t>(config.max_num_seqs);
  options.max_num_batched_tokens = static_cast<std::size_t>(config.max_num_batched_tokens);
  options.prefill_chunk = static_cast<std::size_t>(config.max_prefill_chunk);
  options.prefix_caching = config.enable_prefix_caching && config.subcommand != Subcommand::kBench;
  options.for_scoring = config.subcommand == Subcommand::kScore || config.subcommand == Subcommand::kQuantize;
  options.preempt_every = static_cast<std::size_t>(config.debug_preempt_every);
  options.one_leaf = config.debug_one_leaf;
  return options;
}

}  // namespace lockstep::launcher
