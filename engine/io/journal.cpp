#include "engine/io/journal.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <stdexcept>
#include <string>
#include <utility>

#include <fcntl.h>
#include <unistd.h>

#include "engine/io/stable_hash.h"
#include "engine/io/usage_error.h"

namespace lockstep::engine {
namespace {

constexpr std::size_t kBufferBytes = 1 << 20;

/// Calls visit(offset, line without '\n', whether it had one) for each line, in memory for the longest one.
void for_each_line(const FileDescriptor& file, const std::function<void(std::uint64_t, std::string_view, bool)>& visit) {
  const std::uint64_t size = file.size();
  std::string buffer;
  std::uint64_t offset = 0;  // of the buffer's first byte
  std::size_t scanned = 0;
  for (std::uint64_t read = 0; read < size || !buffer.empty();) {
    const std::size_t count = static_cast<std::size_t>(std::min<std::uint64_t>(kBufferBytes, size - read));
    buffer.resize(buffer.size() + count);
    file.read_at(read, buffer.data() + buffer.size() - count, count);
    read += count;
    std::size_t begin = 0;
    for (std::size_t end = buffer.find('\n', scanned); end != std::string::npos; end = buffer.find('\n', begin)) {
      visit(offset + begin, std::string_view(buffer).substr(begin, end - begin), true);
      begin = end + 1;
    }
    if (read == size && begin < buffer.size()) {
      visit(offset + begin, std::string_view(buffer).substr(begin), false);
      begin = buffer.size();
    }
    buffer.erase(0, begin);
    offset += begin;
    scanned = buffer.size();
  }
}

/// Collects writes into larger ones.
class BufferedWriter {
 public:
  explicit BufferedWriter(const FileDescriptor& file) : file_(file) {}
  char* append(std::size_t count) {
    if (buffer_.size() + count > kBufferBytes) flush();
    buffer_.resize(buffer_.size() + count);
    return buffer_.data() + buffer_.size() - count;
  }
  void flush() {
    file_.write_at(offset_, buffer_);
    offset_ += buffer_.size();
    buffer_.clear();
  }

 private:
  const FileDescriptor& file_;
  std::string buffer_;
  std::uint64_t offset_ = 0;
};

}  // namespace

std::optional<JournalLine> read_batch_answer(std::string_view line) {
  const std::optional<AnswerKey> key = answer_key(line);
  const std::optional<bool> ok = key ? answer_status(line) : std::nullopt;
  if (!ok) return std::nullopt;
  return JournalLine{*key, *ok};
}

Journal::Journal(std::filesystem::path path, ReadJournalLine read) : path_(std::move(path)), read_(std::move(read)) {
  open_and_lock();
  size_ = file_.size();
}

void Journal::open_and_lock() {
  do {  // again if a job finished in between, and what we locked is not the file of that name any more
    file_ = FileDescriptor(path_, O_RDWR | O_CREAT);
    if (!file_.try_lock()) throw UsageError(path_.string() + ": another job is writing this output");
  } while (!file_.still_named());
}

void Journal::clear() {
  file_.truncate(0);
  size_ = 0;
  entries_.clear();
  num_answered_ = num_failed_ = 0;
}

void Journal::add(const AnswerKey& key, bool ok, std::size_t length) {
  if (key.line_number > std::numeric_limits<std::uint32_t>::max() || length > std::numeric_limits<std::uint32_t>::max()) {
    throw std::runtime_error(path_.string() + ": line " + std::to_string(key.line_number) + " with an answer of " + std::to_string(length) +
                             " bytes is beyond what a journal holds");
  }
  entries_.push_back({static_cast<std::uint32_t>(key.line_number), static_cast<std::uint32_t>(length), size_, ok});
  size_ += length;
  ++(ok ? num_answered_ : num_failed_);
}

std::vector<AnswerKey> Journal::recover(bool drop_failures) {
  std::vector<AnswerKey> keys;
  HashSet seen;
  std::vector<Entry> good;
  std::uint64_t good_end = 0;
  bool gaps = false;
  for_each_line(file_, [&](std::uint64_t offset, std::string_view line, bool whole) {
    const std::optional<JournalLine> read = whole ? read_(line) : std::nullopt;
    const std::size_t length = line.size() + 1;
    if (!read || length > std::numeric_limits<std::uint32_t>::max() || read->key.line_number > std::numeric_limits<std::uint32_t>::max())
      return;
    if ((drop_failures && !read->ok) || !seen.insert(mix_bits(read->key.line_number))) return;
    gaps = gaps || offset != good_end;
    good_end = offset + length;
    good.push_back({static_cast<std::uint32_t>(read->key.line_number), static_cast<std::uint32_t>(length), offset, read->ok});
    keys.push_back(read->key);
  });
  if (gaps) {
    keep_only(good);
  } else if (good_end != file_.size()) {
    file_.truncate(good_end);
  }
  size_ = 0;
  entries_.clear();
  num_answered_ = num_failed_ = 0;
  for (std::size_t i = 0; i < good.size(); ++i) add(keys[i], good[i].ok, good[i].length);
  std::sort(keys.begin(), keys.end(), [](const AnswerKey& a, const AnswerKey& b) { return a.line_number < b.line_number; });
  return keys;
}

/// Replaces the file by one of these lines alone.
void Journal::keep_only(const std::vector<Entry>& entries) {
  FileDescriptor kept(with_suffix(path_, ".tmp"), O_RDWR | O_CREAT | O_TRUNC);
  if (!kept.try_lock()) throw UsageError(kept.path().string() + ": another job is writing this output");
  BufferedWriter writer(kept);
  for (const Entry& entry : entries) file_.read_at(entry.offset, writer.append(entry.length), entry.length);
  writer.flush();
  kept.sync();
  kept.rename_to(path_);
  file_ = std::move(kept);
  sync_folder_of(path_);
}

void Journal::import_from(const std::filesystem::path& source) {
  const FileDescriptor file(source, O_RDONLY);
  for_each_line(file, [&](std::uint64_t, std::string_view line, bool whole) {
    const std::optional<JournalLine> read = whole ? read_(line) : std::nullopt;
    if (!read) throw UsageError(source.string() + ": holds a line that is no answer of this program, so the job can not be taken up again");
    append(read->key, {std::string(line), read->ok});
  });
  file_.sync();
}

void Journal::append(const AnswerKey& key, const Answer& answer) {
  try {
    file_.write_at(size_, answer.line + '\n');
    add(key, answer.ok, answer.line.size() + 1);
  } catch (const std::runtime_error& error) {
    try {
      file_.truncate(size_);
    } catch (const std::runtime_error&) {  // then recover() drops the torn line
    }
    throw std::runtime_error(std::string(error.what()) + " (the answers before are safe; --resume goes on from there)");
  }
}

/// Writes the answers with status 200, the others, or both, to a new file beside `path`.
FileDescriptor Journal::write_sorted(const std::filesystem::path& path, bool ok, bool failed) const {
  FileDescriptor file(with_suffix(path, ".tmp"), O_WRONLY | O_CREAT | O_TRUNC);
  try {
    BufferedWriter writer(file);
    for (const Entry& entry : entries_) {
      if (entry.ok ? ok : failed) file_.read_at(entry.offset, writer.append(entry.length), entry.length);
    }
    writer.flush();
    file.sync();
  } catch (...) {
    ::unlink(file.path().c_str());
    throw;
  }
  return file;
}

void Journal::finish(const std::filesystem::path& output_file, const std::optional<std::filesystem::path>& error_file, bool sorted) {
  if (!sorted && !error_file) {
    file_.sync();
    file_.rename_to(output_file);
    sync_folder_of(output_file);
    return;
  }
  if (sorted) std::sort(entries_.begin(), entries_.end(), [](const Entry& a, const Entry& b) { return a.line_number < b.line_number; });
  FileDescriptor output = write_sorted(output_file, true, !error_file);
  if (error_file) {
    write_sorted(*error_file, false, true).rename_to(*error_file);
    sync_folder_of(*error_file);
  }
  output.rename_to(output_file);
  ::unlink(path_.c_str());
  sync_folder_of(output_file);
}

AnswerCounts count_answers(const std::filesystem::path& path, const ReadJournalLine& read) {
  AnswerCounts counts;
  for_each_line(FileDescriptor(path, O_RDONLY), [&](std::uint64_t, std::string_view line, bool whole) {
    const std::optional<JournalLine> found = whole ? read(line) : std::nullopt;
    if (!found) throw UsageError(path.string() + ": holds a line that is no answer of this program");
    ++(found->ok ? counts.ok : counts.failed);
  });
  return counts;
}

}  // namespace lockstep::engine
