#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "engine/io/journal.h"
#include "engine/io/run_record.h"
#include "engine/io/usage_error.h"

namespace lockstep::engine {

/// What is asked of a job that answers a file line by line and can be resumed.
struct JobOptions {
  std::filesystem::path input_file;
  std::filesystem::path output_file;
  std::optional<std::filesystem::path> error_file;  // answers that are errors go here instead of output_file
  bool resume = false;                              // go on from OUTPUT.partial and OUTPUT.run.json; a fresh start where there is neither
  bool retry_errors = false;                        // resume, and do the lines that were refused or failed again
  bool overwrite = false;                           // throw away what an earlier job left
  std::size_t max_line_bytes = 64u << 20;           // a longer request line is refused without being read into memory
  /// Everything that may change an answer's bits and is not in the request: {"dtype": "float32", "kv-cache-dtype": "auto", ...}, named as
  /// the flags are. Recorded; a resumed job in which one differs is refused by that name. Ranks, threads and batch sizes do not belong
  /// here: they change nothing.
  std::map<std::string, std::string> settings;
  std::string model_hash;              // identifies the weights, tokenizer and template; recorded and compared like a setting
  std::uint64_t numerics_version = 0;  // likewise
};

std::filesystem::path journal_path(const JobOptions& options);  // OUTPUT.partial
std::filesystem::path record_path(const JobOptions& options);   // OUTPUT.run.json

/// What a job has to do, by what is there.
enum class JobStart : std::uint8_t {
  kFresh,     // nothing is kept
  kContinue,  // the record holds; go on behind what the journal has
  kRetry,     // the output is complete; its failures are done again
  kComplete,  // the output is complete, and that is all that was asked for
};

/// @throws UsageError if what is there must not be touched without a flag, or can not be resumed.
JobStart find_job_start(const JobOptions& options);

/// The checks of a job that need no model, so that a mistake shows before weights are read: paths that collide, an output that exists, a
/// job that runs already, a record that does not fit the options. Changes nothing. @throws UsageError, or std::runtime_error where a file
/// can not be read.
void check_job_files(const JobOptions& options);

/// Takes the journal; for a fresh start what an earlier job left is thrown away, and the record written.
/// @throws UsageError if another job is at this output, or has just been.
Journal open_journal(const JobOptions& options, JobStart start, const RunRecord& record, ReadJournalLine read);

/// The fingerprints of all request lines; absent where the input can not be read twice.
std::optional<std::vector<std::uint32_t>> read_fingerprints(const JobOptions& options);

/// The record of a job that starts now. @param settings  all that may change an answer's bits: options.settings and the subcommand's own
RunRecord record_of_new_job(const JobOptions& options, std::map<std::string, std::string> settings);
/// That a job may go on from `record`: same model, settings and input. @throws UsageError that names the first difference.
void check_same_job(const JobOptions& options, const RunRecord& record, const std::map<std::string, std::string>& settings);

/// Compares the input with what the job was started with, as far as it can be read twice.
/// @throws UsageError that names the first line that differs.
void check_same_input(const JobOptions& options, const RunRecord& record);
[[noreturn]] void refuse_changed_line(const JobOptions& options, std::uint64_t number);

}  // namespace lockstep::engine
