#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace lockstep::engine {

/// OUTPUT.run.json: what a job was started with, so that it can be repeated, and resumed only as it was started. Written before the first
/// answer.
struct RunRecord {
  std::uint64_t seed = 0;
  std::int64_t start_time = 0;     // `created` of every answer, Unix seconds
  std::int64_t template_time = 0;  // the date that templates see
  std::string model_hash;
  std::uint64_t numerics_version = 0;
  std::map<std::string, std::string> settings;
  std::string input_file;                                       // as it was named; for the reader only
  std::optional<std::vector<std::uint32_t>> line_fingerprints;  // by request line; absent where the input could not be read twice
};

/// The fingerprint of a request line at its place.
std::uint32_t line_fingerprint(std::uint64_t line_number, std::uint64_t text_fingerprint);

void write_run_record(const std::filesystem::path& path, const RunRecord& record);
/// @throws UsageError that says what is wrong with the file.
RunRecord read_run_record(const std::filesystem::path& path);

/// @throws UsageError that names the setting that differs and both values. With `partly`, settings that `settings` does not mention and an
/// empty model hash are passed over.
void check_same_settings(const RunRecord& record, const std::string& model_hash, std::uint64_t numerics_version,
                         const std::map<std::string, std::string>& settings, bool partly);

}  // namespace lockstep::engine
