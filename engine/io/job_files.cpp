#include "engine/io/job_files.h"

#include <array>
#include <system_error>
#include <utility>
#include <vector>

#include "engine/io/file_descriptor.h"
#include "engine/io/line_reader.h"

namespace lockstep::engine {
namespace {

namespace fs = std::filesystem;

bool same_file(const fs::path& a, const fs::path& b) {
  std::error_code ignored;
  if (fs::equivalent(a, b, ignored)) return true;
  const fs::path full_a = fs::weakly_canonical(fs::absolute(a), ignored);
  const fs::path full_b = fs::weakly_canonical(fs::absolute(b), ignored);
  return full_a == full_b;
}

void check_output_path(const char* what, const fs::path& path) {
  if (path.empty() || !path.has_filename())
    throw UsageError(std::string("the ") + what + " needs a file name, but is \"" + path.string() + "\"");
  std::error_code ignored;
  const fs::file_status status = fs::status(path, ignored);
  if (fs::exists(status) && !fs::is_regular_file(status)) {
    throw UsageError(path.string() + ": the " + what + " must be an ordinary file, because it is put in place by a rename");
  }
  const fs::path folder = path.has_parent_path() ? path.parent_path() : fs::path(".");
  if (!fs::is_directory(folder, ignored)) throw UsageError(path.string() + ": the folder of the " + what + " does not exist");
}

bool there(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

bool has_content(const fs::path& path) {
  std::error_code failed;
  const std::uintmax_t size = fs::file_size(path, failed);
  return !failed && size > 0;
}

/// That the paths of a job do not collide and name ordinary files.
void check_paths(const JobOptions& options) {
  if (options.overwrite && (options.resume || options.retry_errors)) {
    throw UsageError("--overwrite can not be given together with --resume or --retry-errors");
  }
  check_output_path("output file", options.output_file);
  if (options.error_file) check_output_path("error file", *options.error_file);

  std::vector<std::pair<const char*, fs::path>> files = {{"input file", options.input_file},
                                                         {"output file", options.output_file},
                                                         {"journal", journal_path(options)},
                                                         {"job record", record_path(options)}};
  if (options.error_file) files.emplace_back("error file", *options.error_file);
  for (std::size_t i = files.size(); i-- > 1;) files.emplace_back("temporary file", with_suffix(files[i].second, ".tmp"));
  for (std::size_t i = 0; i < files.size(); ++i) {
    for (std::size_t j = i + 1; j < files.size(); ++j) {
      if (same_file(files[i].second, files[j].second)) {
        throw UsageError(files[j].second.string() + ": the " + files[j].first + " is the same file as the " + files[i].first);
      }
    }
  }
}

/// A pipe must not even be opened twice.
bool can_be_read_twice(const JobOptions& options) { return fs::is_regular_file(options.input_file); }

}  // namespace

fs::path journal_path(const JobOptions& options) { return with_suffix(options.output_file, ".partial"); }
fs::path record_path(const JobOptions& options) { return with_suffix(options.output_file, ".run.json"); }

JobStart find_job_start(const JobOptions& options) {
  const std::string output = options.output_file.string();
  const std::string journal = journal_path(options).string();
  const bool has_output = there(options.output_file);
  const bool has_journal = has_content(journal);
  const bool has_record = there(record_path(options));
  if (options.overwrite) return JobStart::kFresh;
  if (!options.resume && !options.retry_errors) {
    if (has_output) throw UsageError(output + ": exists already: --overwrite replaces it");
    if (options.error_file && there(*options.error_file))
      throw UsageError(options.error_file->string() + ": exists already: --overwrite replaces it");
    if (has_journal) throw UsageError(journal + ": an earlier job left answers: --resume goes on with it, --overwrite starts anew");
    return JobStart::kFresh;
  }
  if (!has_record) {
    if (!has_output && !has_journal) return JobStart::kFresh;
    throw UsageError("--resume: " + record_path(options).string() + " is missing, without which " + (has_journal ? journal : output) +
                     " can not be continued; --overwrite starts anew");
  }
  if (has_journal || !has_output) return JobStart::kContinue;
  return options.retry_errors ? JobStart::kRetry : JobStart::kComplete;
}

void check_job_files(const JobOptions& options) {
  check_paths(options);
  std::error_code ignored;
  const fs::file_status input = fs::status(options.input_file, ignored);
  if (!fs::exists(input)) throw UsageError(options.input_file.string() + ": the input file does not exist");
  if (fs::is_directory(input)) throw UsageError(options.input_file.string() + ": the input file is a directory");
  if (find_job_start(options) == JobStart::kFresh) return;
  const RunRecord record = read_run_record(record_path(options));
  check_same_settings(record, options.model_hash, options.numerics_version, options.settings, true);
}

Journal open_journal(const JobOptions& options, JobStart start, const RunRecord& record, ReadJournalLine read) {
  Journal journal(journal_path(options), std::move(read));
  if (find_job_start(options) != start) throw UsageError(options.output_file.string() + ": another job has just changed this output");
  if (start != JobStart::kFresh) return journal;
  journal.clear();  // in an order in which a crash leaves nothing that looks like another job's
  fs::remove(record_path(options));
  fs::remove(options.output_file);
  if (options.error_file) fs::remove(*options.error_file);
  write_run_record(record_path(options), record);
  return journal;
}

std::optional<std::vector<std::uint32_t>> read_fingerprints(const JobOptions& options) {
  if (!can_be_read_twice(options)) return std::nullopt;
  LineReader reader(options.input_file, options.max_line_bytes);
  std::vector<std::uint32_t> fingerprints;
  for (InputLine line; reader.next(line);) fingerprints.push_back(line_fingerprint(line.number, line.fingerprint));
  return fingerprints;
}

void refuse_changed_line(const JobOptions& options, std::uint64_t number) {
  throw UsageError("--resume: " + options.input_file.string() + ": line " + std::to_string(number) +
                   " is not what it was when the job was started");
}

RunRecord record_of_new_job(const JobOptions& options, std::map<std::string, std::string> settings) {
  RunRecord record;
  record.model_hash = options.model_hash;
  record.numerics_version = options.numerics_version;
  record.settings = std::move(settings);
  record.input_file = options.input_file.string();
  record.line_fingerprints = read_fingerprints(options);
  return record;
}

void check_same_job(const JobOptions& options, const RunRecord& record, const std::map<std::string, std::string>& settings) {
  check_same_settings(record, options.model_hash, options.numerics_version, settings, false);
  check_same_input(options, record);
}

void check_same_input(const JobOptions& options, const RunRecord& record) {
  if (!record.line_fingerprints || !can_be_read_twice(options)) return;
  LineReader reader(options.input_file, options.max_line_bytes);
  const std::vector<std::uint32_t>& expected = *record.line_fingerprints;
  std::size_t count = 0;
  for (InputLine line; reader.next(line); ++count) {
    if (count == expected.size()) {
      throw UsageError("--resume: " + options.input_file.string() + ": line " + std::to_string(line.number) +
                       " was added since the job was started");
    }
    if (line_fingerprint(line.number, line.fingerprint) != expected[count]) refuse_changed_line(options, line.number);
  }
  if (count < expected.size()) {
    throw UsageError("--resume: " + options.input_file.string() + ": has " + std::to_string(count) + " requests, but had " +
                     std::to_string(expected.size()) + " when the job was started");
  }
}

}  // namespace lockstep::engine
