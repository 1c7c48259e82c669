#pragma once

#include <cstdint>
#include <filesystem>

#include "engine/io/batch_job.h"

namespace lockstep::engine {

std::filesystem::path journal_path(const BatchOptions& options);  // OUTPUT.partial
std::filesystem::path record_path(const BatchOptions& options);   // OUTPUT.run.json

/// What run_batch has to do, by what is there.
enum class JobStart : std::uint8_t {
  kFresh,     // nothing is kept
  kContinue,  // the record holds; go on behind what the journal has
  kRetry,     // the output is complete; its failures are done again
  kComplete,  // the output is complete, and that is all that was asked for
};

/// Checks that the paths of a job do not collide and name ordinary files. @throws UsageError
void check_paths(const BatchOptions& options);
/// @throws UsageError if what is there must not be touched without a flag, or can not be resumed.
JobStart find_job_start(const BatchOptions& options);

}  // namespace lockstep::engine
