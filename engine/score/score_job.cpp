#include "engine/score/score_job.h"

#include <filesystem>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "engine/io/line_reader.h"
#include "engine/io/request_check.h"
#include "engine/score/score_request.h"

namespace lockstep::engine {
namespace {

std::map<std::string, std::string> all_settings(const ScoreOptions& options, const Engine& engine) {
  std::map<std::string, std::string> settings = options.settings;
  settings["subcommand"] = "score";
  settings["context length"] = std::to_string(engine.limits().max_model_len);
  settings["bare-text"] = options.add_special ? "false" : "true";
  return settings;
}

RunRecord old_record(const ScoreOptions& options, const Engine& engine) {
  RunRecord record = read_run_record(record_path(options));
  check_same_job(options, record, all_settings(options, engine));
  return record;
}

class ScoreJob {
 public:
  /// @param num_done  requests that the journal has the answers of
  ScoreJob(const ScoreOptions& options, Engine& engine, const text::Tokenizer* tokenizer, const ScoreHooks& hooks, Journal& journal,
           std::size_t num_done)
      : options_(options),
        engine_(engine),
        hooks_(hooks),
        journal_(journal),
        context_{tokenizer, engine.limits().vocab_size, engine.limits().max_model_len, options.add_special},
        reader_(options.input_file, options.max_line_bytes),
        num_written_(num_done) {
    InputLine skipped;
    for (std::size_t i = 0; i < num_done && !input_ended_; ++i) input_ended_ = !reader_.next(skipped);
  }

  /// The engine may hold callbacks into this job.
  ~ScoreJob() {
    try {
      if (engine_.num_in_flight() > 0) engine_.cancel_all();
    } catch (...) {  // an engine that has failed: nothing steps it any more
    }
  }
  ScoreJob(const ScoreJob&) = delete;
  ScoreJob& operator=(const ScoreJob&) = delete;

  /// False if it was stopped before all was done.
  bool run() {
    while (true) {
      if (hooks_.stop != nullptr && hooks_.stop->load()) return false;
      admit();
      write_finished();
      if (lines_.empty()) {
        if (input_ended_) return true;
        continue;
      }
      if (!engine_.step() && lines_.begin()->second.missing > 0)
        throw std::runtime_error("the engine has nothing to do, but owes answers to " + std::to_string(lines_.size()) + " lines");
      write_finished();
      if (hooks_.progress) hooks_.progress(num_written_, engine_.counters().prompt_tokens);
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
      journal_.append({++num_written_, 0},
                      {failed ? score_error_line(line.request, *line.request.error) : score_line(line.request, line.scores), !failed});
      lines_.erase(lines_.begin());
    }
  }

  const ScoreOptions& options_;
  Engine& engine_;
  const ScoreHooks& hooks_;
  Journal& journal_;
  const ScoreContext context_;
  LineReader reader_;
  bool input_ended_ = false;
  std::map<std::uint64_t, Line> lines_;  // that are not written, by number
  std::uint64_t num_written_ = 0;
  RequestId next_request_id_ = 1;
};

}  // namespace

ReadJournalLine score_lines_reader() {
  return [number = std::uint64_t{0}, whole = true](std::string_view line) mutable -> std::optional<JournalLine> {
    const auto json = nlohmann::json::parse(line, nullptr, false);
    const bool is_error = json.is_object() && json.contains("error");
    whole = whole && json.is_object() && json.contains("id") && (is_error || json.contains("loglikelihood"));
    if (!whole) return std::nullopt;
    return JournalLine{{++number, 0}, !is_error};
  };
}

ScoreResult run_score(const ScoreOptions& options, Engine& engine, const text::Tokenizer* tokenizer, const ScoreHooks& hooks) {
  check_job_files(options);
  const JobStart start = find_job_start(options);
  const RunRecord record =
      start == JobStart::kFresh ? record_of_new_job(options, all_settings(options, engine)) : old_record(options, engine);
  ScoreResult result;
  if (start == JobStart::kComplete) {
    const AnswerCounts counts = count_answers(options.output_file, score_lines_reader());
    result.answered = counts.ok;
    result.failed = counts.failed;
    result.resumed = counts.ok + counts.failed;
    return result;
  }
  Journal journal = open_journal(options, start, record, score_lines_reader());
  if (start == JobStart::kContinue) {
    if (!record.line_fingerprints || !std::filesystem::is_regular_file(options.input_file))
      throw UsageError("--resume: " + options.input_file.string() +
                       ": requests through a pipe can not be compared with those that are answered");
    result.resumed = journal.recover(false).size();
    if (result.resumed > record.line_fingerprints->size())
      throw UsageError("--resume: " + journal_path(options).string() + ": has more answers than there are requests");
  }
  result.interrupted = !ScoreJob(options, engine, tokenizer, hooks, journal, result.resumed).run();
  result.answered = journal.num_answered();
  result.failed = journal.num_failed();
  if (result.interrupted) {
    journal.sync();
  } else {
    journal.finish(options.output_file, std::nullopt, false);
  }
  return result;
}

}  // namespace lockstep::engine
