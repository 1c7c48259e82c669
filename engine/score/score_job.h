#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>

#include "engine/io/job_files.h"
#include "engine/runtime/engine.h"
#include "engine/text/tokenizer.h"

namespace lockstep::engine {

/// Without error_file and retry_errors: the output has a line for each request.
struct ScoreOptions : JobOptions {
  bool add_special = true;          // BOS in front of contexts, where the tokenizer's rules add it
  std::size_t max_in_flight = 256;  // requests that are submitted and not finished
};

struct ScoreHooks {
  std::function<void(std::uint64_t done, std::uint64_t prompt_tokens)> progress;  // after each step: lines, tokens. May be empty
  const std::atomic<bool>* stop = nullptr;                                        // once true: what is written stays, and run_score returns
};

struct ScoreResult {
  std::uint64_t answered = 0;
  std::uint64_t failed = 0;   // lines with an error record
  std::uint64_t resumed = 0;  // of both, those of an earlier run
  bool interrupted = false;   // by the hook: --resume continues. The output is not there yet
};

/// Reads the lines of an output: objects with an answer or an error. They stand in the order of the requests, so the n-th belongs to the
/// n-th, and behind a damaged one nothing counts.
ReadJournalLine score_lines_reader();

/// Answers every line of the input file, in order (docs/score.md). The output appears whole, by a rename, when the last line is done; until
/// then it grows as OUTPUT.partial, beside OUTPUT.run.json, and can be resumed.
/// @param tokenizer  null: lines of text are refused
/// @throws UsageError for what the user must change; std::runtime_error for a job that failed and can be resumed.
ScoreResult run_score(const ScoreOptions& options, Engine& engine, const text::Tokenizer* tokenizer, const ScoreHooks& hooks = {});

}  // namespace lockstep::engine
