#include "engine/io/line_reader.h"

#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <utility>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

namespace lockstep::engine {
namespace {

constexpr std::size_t kReadBytes = 256 << 10;
constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";

[[noreturn]] void fail(const std::filesystem::path& path, const char* what) {
  throw std::runtime_error(path.string() + ": " + what + ": " + std::strerror(errno));
}

}  // namespace

LineReader::LineReader(std::filesystem::path path, std::size_t max_line_bytes) : path_(std::move(path)), max_line_bytes_(max_line_bytes) {
  descriptor_ = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor_ < 0) fail(path_, "can not be opened");
  struct stat status = {};
  if (::fstat(descriptor_, &status) == 0 && S_ISDIR(status.st_mode)) {
    ::close(descriptor_);
    throw std::runtime_error(path_.string() + ": is a directory, not a file");
  }
}

LineReader::~LineReader() { ::close(descriptor_); }

/// Reads more bytes behind what the buffer holds. False at the end of the file.
bool LineReader::fill() {
  if (at_end_) return false;
  if (begin_ > 0) {
    buffer_.erase(0, begin_);
    begin_ = 0;
  }
  const std::size_t held = buffer_.size();
  buffer_.resize(held + kReadBytes);
  ssize_t count = 0;
  do {
    count = ::read(descriptor_, buffer_.data() + held, kReadBytes);
  } while (count < 0 && errno == EINTR);
  buffer_.resize(held + static_cast<std::size_t>(count < 0 ? 0 : count));
  if (count < 0) fail(path_, "can not be read");
  at_end_ = count == 0;
  return !at_end_;
}

bool LineReader::next(InputLine& line) {
  while (true) {
    const char* const from = buffer_.data() + begin_;
    const std::size_t held = buffer_.size() - begin_;
    const void* const newline = std::memchr(from + scanned_, '\n', held - scanned_);
    if (newline == nullptr && !at_end_) {
      scanned_ = held;
      if (held > max_line_bytes_ + kByteOrderMark.size() + 1) return skip_long_line(line);
      fill();
      continue;
    }
    if (newline == nullptr && held == 0) return false;
    const std::size_t length = newline == nullptr ? held : static_cast<std::size_t>(static_cast<const char*>(newline) - from);
    std::string_view text(from, length);
    begin_ += length + (newline == nullptr ? 0 : 1);
    scanned_ = 0;
    ++number_;
    if (number_ == 1 && text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
    if (text.ends_with('\r')) text.remove_suffix(1);
    if (text.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    line = {number_, text, text.size() > max_line_bytes_, stable_hash(text)};
    if (line.too_long) line.text = {};
    return true;
  }
}

/// The buffer holds the start of a line that is over the limit: drops it up to its end.
bool LineReader::skip_long_line(InputLine& line) {
  StableHash hash;
  while (true) {
    const std::string_view held(buffer_.data() + begin_, buffer_.size() - begin_);
    const std::size_t newline = held.find('\n');
    hash.add(held.substr(0, newline));
    begin_ += newline == std::string_view::npos ? held.size() : newline + 1;
    if (newline != std::string_view::npos || !fill()) break;
  }
  scanned_ = 0;
  buffer_ = std::string(buffer_, begin_);  // gives the memory of the long line back
  begin_ = 0;
  line = {++number_, {}, true, hash.value()};
  return true;
}

}  // namespace lockstep::engine
