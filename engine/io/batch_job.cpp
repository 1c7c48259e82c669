#include "engine/io/batch_job.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <ctime>
#include <new>
#include <random>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "engine/io/journal.h"
#include "engine/io/line_reader.h"
#include "engine/io/request_check.h"
#include "engine/io/request_json.h"
#include "engine/io/response.h"
#include "engine/io/run_record.h"
#include "engine/io/stable_hash.h"

namespace lockstep::engine {
namespace {

std::int64_t choose_start_time(const BatchOptions& options) {
  if (options.start_time) return *options.start_time;
  const char* const text = std::getenv("SOURCE_DATE_EPOCH");
  if (text == nullptr || *text == '\0') return static_cast<std::int64_t>(std::time(nullptr));
  const std::string_view digits(text);
  std::int64_t seconds = 0;
  const auto end = std::from_chars(digits.data(), digits.data() + digits.size(), seconds);
  if (end.ec != std::errc() || end.ptr != digits.data() + digits.size() || seconds < 0) {
    throw UsageError("SOURCE_DATE_EPOCH must be a number of seconds, but is \"" + std::string(digits) + "\"");
  }
  return seconds;
}

std::uint64_t draw_seed() {
  std::random_device device;
  return ((static_cast<std::uint64_t>(device()) << 32) ^ device()) >> 11;  // 53 bits, as line_seed()
}

/// generation_config's part in the answers, as a setting.
std::string defaults_text(const GenerationDefaults& defaults) {
  Json json = Json::object();
  if (defaults.temperature) json["temperature"] = *defaults.temperature;
  if (defaults.top_p) json["top_p"] = *defaults.top_p;
  if (defaults.top_k) json["top_k"] = *defaults.top_k;
  if (defaults.min_p) json["min_p"] = *defaults.min_p;
  if (defaults.repetition_penalty) json["repetition_penalty"] = *defaults.repetition_penalty;
  return json.dump();
}

std::map<std::string, std::string> all_settings(const BatchOptions& options, const BatchModel& model) {
  std::map<std::string, std::string> settings = options.settings;
  settings["context length"] = std::to_string(model.engine.limits().max_model_len);
  settings["generation_config"] = defaults_text(model.defaults);
  settings["model name"] = model.name;
  settings["served-model-name"] = options.served_model_name.value_or("");
  settings["system_fingerprint"] = model.system_fingerprint;
  return settings;
}

RunRecord new_record(const BatchOptions& options, const BatchModel& model) {
  RunRecord record = record_of_new_job(options, all_settings(options, model));
  record.seed = options.seed ? *options.seed : draw_seed();
  record.start_time = choose_start_time(options);
  record.template_time = record.start_time;
  return record;
}

RunRecord old_record(const BatchOptions& options, const BatchModel& model) {
  RunRecord record = read_run_record(record_path(options));
  if (options.seed && *options.seed != record.seed) {
    throw UsageError("--resume: seed was " + std::to_string(record.seed) + " when the job was started, and is " +
                     std::to_string(*options.seed) + " now");
  }
  check_same_job(options, record, all_settings(options, model));
  return record;
}

/// A job while it runs.
class BatchJob {
 public:
  BatchJob(const BatchOptions& options, const BatchModel& model, const BatchHooks& hooks, const RunRecord& record, Journal& journal,
           std::vector<AnswerKey> done)
      : options_(options),
        model_(model),
        hooks_(hooks),
        journal_(journal),
        done_(std::move(done)),
        max_in_flight_(std::max<std::size_t>(1, options.max_in_flight)),
        reader_(options.input_file, options.max_line_bytes),
        request_context_{model.defaults, model.engine.limits().vocab_size, options.served_model_name},
        prompt_context_{model.tokenizer, model.render_chat, record.template_time, model.engine.limits().max_model_len, record.seed},
        answer_context_{model.tokenizer, record.start_time, model.name, model.system_fingerprint},
        first_generated_(model.engine.counters().generated_tokens) {
    if (record.line_fingerprints) progress_.total = record.line_fingerprints->size();
    progress_.resumed = done_.size();
  }

  /// The engine may hold callbacks into this job.
  ~BatchJob() {
    try {
      if (!in_flight_.empty()) model_.engine.cancel_all();
    } catch (...) {  // an engine that has failed: nothing steps it any more, so nothing calls back
    }
  }
  BatchJob(const BatchJob&) = delete;
  BatchJob& operator=(const BatchJob&) = delete;

  /// False if it was stopped before all was done.
  bool run() {
    report();
    while (true) {
      if (stopped()) return input_ended_ && in_flight_.empty();
      admit();
      if (in_flight_.empty()) return input_ended_;
      step();
    }
  }

 private:
  /// A line that the engine is at.
  struct Line {
    AnswerRequest request;
    std::vector<Completion> completions;  // by prompt
    std::size_t missing = 0;              // of them
    std::size_t choices = 0;
  };

  bool stopped() const { return hooks_.stop != nullptr && hooks_.stop->load(); }

  void report() {
    if (!hooks_.progress) return;
    progress_.done = journal_.num_answered() + journal_.num_failed();
    progress_.failed = journal_.num_failed();
    progress_.generated_tokens = model_.engine.counters().generated_tokens - first_generated_;
    progress_.lines_in_flight = in_flight_.size();
    hooks_.progress(progress_);
  }

  /// Reads lines until the engine has enough to do.
  void admit() {
    InputLine line;
    while (!input_ended_ && choices_in_flight_ < max_in_flight_ && !stopped()) {
      if (!reader_.next(line)) {
        input_ended_ = true;
        if (next_done_ < done_.size()) refuse_changed_line(options_, done_[next_done_].line_number);
        return;
      }
      take(line);
    }
  }

  void take(const InputLine& input) {
    const AnswerKey key{input.number, input.fingerprint};
    if (next_done_ < done_.size() && done_[next_done_].line_number < input.number)
      refuse_changed_line(options_, done_[next_done_].line_number);
    const bool done = next_done_ < done_.size() && done_[next_done_].line_number == input.number;
    if (done && done_[next_done_++] != key) refuse_changed_line(options_, input.number);

    RequestLine line;
    if (input.too_long) {
      line.custom_id = "line-" + std::to_string(input.number);
      line.error = RequestError(400, "line_too_long", "", "the line is longer than " + std::to_string(options_.max_line_bytes) + " bytes");
    } else {
      line = parse_request_line(input.text, input.number, request_context_);
    }
    if (!used_ids_.insert(stable_hash(line.custom_id)) && !line.error) {
      line.error =
          RequestError(400, "duplicate_custom_id", "custom_id", "custom_id " + shown(line.custom_id) + " was used by an earlier line");
    }
    if (done) return;  // it was parsed for its custom_id
    answer_or_submit(key, line);
  }

  void answer_or_submit(const AnswerKey& key, RequestLine& line) {
    PreparedRequest prepared;
    const std::optional<Answer> refusal = prepare(key, line, prepared);
    if (!refusal) return submit(key, line, std::move(prepared));
    journal_.append(key, *refusal);
    report();
  }

  /// Fills `prepared`, or gives the answer that says why not: no line costs more than itself.
  std::optional<Answer> prepare(const AnswerKey& key, const RequestLine& line, PreparedRequest& prepared) const {
    try {
      if (line.error) throw *line.error;
      prepared = prepare_request(line.request, key.line_number, prompt_context_);
      for (const Request& request : prepared.requests) check_request(model_.engine, request);
      return std::nullopt;
    } catch (const RequestError& error) {
      return refused_answer(key, line.custom_id, error);
    } catch (const std::bad_alloc&) {
      throw;
    } catch (const std::exception& error) {  // a fault of ours in template or tokenizer
      return failed_answer(key, line.custom_id, "internal_error", error.what());
    }
  }

  void submit(const AnswerKey& key, RequestLine& line, PreparedRequest prepared) {
    Line entry;
    entry.request = {key,
                     line.custom_id,
                     line.request.endpoint,
                     line.request.model,
                     line.request.seed,
                     {},
                     line.request.sampling.n,
                     line.request.sampling.logprobs >= 0,
                     std::move(prepared.echoes),
                     line.request.sampling.beams.has_value()};
    for (const Request& request : prepared.requests) entry.request.seeds.push_back(request.sampling.seed);
    entry.missing = prepared.requests.size();
    entry.completions.resize(entry.missing);
    entry.choices = prepared.num_choices();
    choices_in_flight_ += entry.choices;
    in_flight_.emplace(key.line_number, std::move(entry));
    for (std::size_t i = 0; i < prepared.requests.size(); ++i) {
      Request& request = prepared.requests[i];
      request.id = next_request_id_++;
      model_.engine.submit(std::move(request),
                           [this, number = key.line_number, i](Completion&& completion) { collect(number, i, std::move(completion)); });
    }
  }

  /// Called by the engine, in the middle of its step: so the answer is only written when that is over.
  void collect(std::uint64_t line_number, std::size_t prompt, Completion&& completion) {
    Line& line = in_flight_.at(line_number);
    line.completions[prompt] = std::move(completion);
    if (--line.missing == 0) finished_.push_back(line_number);
  }

  void step() {
    bool worked = false;
    try {
      worked = model_.engine.step();
    } catch (...) {
      write_finished();
      throw;
    }
    if (!worked && finished_.empty()) {
      throw std::runtime_error("the engine has nothing to do, but owes answers to " + std::to_string(in_flight_.size()) + " lines");
    }
    write_finished();
    report();
  }

  void write_finished() {
    for (const std::uint64_t number : finished_) {
      const auto found = in_flight_.find(number);
      const Line& line = found->second;
      journal_.append(line.request.key, completed_answer(line.request, line.completions, answer_context_));
      for (const Completion& completion : line.completions) progress_.prompt_tokens += completion.prompt_tokens;
      choices_in_flight_ -= line.choices;
      in_flight_.erase(found);
    }
    finished_.clear();
  }

  const BatchOptions& options_;
  const BatchModel& model_;
  const BatchHooks& hooks_;
  Journal& journal_;
  const std::vector<AnswerKey> done_;  // of an earlier run, ascending
  const std::size_t max_in_flight_;    // choices
  std::size_t next_done_ = 0;
  LineReader reader_;
  const RequestContext request_context_;
  const PromptContext prompt_context_;
  const AnswerContext answer_context_;
  const std::uint64_t first_generated_;
  BatchProgress progress_;
  HashSet used_ids_;
  bool input_ended_ = false;
  std::unordered_map<std::uint64_t, Line> in_flight_;  // by line number
  std::size_t choices_in_flight_ = 0;
  RequestId next_request_id_ = 1;
  std::vector<std::uint64_t> finished_;  // lines whose answer is to be written
};

/// The output is there: nothing is to be done but to say what it holds.
BatchResult complete_result(const BatchOptions& options, const RunRecord& record) {
  const AnswerCounts counts = count_answers(options.output_file, read_batch_answer);
  BatchResult result;
  result.seed = record.seed;
  result.answered = counts.ok;
  result.failed = record.line_fingerprints ? record.line_fingerprints->size() - counts.ok : counts.failed;  // they may be in an error file
  result.resumed = result.answered + result.failed;
  return result;
}

}  // namespace

BatchResult run_batch(const BatchOptions& options, const BatchModel& model, const BatchHooks& hooks) {
  check_job_files(options);
  const JobStart start = find_job_start(options);
  if (start == JobStart::kComplete) return complete_result(options, old_record(options, model));

  RunRecord record = start == JobStart::kFresh ? new_record(options, model) : old_record(options, model);
  Journal journal = open_journal(options, start, record, read_batch_answer);
  std::vector<AnswerKey> done;
  if (start == JobStart::kRetry) {
    journal.import_from(options.output_file);
    std::filesystem::remove(options.output_file);
  }
  if (start != JobStart::kFresh) done = journal.recover(options.retry_errors);

  BatchResult result;
  result.resumed = done.size();
  result.seed = record.seed;
  {
    BatchJob job(options, model, hooks, record, journal, std::move(done));
    result.interrupted = !job.run();
  }
  result.answered = journal.num_answered();
  result.failed = journal.num_failed();
  if (result.interrupted) {
    journal.sync();
  } else {
    journal.finish(options.output_file, options.error_file, options.output_order == OutputOrder::kInput);
  }
  return result;
}

}  // namespace lockstep::engine
