#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace lockstep::text {

inline constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";  // U+FFFD

enum class Utf8State {
  Valid,       // `length` bytes are one character
  Malformed,   // `length` bytes (the longest prefix of a character that there is, at least 1) can never become one
  Incomplete,  // the `length` bytes that are left are a proper prefix of a character
};

struct Utf8Step {
  Utf8State state;
  std::size_t length;
  char32_t code_point;  // where valid
};

/// What stands at the start of `bytes`, which is not empty. Malformed input is cut as Unicode recommends (and Rust's from_utf8_lossy does).
Utf8Step next_character(std::string_view bytes);

/// Which bytes a U+FFFD stands for.
enum class Replacement {
  PerSequence,  // the longest prefix of a character that there is
  PerByte,      // each byte: a byte-fallback vocabulary's decoder does so
};

/// Appends `bytes` to `text`, malformed parts as U+FFFD, and returns how many bytes at the end are the start of a character that may still
/// come. Those are not appended.
std::size_t append_certain_text(std::string& text, std::string_view bytes, Replacement replacement = Replacement::PerSequence);

/// All of `bytes` as valid UTF-8.
std::string to_valid_utf8(std::string_view bytes, Replacement replacement = Replacement::PerSequence);

bool is_valid_utf8(std::string_view bytes);
bool is_ascii(std::string_view bytes);
void append_utf8(std::string& text, char32_t code_point);

// Of valid UTF-8:
bool is_space(char32_t c);                                   // Unicode's White_Space
std::size_t start_of_last_character(std::string_view text);  // which is not empty
std::size_t without_spaces_at_end(std::string_view text);    // the length that is left
std::size_t spaces_at_start(std::string_view text);          // their length

}  // namespace lockstep::text
