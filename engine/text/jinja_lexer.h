#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace lockstep::text::jinja {

struct Token {
  enum class Type {
    Data,
    VariableBegin,
    VariableEnd,
    BlockBegin,
    BlockEnd,
    Name,
    String,
    IntegerLiteral,
    FloatLiteral,
    Operator,
    Error,
    End
  };

  bool is(Type wanted, std::string_view wanted_text) const { return type == wanted && text == wanted_text; }
  bool is_name(std::string_view name) const { return is(Type::Name, name); }
  bool is_operator(std::string_view symbol) const { return is(Type::Operator, symbol); }

  Type type;
  std::string text;  // data: the text that is printed; string: its value; number: its digits without underscores; error: the message
  int line;
};

/// Cuts a template into tokens, with trim_blocks and lstrip_blocks, and without the last line's end.
/// What cannot be cut becomes one Error token, so that a mistake before it is reported first, as the reference does.
std::vector<Token> tokenize(std::string_view source);

/// As the reference's messages call a token: "end of print statement", a name, an operator.
std::string describe(const Token& token);
std::string describe(Token::Type type);

}  // namespace lockstep::text::jinja
