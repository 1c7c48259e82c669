#include "launcher/perplexity.h"

#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>

#include <fmt/format.h>

#include "engine/io/usage_error.h"
#include "engine/score/token_pair.h"

namespace lockstep::launcher {

using engine::UsageError;

std::string read_perplexity_text(const RunConfig& config) {
  const std::string& path = config.perplexity_file;
  std::ifstream file(path, std::ios::binary);
  if (!file || std::filesystem::is_directory(path)) throw UsageError(fmt::format("--perplexity {}: the file can not be opened", path));
  std::string text{std::istreambuf_iterator<char>(file), {}};
  if (file.bad()) throw std::runtime_error(fmt::format("{}: the file can not be read", path));
  return text;
}

std::vector<engine::TokenId> perplexity_tokens(const RunConfig& config, const text::Tokenizer& tokenizer, std::string_view text) {
  std::vector<engine::TokenId> tokens = engine::encode_open(tokenizer, text, !config.bare_text);
  if (tokens.size() < 2) throw UsageError(fmt::format("--perplexity {}: the text has {} tokens", config.perplexity_file, tokens.size()));
  return tokens;
}

engine::PerplexityOptions perplexity_options(const RunConfig& config, const engine::Engine& engine) {
  const std::size_t most = engine.limits().max_model_len;
  if (static_cast<std::size_t>(config.window) > most)
    throw UsageError(fmt::format("--window {}: the context has room for {} tokens", config.window, most));
  engine::PerplexityOptions options;
  options.window = static_cast<std::size_t>(config.window);
  options.stride = static_cast<std::size_t>(config.stride);
  return options;
}

std::string describe_windows(const engine::Perplexity& result) {
  return fmt::format("{} of {} tokens scored in {} window{} of {}, stride {}", result.num_scored, result.num_tokens, result.num_windows,
                     result.num_windows == 1 ? "" : "s", result.window, result.stride);
}

}  // namespace lockstep::launcher
