#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "engine/io/stable_hash.h"

namespace lockstep::engine {

/// A line of a JSONL file.
struct InputLine {
  std::uint64_t number = 0;  // from 1, blank lines counted
  std::string_view text;     // without its end; valid until the next call. Empty if too_long
  bool too_long = false;
  std::uint64_t fingerprint = 0;  // of the text, also where it is too long to be kept
};

/// Reads a file or pipe line by line in bounded memory. Only '\n' ends a line (U+2028 and its like are text), and the end of the file; a
/// carriage return before it and a byte order mark at the start of the file are dropped; lines of nothing but spaces and tabs are skipped,
/// though numbered.
class LineReader {
 public:
  /// @throws std::runtime_error that names the file, also from next().
  LineReader(std::filesystem::path path, std::size_t max_line_bytes);
  ~LineReader();
  LineReader(const LineReader&) = delete;
  LineReader& operator=(const LineReader&) = delete;

  /// False at the end of the file.
  bool next(InputLine& line);

 private:
  bool fill();
  bool skip_long_line(InputLine& line);

  std::filesystem::path path_;
  std::size_t max_line_bytes_;
  int descriptor_ = -1;
  bool at_end_ = false;
  std::string buffer_;
  std::size_t begin_ = 0;    // first byte of buffer_ that was not handed out
  std::size_t scanned_ = 0;  // bytes after begin_ that are known to hold no '\n'
  std::uint64_t number_ = 0;
};

}  // namespace lockstep::engine
