#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "engine/score/perplexity.h"
#include "engine/text/tokenizer.h"
#include "launcher/run_config.h"

namespace lockstep::launcher {

/// What stands in the file of --perplexity. @throws UsageError if it can not be opened, std::runtime_error if it can not be read.
std::string read_perplexity_text(const RunConfig& config);

/// Its tokens, BOS in front as the tokenizer's rules and --bare-text say. @throws UsageError if there are fewer than two.
std::vector<engine::TokenId> perplexity_tokens(const RunConfig& config, const text::Tokenizer& tokenizer, std::string_view text);

/// --window and --stride. @throws UsageError for a window that the engine has no room for.
engine::PerplexityOptions perplexity_options(const RunConfig& config, const engine::Engine& engine);

/// "1562 of 1563 tokens scored in 1 window of 2048, stride 1024"
std::string describe_windows(const engine::Perplexity& result);

}  // namespace lockstep::launcher
