#include "engine/text/expression.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <new>
#include <stdexcept>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "engine/text/utf8.h"

namespace lockstep::text {

namespace {

constexpr std::size_t kLongestPattern = 64 * 1024;
constexpr std::size_t kMatchLimit = 10'000'000;  // backtracking points in one match, beyond those of a run of white space: about one a byte
constexpr std::uint32_t kHeapLimitKilobytes = 256 * 1024;
constexpr std::size_t kJitStackStart = 32 * 1024;
constexpr std::size_t kJitStackLimit = 16 * 1024 * 1024;

// The two dialects do not agree on these: PCRE2's \s has U+180E, its \w no marks, and its \h is horizontal space.
constexpr std::string_view kSpaces = "\\x09-\\x0d\\x20\\x85\\xa0\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}";
constexpr std::string_view kWordCharacters = "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}";
constexpr std::string_view kHexDigits = "0-9a-fA-F";

std::string_view members_of(char escape) {
  switch (escape) {
    case 's':
    case 'S': return kSpaces;
    case 'w':
    case 'W': return kWordCharacters;
    case 'h':
    case 'H': return kHexDigits;
    default: return {};
  }
}

/// A hyphen that stands at the edge of an inner class is no range, wherever its members come to stand.
void escape_hyphen_at_end(std::string& text) {
  if (text.ends_with('-') && !text.ends_with("\\-")) text.insert(text.size() - 1, 1, '\\');
}

/// The pattern with those classes spelled out. A negated one within brackets stays as it is: it has no spelling there.
std::string translate(const std::string& pattern) {
  std::string result;
  int brackets = 0;
  for (std::size_t i = 0; i < pattern.size(); ++i) {
    const char character = pattern[i];
    if (character == '\\' && i + 1 < pattern.size()) {
      const char escape = pattern[++i];
      const std::string_view members = members_of(escape);
      const bool negated = escape >= 'A' && escape <= 'Z';
      if (members.empty() || (brackets > 0 && negated)) {
        result += {'\\', escape};
      } else if (brackets > 0) {
        result += members;
      } else {
        result += negated ? "[^" : "[";
        result += members;
        result += "]";
      }
      continue;
    }
    if (brackets > 0 && pattern.compare(i, 2, "&&") == 0) throw std::runtime_error("class intersections (&&) are not supported");
    if (brackets > 0 && pattern.compare(i, 2, "[:") == 0) {
      const std::size_t end = std::min(pattern.find(":]", i), pattern.size() - 2) + 2;
      result.append(pattern, i, end - i);
      i = end - 1;
      continue;
    }
    if (brackets > 0 && character == '[') {  // a class in a class: its members are the outer one's
      if (pattern.compare(i + 1, 1, "^") == 0) throw std::runtime_error("negated classes in classes are not supported");
      escape_hyphen_at_end(result);
      ++brackets;
      if (pattern.compare(i + 1, 1, "-") == 0 || pattern.compare(i + 1, 1, "]") == 0) result += {'\\', pattern[++i]};
      continue;
    }
    if (brackets > 1 && character == ']') {
      escape_hyphen_at_end(result);
      --brackets;
      continue;
    }
    if (character == '[') ++brackets;
    if (character == ']' && brackets > 0) --brackets;
    result += character;
    if (character != '[') continue;
    if (pattern.compare(i + 1, 1, "^") == 0) result += pattern[++i];
    if (pattern.compare(i + 1, 1, "]") == 0) result += {'\\', pattern[++i]};  // a bracket that comes first is a member
  }
  return result;
}

std::string message_of(int error) {
  std::array<PCRE2_UCHAR, 256> buffer{};
  pcre2_get_error_message(error, buffer.data(), buffer.size());
  return reinterpret_cast<const char*>(buffer.data());
}

template <auto Free>
struct Deleter {
  template <typename T>
  void operator()(T* pointer) const {
    Free(pointer);
  }
};
using CodePointer = std::unique_ptr<pcre2_code, Deleter<pcre2_code_free>>;
using CompileContextPointer = std::unique_ptr<pcre2_compile_context, Deleter<pcre2_compile_context_free>>;
using MatchContextPointer = std::unique_ptr<pcre2_match_context, Deleter<pcre2_match_context_free>>;
using MatchDataPointer = std::unique_ptr<pcre2_match_data, Deleter<pcre2_match_data_free>>;
using JitStackPointer = std::unique_ptr<pcre2_jit_stack, Deleter<pcre2_jit_stack_free>>;

}  // namespace

struct Expression::Code {
  CodePointer compiled;
};

struct Expression::Scratch::Buffers {
  MatchContextPointer context{pcre2_match_context_create(nullptr)};
  MatchDataPointer data{pcre2_match_data_create(1, nullptr)};  // where the whole match lies is all that is asked
  JitStackPointer stack{pcre2_jit_stack_create(kJitStackStart, kJitStackLimit, nullptr)};
};

Expression::Scratch::Scratch() : buffers_(std::make_unique<Buffers>()) {
  if (!buffers_->context || !buffers_->data || !buffers_->stack) throw std::bad_alloc();
  pcre2_set_heap_limit(buffers_->context.get(), kHeapLimitKilobytes);
  pcre2_jit_stack_assign(buffers_->context.get(), nullptr, buffers_->stack.get());
}

Expression::Scratch::~Scratch() = default;
Expression::~Expression() = default;
Expression::Expression(Expression&&) noexcept = default;
Expression& Expression::operator=(Expression&&) noexcept = default;

Expression::Expression(const std::string& pattern) : pattern_(pattern), code_(std::make_unique<Code>()) {
  if (pattern.size() > kLongestPattern)
    throw std::runtime_error("the expression has " + std::to_string(pattern.size()) + " bytes; the limit is 65536");
  const std::string translated = translate(pattern);
  const CompileContextPointer context(pcre2_compile_context_create(nullptr));
  if (!context) throw std::bad_alloc();
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  pcre2_set_parens_nest_limit(context.get(), 100);
  int error = 0;
  PCRE2_SIZE place = 0;
  const std::uint32_t options = PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C;
  code_->compiled.reset(
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(), options, &error, &place, context.get()));
  if (!code_->compiled) {
    throw std::runtime_error("the expression is wrong near its byte " + std::to_string(place) + ": " + message_of(error));
  }
  pcre2_jit_compile(code_->compiled.get(), PCRE2_JIT_COMPLETE);  // without a compiler for this processor the interpreter serves
}

Expression Expression::literal(std::string_view text) {
  std::string pattern;
  for (const char character : text) {
    const auto byte = static_cast<unsigned char>(character);
    const bool plain =
        byte >= 0x80 || byte < 0x20 || (byte >= '0' && byte <= '9') || (byte >= 'A' && byte <= 'Z') || (byte >= 'a' && byte <= 'z');
    if (!plain) pattern += '\\';
    pattern += character;
  }
  return Expression(pattern);
}

void Expression::find_all(std::string_view text, Scratch& scratch, std::vector<Range>& matches) const {
  constexpr std::size_t kNone = ~std::size_t{0};
  const auto subject = reinterpret_cast<PCRE2_SPTR>(text.empty() ? "" : text.data());
  pcre2_match_data* data = scratch.buffers_->data.get();
  const std::size_t limit = kMatchLimit + 2 * text.size();
  pcre2_set_match_limit(scratch.buffers_->context.get(), static_cast<std::uint32_t>(std::min<std::size_t>(limit, UINT32_MAX)));
  std::size_t last_end = kNone;
  for (std::size_t position = 0; position <= text.size();) {
    const auto run = [&](std::uint32_t options) {
      return pcre2_match(code_->compiled.get(), subject, text.size(), position, options, data, scratch.buffers_->context.get());
    };
    int result = run(PCRE2_NO_UTF_CHECK);
    if (result == PCRE2_ERROR_JIT_STACKLIMIT) result = run(PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT);
    if (result == PCRE2_ERROR_NOMATCH) return;
    if (result < 0)
      throw std::runtime_error("the expression " + pattern_ + " fails on the text at byte " + std::to_string(position) + ": " +
                               message_of(result));
    const PCRE2_SIZE* found = pcre2_get_ovector_pointer(data);
    if (found[1] < found[0] || found[0] < position)
      throw std::runtime_error("the expression " + pattern_ + " moves the start of its match (\\K)");
    if (found[0] == found[1] && found[0] == last_end) {
      if (position == text.size()) return;
      position += next_character(text.substr(position)).length;
      continue;
    }
    matches.push_back({found[0], found[1]});
    last_end = position = found[1];
  }
}

}  // namespace lockstep::text
