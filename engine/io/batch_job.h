#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "engine/io/job_files.h"
#include "engine/io/prompt_builder.h"
#include "engine/io/request_parser.h"
#include "engine/runtime/engine.h"
#include "engine/text/tokenizer.h"

namespace lockstep::engine {

enum class OutputOrder : std::uint8_t {
  kInput,       // OUTPUT has the answers in the order of their request lines
  kCompletion,  // in the order in which they were finished: no sorting at the end
};

/// What the user asked for: the flags of `lockstep batch` that concern files.
struct BatchOptions : JobOptions {
  OutputOrder output_order = OutputOrder::kInput;
  std::optional<std::uint64_t> seed;             // of the job; absent: drawn, recorded, reported
  std::optional<std::string> served_model_name;  // if given, a request for another model is a 404
  std::optional<std::int64_t>
      start_time;  // `created` of the answers and the date that templates see, Unix seconds; absent: SOURCE_DATE_EPOCH, else now
  std::size_t max_in_flight = 512;  // choices that are submitted and not finished; about 2 x max_num_seqs keeps the engine busy
};

/// What answers the requests. Everything referred to must outlive the job.
struct BatchModel {
  Engine& engine;
  const text::Tokenizer& tokenizer;
  RenderChat render_chat;          // empty: the model has no template, and chat requests are a 400
  GenerationDefaults defaults;     // of generation_config.json
  std::string name;                // `model` of answers to requests that name none
  std::string system_fingerprint;  // of every answer, e.g. "lockstep-0.1.0-n1"
};

struct BatchProgress {
  std::uint64_t done = 0;              // lines with an answer in the journal, those of an earlier run included
  std::optional<std::uint64_t> total;  // request lines; unknown where the input is a pipe
  std::uint64_t failed = 0;            // those of `done` without status 200
  std::uint64_t resumed = 0;           // those of `done` that an earlier run had answered
  std::uint64_t prompt_tokens = 0;     // of the answers of this run
  std::uint64_t generated_tokens = 0;  // by this run: Engine's counter, so it moves before an answer is finished
  std::size_t lines_in_flight = 0;
};

struct BatchHooks {
  std::function<void(const BatchProgress&)>
      progress;                             // after each step and each refused line: thousands a second, so keep it cheap. May be empty
  const std::atomic<bool>* stop = nullptr;  // once true: nothing more is admitted, what is finished is written, and run_batch returns
};

struct BatchResult {
  std::uint64_t answered = 0;  // lines with status 200, those of an earlier run included
  std::uint64_t failed = 0;    // lines with any other answer
  std::uint64_t resumed = 0;   // lines that an earlier run had done
  bool interrupted = false;    // stopped by the hook; --resume continues. OUTPUT is not there yet
  std::uint64_t seed = 0;      // of the job
};

/// Answers every line of the input file: OUTPUT.run.json first, answers appended to OUTPUT.partial as they finish, and OUTPUT at the end,
/// whole (docs/batch-format.md). Runs on rank 0, in one thread. Memory does not grow with the input but for about 32 bytes a line.
/// @throws UsageError for what the user must change (exit 2); std::runtime_error for a job that failed (exit 1) and can be resumed: disk
/// full, a rank that is gone.
BatchResult run_batch(const BatchOptions& options, const BatchModel& model, const BatchHooks& hooks = {});

}  // namespace lockstep::engine
