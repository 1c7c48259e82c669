#include "engine/score/score_job.h"

#include <algorithm>
#include <map>
#include <stdexcept>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include <fcntl.h>

#include "engine/io/file_descriptor.h"
#include "engine/io/line_reader.h"
#include "engine/io/request_check.h"
#include "engine/score/score_request.h"

namespace lockstep::engine {
namespace {

namespace fs = std::filesystem;

fs::path partial_path(const ScoreOptions& options) { return with_suffix(options.output_file, ".partial"); }

bool same_file(const fs::path& a, const fs::path& b) {
  std::error_code ignored;
  return fs::equivalent(a, b, ignored) || fs::weakly_canonical(fs::absolute(a), ignored) == fs::weakly_canonical(fs::absolute(b), ignored);
}

/// OUTPUT while it is written.
class PartialFile {
 public:
  explicit PartialFile(const ScoreOptions& options) : output_(options.output_file), file_(partial_path(options), O_RDWR | O_CREAT) {
    if (!file_.try_lock() || !file_.still_named()) throw UsageError(file_.path().string() + ": another job is writing it");
    file_.truncate(0);
  }
  void append(std::string line) {
    line += '\n';
    file_.write_at(size_, line);
    size_ += line.size();
  }
  void finish() {
    file_.sync();
    file_.rename_to(output_);
    sync_folder_of(output_);
  }
  void remove() { fs::remove(file_.path()); }

 private:
  fs::path output_;
  FileDescriptor file_;
  std::uint64_t size_ = 0;
};

class ScoreJob {
 public:
  ScoreJob(const ScoreOptions& options, Engine& engine, const text::Tokenizer* tokenizer, const ScoreHooks& hooks, PartialFile& output)
      : options_(options),
        engine_(engine),
        hooks_(hooks),
        output_(output),
        context_{tokenizer, engine.limits().vocab_size, engine.limits().max_model_len, options.add_special},
        reader_(options.input_file, options.max_line_bytes) {}

  /// The engine may hold callbacks into this job.
  ~ScoreJob() {
    try {
      if (engine_.num_in_flight() > 0) engine_.cancel_all();
    } catch (...) {  // an engine that has failed: nothing steps it any more
    }
  }
  ScoreJob(const ScoreJob&) = delete;
  ScoreJob& operator=(const ScoreJob&) = delete;

  ScoreResult run() {
    while (true) {
      if (hooks_.stop != nullptr && hooks_.stop->load()) {
        result_.interrupted = true;
        return result_;
      }
      admit();
      write_finished();
      if (lines_.empty()) {
        if (input_ended_) return result_;
        continue;
      }
      if (!engine_.step() && lines_.begin()->second.missing > 0)
        throw std::runtime_error("the engine has nothing to do, but owes answers to " + std::to_string(lines_.size()) + " lines");
      write_finished();
      if (hooks_.progress) hooks_.progress(result_.answered + result_.failed, engine_.counters().prompt_tokens);
    }
  }

 private:
  struct Line {
    ScoreRequest request;
    std::vector<std::vector<TokenLogprob>> scores;  // [windows]
    std::size_t missing = 0;                        // of them
  };

  /// Reads lines until the engine has enough to do. Lines that wait for an earlier one count as well, so that memory is bounded.
  void admit() {
    InputLine input;
    while (!input_ended_ && engine_.num_in_flight() < options_.max_in_flight && lines_.size() < 4 * options_.max_in_flight) {
      if (!reader_.next(input)) {
        input_ended_ = true;
        return;
      }
      Line& line = lines_[input.number];
      if (input.too_long) {
        line.request.id = "line-" + std::to_string(input.number);
        line.request.error =
            RequestError(400, "line_too_long", "", "the line is longer than " + std::to_string(options_.max_line_bytes) + " bytes");
      } else {
        line.request = parse_score_line(input.text, input.number, context_);
      }
      if (!line.request.error) submit(input.number, line);
    }
  }

  /// Nothing of a line runs if the engine refuses a part of it.
  void submit(std::uint64_t number, Line& line) {
    std::vector<Request> requests;
    for (const ScoreWindow& window : line.request.windows) requests.push_back(window_request(line.request.tokens, window));
    try {
      for (const Request& request : requests) check_request(engine_, request);
    } catch (const RequestError& error) {
      line.request.error = error;
      return;
    }
    line.scores.resize(requests.size());
    line.missing = requests.size();
    for (std::size_t i = 0; i < requests.size(); ++i) {
      requests[i].id = next_request_id_++;
      engine_.submit(std::move(requests[i]), [this, number, i](Completion&& completion) { collect(number, i, std::move(completion)); });
    }
  }

  void collect(std::uint64_t number, std::size_t window, Completion&& completion) {
    Line& line = lines_.at(number);
    line.scores[window] = std::move(completion.prompt_logprobs);
    --line.missing;
    if (completion.choices[0].finish_reason == FinishReason::kError)
      line.request.error = RequestError(500, "scoring_failed", "", completion.choices[0].error);
  }

  void write_finished() {
    while (!lines_.empty() && lines_.begin()->second.missing == 0) {
      const Line& line = lines_.begin()->second;
      const bool failed = line.request.error.has_value();
      output_.append(failed ? score_error_line(line.request, *line.request.error) : score_line(line.request, line.scores));
      ++(failed ? result_.failed : result_.answered);
      lines_.erase(lines_.begin());
    }
  }

  const ScoreOptions& options_;
  Engine& engine_;
  const ScoreHooks& hooks_;
  PartialFile& output_;
  const ScoreContext context_;
  LineReader reader_;
  bool input_ended_ = false;
  std::map<std::uint64_t, Line> lines_;  // that are not written, by number
  RequestId next_request_id_ = 1;
  ScoreResult result_;
};

}  // namespace

void check_score_files(const ScoreOptions& options) {
  std::error_code ignored;
  const std::string output = options.output_file.string();
  if (output.empty() || !options.output_file.has_filename())
    throw UsageError("the output file needs a file name, but is \"" + output + "\"");
  const fs::file_status input = fs::status(options.input_file, ignored);
  if (!fs::exists(input)) throw UsageError(options.input_file.string() + ": the input file does not exist");
  if (fs::is_directory(input)) throw UsageError(options.input_file.string() + ": the input file is a directory");
  const fs::file_status there = fs::status(options.output_file, ignored);
  if (fs::exists(there) && !fs::is_regular_file(there))
    throw UsageError(output + ": the output file must be an ordinary file, because it is put in place by a rename");
  const fs::path folder = options.output_file.has_parent_path() ? options.output_file.parent_path() : fs::path(".");
  if (!fs::is_directory(folder, ignored)) throw UsageError(output + ": the folder of the output file does not exist");
  for (const fs::path& path : {options.output_file, partial_path(options)}) {
    if (same_file(options.input_file, path)) throw UsageError(path.string() + ": the job would overwrite its input file");
  }
  if (fs::exists(there) && !options.overwrite) throw UsageError(output + ": exists already: --overwrite replaces it");
}

ScoreResult run_score(const ScoreOptions& options, Engine& engine, const text::Tokenizer* tokenizer, const ScoreHooks& hooks) {
  check_score_files(options);
  PartialFile output(options);
  ScoreResult result;
  try {
    result = ScoreJob(options, engine, tokenizer, hooks, output).run();
  } catch (...) {
    output.remove();
    throw;
  }
  if (result.interrupted) {
    output.remove();
  } else {
    output.finish();
  }
  return result;
}

}  // namespace lockstep::engine
