// A configuration file: whatever it says, a configuration within the limits of its options, or one UsageError that is a single printable
// line.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>
#include <vector>

#include "launcher/config_file.h"

using namespace lockstep::launcher;

namespace {

void require(bool condition) {
  if (!condition) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const std::vector<Option> options = all_options();
  RunConfig config;
  try {
    apply_config_text(std::string_view(reinterpret_cast<const char*>(data), size), "fuzz", options, config);
    require(config.tensor_parallel_size >= 1 && config.max_num_seqs >= 1 && config.max_num_batched_tokens >= 1 && config.n >= 1);
    require(config.block_size >= 16 && config.max_model_len >= 0 && config.threads >= 0 && config.collective_timeout >= 0.1);
    require(!config.kv_cache_memory || *config.kv_cache_memory > 0);
  } catch (const UsageError& error) {
    const std::string_view message = error.what();
    require(message.starts_with("fuzz:"));
    for (const char c : message) require(static_cast<unsigned char>(c) >= 0x20 && c != 0x7f);
  }
  return 0;
}
