#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string_view>
#include <vector>

#include "engine/io/file_descriptor.h"
#include "engine/io/response.h"

namespace lockstep::engine {

/// What a line of a journal says of itself.
struct JournalLine {
  AnswerKey key;
  bool ok = false;  // an answer, and no error
};
/// Reads a line without its '\n'; nothing if it is damaged. Lines are given in the order of the file.
using ReadJournalLine = std::function<std::optional<JournalLine>(std::string_view line)>;
/// An answer of a batch, whose `id` says whose it is.
std::optional<JournalLine> read_batch_answer(std::string_view line);

/// OUTPUT.partial: the answers so far, whole lines in the order in which they were finished: an output file that is not sorted and not
/// complete. Locked while it is open: a second job on it is refused. Keeps 16 bytes a line in memory.
class Journal {
 public:
  /// Opens or creates the file and takes its lock. @throws UsageError if another process has it.
  Journal(std::filesystem::path path, ReadJournalLine read);

  bool empty() const { return size_ == 0; }
  std::uint64_t num_answered() const { return num_answered_; }
  std::uint64_t num_failed() const { return num_failed_; }

  void clear();
  /// Reads what an earlier run left: whose answers are there, by ascending line. A torn or damaged line is dropped from the file, and so
  /// are the errors where `drop_failures` is set; their requests run again.
  std::vector<AnswerKey> recover(bool drop_failures);
  /// Takes over answers from another file (an output file that is complete), as recover() would.
  void import_from(const std::filesystem::path& file);

  /// Writes a line and hands it to the operating system. If that fails (disk full), the file is cut back to its last whole line before the
  /// error is thrown.
  void append(const AnswerKey& key, const Answer& answer);
  void sync() const { file_.sync(); }

  /// Makes the output: in the order of the input lines if `sorted`, else in the journal's. Failures go to `error_file`, if given. Each file
  /// appears whole, by a rename; then the journal is gone. If it fails, the journal is still there and this can be done again.
  void finish(const std::filesystem::path& output_file, const std::optional<std::filesystem::path>& error_file, bool sorted);

 private:
  struct Entry {
    std::uint32_t line_number;
    std::uint32_t length;  // with its '\n'
    std::uint64_t offset : 63;
    std::uint64_t ok : 1;
  };
  static_assert(sizeof(Entry) == 16);

  void open_and_lock();
  void keep_only(const std::vector<Entry>& entries);
  void add(const AnswerKey& key, bool ok, std::size_t length);
  FileDescriptor write_sorted(const std::filesystem::path& path, bool ok, bool failed) const;

  std::filesystem::path path_;
  ReadJournalLine read_;
  FileDescriptor file_;
  std::uint64_t size_ = 0;
  std::vector<Entry> entries_;
  std::uint64_t num_answered_ = 0;
  std::uint64_t num_failed_ = 0;
};

/// How many lines of a finished output file are answers, and how many are errors.
struct AnswerCounts {
  std::uint64_t ok = 0;
  std::uint64_t failed = 0;
};
AnswerCounts count_answers(const std::filesystem::path& path, const ReadJournalLine& read);

}  // namespace lockstep::engine
