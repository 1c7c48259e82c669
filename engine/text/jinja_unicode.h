#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::text::jinja {

/// UTF-8 text by code points, as Python's str sees it. All functions take valid UTF-8 (see `is_valid_utf8`).
bool is_valid_utf8(std::string_view text);
std::size_t code_points(std::string_view text);
/// The byte offset of code point `index` (at most the length).
std::size_t byte_offset(std::string_view text, std::size_t index);
/// The code point that starts at `position`, which moves behind it.
char32_t next_code_point(std::string_view text, std::size_t& position);
void append_code_point(std::string& text, char32_t code_point);
/// The offset of the code point that ends before `position`.
std::size_t previous_offset(std::string_view text, std::size_t position);

bool is_space(char32_t code_point);
bool is_printable(char32_t code_point);
bool is_alphabetic(char32_t code_point);
bool is_upper(char32_t code_point);
bool is_lower(char32_t code_point);
bool is_digit(char32_t code_point);  // a decimal digit of any script

std::string upper(std::string_view text);
std::string lower(std::string_view text);
std::string capitalize(std::string_view text);
std::string swap_case(std::string_view text);
std::string title(std::string_view text);  // str.title(): every run of letters

/// Without leading / trailing characters of `characters`, or whitespace where it is null.
std::string_view strip_left(std::string_view text, const std::string_view* characters = nullptr);
std::string_view strip_right(std::string_view text, const std::string_view* characters = nullptr);
/// Python's splitlines().
std::vector<std::string_view> split_lines(std::string_view text, bool keep_ends);

}  // namespace lockstep::text::jinja
