#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>

#include "engine/io/usage_error.h"
#include "engine/runtime/engine.h"
#include "engine/text/tokenizer.h"

namespace lockstep::engine {

struct ScoreOptions {
  std::filesystem::path input_file;
  std::filesystem::path output_file;
  bool overwrite = false;                  // replace an output that exists
  bool add_special = true;                 // BOS in front of contexts, where the tokenizer's rules add it
  std::size_t max_in_flight = 256;         // requests that are submitted and not finished
  std::size_t max_line_bytes = 64u << 20;  // a longer line is refused without being read into memory
};

struct ScoreHooks {
  std::function<void(std::uint64_t done, std::uint64_t prompt_tokens)> progress;  // after each step: lines, tokens. May be empty
  const std::atomic<bool>* stop = nullptr;                                        // once true the job is given up
};

struct ScoreResult {
  std::uint64_t answered = 0;
  std::uint64_t failed = 0;  // lines with an error record
  bool interrupted = false;  // by the hook: there is no output
};

/// The checks of run_score that need no model. Changes nothing. @throws UsageError
void check_score_files(const ScoreOptions& options);

/// Answers every line of the input file, in order (docs/score.md). The output appears whole, by a rename, when the last line is done; until
/// then it grows as OUTPUT.partial, which another job can not use at the same time.
/// @param tokenizer  null: lines of text are refused
/// @throws UsageError for what the user must change; std::runtime_error for a job that failed.
ScoreResult run_score(const ScoreOptions& options, Engine& engine, const text::Tokenizer* tokenizer, const ScoreHooks& hooks = {});

}  // namespace lockstep::engine
