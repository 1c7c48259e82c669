#include "engine/text/jinja_lexer.h"

#include <algorithm>
#include <array>
#include <optional>

#include "engine/text/jinja_unicode.h"

namespace lockstep::text::jinja {

namespace {

using Type = Token::Type;

struct LexError {
  std::string message;
};

/// Line ends become \n, and the last one goes.
std::string normalise(std::string_view source) {
  std::string result;
  result.reserve(source.size());
  for (std::size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r') {
      result.push_back('\n');
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
    } else {
      result.push_back(source[i]);
    }
  }
  if (!result.empty() && result.back() == '\n') result.pop_back();
  return result;
}

bool is_digit_of(char character, int base) {
  if (base == 16) return std::string_view("0123456789abcdefABCDEF").find(character) != std::string_view::npos;
  return character >= '0' && character < '0' + base;
}

class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(normalise(source)) {}

  std::vector<Token> run() {
    try {
      if (!is_valid_utf8(source_)) throw LexError{"the template is not UTF-8"};
      while (position_ < source_.size()) lex_data();
    } catch (const LexError& error) {
      add(Type::Error, error.message);
    }
    add(Type::End, {});
    return std::move(tokens_);
  }

 private:
  void add(Type type, std::string text) { tokens_.push_back({type, std::move(text), line_}); }

  bool at(std::string_view wanted) const { return std::string_view(source_).substr(position_).starts_with(wanted); }

  void advance(std::size_t count) {
    line_ += static_cast<int>(std::count(source_.begin() + static_cast<std::ptrdiff_t>(position_),
                                         source_.begin() + static_cast<std::ptrdiff_t>(position_ + count), '\n'));
    position_ += count;
  }

  void skip_space() {
    while (position_ < source_.size()) {
      std::size_t next = position_;
      if (!is_space(next_code_point(source_, next))) break;
      advance(next - position_);
    }
  }

  /// Where the next tag begins, or the end.
  std::size_t find_tag(std::size_t from) const {
    for (std::size_t open = source_.find('{', from); open != std::string::npos; open = source_.find('{', open + 1)) {
      if (open + 1 < source_.size() && (source_[open + 1] == '{' || source_[open + 1] == '%' || source_[open + 1] == '#')) return open;
    }
    return source_.size();
  }

  /// The text before a tag, with the blanks before it removed as its sign asks.
  std::string_view strip_before(std::string_view text, char sign, bool is_variable) const {
    if (sign == '-') return strip_right(text);
    if (sign == '+' || is_variable) return text;
    const std::size_t line_start = text.rfind('\n') == std::string_view::npos ? 0 : text.rfind('\n') + 1;
    const bool starts_line = line_start > 0 || line_starting_;
    return starts_line && strip_left(text.substr(line_start)).empty() ? text.substr(0, line_start) : text;
  }

  void add_data(std::string_view text, std::size_t whole_size) {
    if (!text.empty()) add(Type::Data, std::string(text));
    advance(whole_size);
  }

  /// Template text up to the next tag, and that tag.
  void lex_data() {
    const std::size_t open = find_tag(position_);
    const std::string_view text = std::string_view(source_).substr(position_, open - position_);
    if (open == source_.size()) return add_data(text, text.size());
    const char kind = source_[open + 1];
    const char sign = open + 2 < source_.size() ? source_[open + 2] : '\0';
    const bool signed_tag = sign == '-' || sign == '+';
    add_data(strip_before(text, sign, kind == '{'), text.size());
    const int tag_line = line_;
    advance(signed_tag ? 3 : 2);
    if (kind == '#') return lex_comment();
    if (kind == '%' && lex_raw()) return;
    tokens_.push_back({kind == '{' ? Type::VariableBegin : Type::BlockBegin, {}, tag_line});
    lex_tag(kind == '{');
  }

  void lex_comment() {
    const std::size_t close = source_.find("#}", position_);
    if (close == std::string::npos) throw LexError{"Missing end of comment tag"};
    const char sign = close > position_ ? source_[close - 1] : '\0';
    advance(close + 2 - position_);
    after_close(sign == '-' ? '-' : sign == '+' ? '+' : '\0', true);
  }

  /// Blanks behind a tag: all of them after a minus, else (for blocks and comments) one line end.
  void after_close(char sign, bool trims_line_end) {
    const std::size_t before = position_;
    if (sign == '-') {
      skip_space();
    } else if (sign != '+' && trims_line_end && at("\n")) {
      advance(1);
    }
    line_starting_ = position_ > before && source_[position_ - 1] == '\n';
  }

  std::size_t skip_blanks(std::size_t from) const {
    while (from < source_.size()) {
      std::size_t next = from;
      if (!is_space(next_code_point(source_, next))) break;
      from = next;
    }
    return from;
  }

  /// After "{%" and its sign: where " word %}" ends, with its closing sign, if that is what follows.
  std::optional<std::pair<std::size_t, char>> match_tag(std::size_t from, std::string_view word, bool may_plus) const {
    std::size_t cursor = skip_blanks(from);
    if (!std::string_view(source_).substr(cursor).starts_with(word)) return std::nullopt;
    cursor = skip_blanks(cursor + word.size());
    char sign = '\0';
    if (cursor < source_.size() && (source_[cursor] == '-' || (may_plus && source_[cursor] == '+'))) sign = source_[cursor++];
    if (!std::string_view(source_).substr(cursor).starts_with("%}")) return std::nullopt;
    return std::pair{cursor + 2, sign};
  }

  bool lex_raw() {
    const auto opening = match_tag(position_, "raw", false);
    if (!opening) return false;
    advance(opening->first - position_);
    after_close(opening->second, false);
    for (std::size_t open = source_.find("{%", position_); open != std::string::npos; open = source_.find("{%", open + 1)) {
      const char sign = open + 2 < source_.size() && (source_[open + 2] == '-' || source_[open + 2] == '+') ? source_[open + 2] : '\0';
      const auto closing = match_tag(open + (sign ? 3 : 2), "endraw", true);
      if (!closing) continue;
      const std::string_view text = std::string_view(source_).substr(position_, open - position_);
      add_data(strip_before(text, sign, false), text.size());
      advance(closing->first - position_);
      after_close(closing->second, true);
      return true;
    }
    throw LexError{"Missing end of raw directive"};
  }

  bool lex_close(bool is_variable) {
    const std::string_view close = is_variable ? "}}" : "%}";
    const char sign = !at(close) && (at("-") || (!is_variable && at("+"))) ? source_[position_] : '\0';
    if (!std::string_view(source_).substr(position_ + (sign ? 1 : 0)).starts_with(close)) return false;
    add(is_variable ? Type::VariableEnd : Type::BlockEnd, {});
    advance(close.size() + (sign ? 1 : 0));
    after_close(sign, !is_variable);
    return true;
  }

  void lex_tag(bool is_variable) {
    std::string open_brackets;
    for (skip_space(); position_ < source_.size(); skip_space()) {
      if (open_brackets.empty() && lex_close(is_variable)) return;
      const char first = source_[position_];
      if (first >= '0' && first <= '9') {
        lex_number();
      } else if (first == '\'' || first == '"') {
        lex_string(first);
      } else if (!lex_name()) {
        lex_operator(open_brackets);
      }
    }
  }

  bool lex_name() {
    std::size_t end = position_;
    while (end < source_.size()) {
      std::size_t next = end;
      const char32_t c = next_code_point(source_, next);
      if (c != '_' && !is_alphabetic(c) && !is_digit(c)) break;
      end = next;
    }
    if (end == position_) return false;
    std::size_t second = position_;
    if (is_digit(next_code_point(source_, second))) throw LexError{"Invalid character in identifier"};
    add(Type::Name, source_.substr(position_, end - position_));
    advance(end - position_);
    return true;
  }

  /// Digits with single underscores between them, from `from`; no digit: `from`.
  std::size_t digits_end(std::size_t from, int base, bool underscore_first = false) const {
    std::size_t end = from;
    while (end < source_.size()) {
      const bool underscore = source_[end] == '_' && (end > from || underscore_first);
      const std::size_t digit = underscore ? end + 1 : end;
      if (digit >= source_.size() || !is_digit_of(source_[digit], base)) break;
      end = digit + 1;
    }
    return end;
  }

  std::size_t float_end() const {
    if (position_ > 0 && source_[position_ - 1] == '.') return position_;
    std::size_t end = digits_end(position_, 10);
    bool is_float = false;
    if (end < source_.size() && source_[end] == '.' && digits_end(end + 1, 10) > end + 1) {
      end = digits_end(end + 1, 10);
      is_float = true;
    }
    if (end < source_.size() && (source_[end] == 'e' || source_[end] == 'E')) {
      const std::size_t sign = end + 1 < source_.size() && (source_[end + 1] == '+' || source_[end + 1] == '-') ? 1 : 0;
      const std::size_t exponent = digits_end(end + 1 + sign, 10);
      if (exponent > end + 1 + sign) return exponent;
    }
    return is_float ? end : position_;
  }

  void lex_number() {
    std::size_t end = float_end();
    const bool is_float = end > position_;
    if (!is_float && source_[position_] == '0') {
      end = position_ + 1;
      const char marker = end < source_.size() ? static_cast<char>(source_[end] | 0x20) : '\0';
      const int base = marker == 'x' ? 16 : marker == 'b' ? 2 : marker == 'o' ? 8 : 0;
      const std::size_t prefixed = base > 0 ? digits_end(end + 1, base, true) : 0;
      if (base > 0 && prefixed > end + 1) {
        end = prefixed;
      } else {
        end = digits_end(position_, 1);  // zeros
      }
    } else if (!is_float) {
      end = digits_end(position_, 10);
    }
    std::string text = source_.substr(position_, end - position_);
    text.erase(std::remove(text.begin(), text.end(), '_'), text.end());
    add(is_float ? Type::FloatLiteral : Type::IntegerLiteral, std::move(text));
    advance(end - position_);
  }

  void lex_string(char quote) {
    std::size_t end = position_ + 1;
    while (end < source_.size() && source_[end] != quote) end += source_[end] == '\\' ? 2 : 1;
    if (end >= source_.size()) fail_character();
    add(Type::String, unescape(std::string_view(source_).substr(position_ + 1, end - position_ - 1)));
    advance(end + 1 - position_);
  }

  [[noreturn]] void fail_character() const {
    std::size_t next = position_;
    next_code_point(source_, next);
    const std::string_view character = std::string_view(source_).substr(position_, next - position_);
    const std::string quote = character == "'" ? "\"" : "'";
    throw LexError{"unexpected char " + quote + std::string(character) + quote + " at " +
                   std::to_string(code_points(std::string_view(source_).substr(0, position_)))};
  }

  static std::size_t hexadecimal(std::string_view digits, std::size_t wanted) {
    std::size_t code = 0;
    if (digits.size() < wanted) throw LexError{"truncated escape in a string"};
    for (const char digit : digits.substr(0, wanted)) {
      if (!is_digit_of(digit, 16)) throw LexError{"truncated escape in a string"};
      code = code * 16 + static_cast<std::size_t>(digit <= '9' ? digit - '0' : (digit | 0x20) - 'a' + 10);
    }
    return code;
  }

  static std::string unescape(std::string_view text) {
    std::string result;
    for (std::size_t i = 0; i < text.size(); ++i) {
      if (text[i] != '\\' || i + 1 >= text.size()) {
        result.push_back(text[i]);
        continue;
      }
      const char escape = text[++i];
      constexpr std::string_view kNames = "ntrabfv\\'\"";
      constexpr std::string_view kValues = "\n\t\r\a\b\f\v\\'\"";
      if (const std::size_t known = kNames.find(escape); known != std::string_view::npos) {
        result.push_back(kValues[known]);
      } else if (escape == 'x' || escape == 'u' || escape == 'U') {
        const std::size_t digits = escape == 'x' ? 2 : escape == 'u' ? 4 : 8;
        const std::size_t code = hexadecimal(text.substr(i + 1), digits);
        if (code > 0x10FFFF || (code >= 0xD800 && code < 0xE000))
          throw LexError{"a string escape is not a character (a lone surrogate, or too large)"};
        append_code_point(result, static_cast<char32_t>(code));
        i += digits;
      } else if (is_digit_of(escape, 8)) {
        char32_t code = 0;
        std::size_t end = i;
        while (end < text.size() && end < i + 3 && is_digit_of(text[end], 8)) code = code * 8 + static_cast<char32_t>(text[end++] - '0');
        append_code_point(result, code);
        i = end - 1;
      } else if (escape == 'N') {
        throw LexError{"string escapes by character name (\\N) are not supported"};
      } else if (escape != '\n') {
        result.push_back('\\');
        result.push_back(escape);
      }
    }
    return result;
  }

  void lex_operator(std::string& open_brackets) {
    static constexpr std::array<std::string_view, 26> kOperators = {"//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[",
                                                                    "]",  "(",  ")",  "{",  "}",  ">",  "<", "=", ".", ":", "|", ",", ";"};
    const auto found = std::find_if(kOperators.begin(), kOperators.end(), [&](std::string_view symbol) { return at(symbol); });
    if (found == kOperators.end()) fail_character();
    const char symbol = found->front();
    if (symbol == '(' || symbol == '[' || symbol == '{') {
      open_brackets.push_back(symbol == '(' ? ')' : symbol == '[' ? ']' : '}');
    } else if (symbol == ')' || symbol == ']' || symbol == '}') {
      if (open_brackets.empty()) throw LexError{"unexpected '" + std::string(1, symbol) + "'"};
      const char expected = open_brackets.back();
      open_brackets.pop_back();
      if (expected != symbol) throw LexError{"unexpected '" + std::string(1, symbol) + "', expected '" + std::string(1, expected) + "'"};
    }
    add(Type::Operator, std::string(*found));
    advance(found->size());
  }

  std::string source_;
  std::size_t position_ = 0;
  int line_ = 1;
  bool line_starting_ = true;
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> tokenize(std::string_view source) { return Lexer(source).run(); }

std::string describe(Type type) {
  switch (type) {
    case Type::Data: return "template data / text";
    case Type::VariableBegin: return "begin of print statement";
    case Type::VariableEnd: return "end of print statement";
    case Type::BlockBegin: return "begin of statement block";
    case Type::BlockEnd: return "end of statement block";
    case Type::Name: return "name";
    case Type::String: return "string";
    case Type::IntegerLiteral: return "integer";
    case Type::FloatLiteral: return "float";
    case Type::End: return "end of template";
    default: return "token";
  }
}

std::string describe(const Token& token) {
  return token.type == Type::Name || token.type == Type::Operator ? token.text : describe(token.type);
}

}  // namespace lockstep::text::jinja
