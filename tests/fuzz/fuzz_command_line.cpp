// A command line, one argument a line: a configuration, help, or one UsageError.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/cli.h"

using namespace lockstep::launcher;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::string_view text(reinterpret_cast<const char*>(data), size);
  if (text.find("conf") != std::string_view::npos) return 0;  // --config reads any file of this machine: fuzz_toml_config has its content
  std::vector<std::string> arguments;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    arguments.emplace_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  try {
    const CommandLine command = parse_command_line(arguments, [](const char*) -> const char* { return nullptr; });
    if (command.help || command.version) return 0;
    const RunConfig& config = command.config;
    if (config.tensor_parallel_size < 1 || config.max_num_seqs < 1 || config.n < 1 || config.block_size % 16 != 0) std::abort();
  } catch (const UsageError& error) {
    if (std::string_view(error.what()).empty()) std::abort();
  }
  return 0;
}
