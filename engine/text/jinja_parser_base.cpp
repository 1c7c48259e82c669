#include "engine/text/jinja_parser_base.h"

#include <algorithm>
#include <array>
#include <charconv>

#include "engine/text/jinja_builtins.h"

namespace lockstep::text::jinja {

namespace {

using Type = Token::Type;

struct BinaryLevel {
  bool words;  // the operators are names
  std::vector<std::pair<std::string_view, BinaryOperator>> operators;
};

constexpr std::size_t kOr = 0, kAnd = 1, kSum = 2, kProduct = 3, kPower = 4;

/// Loosest first. Comparisons and ~ stand between, with rules of their own. All are left-associative, ** too (as in Jinja).
const std::array<BinaryLevel, 5>& binary_levels() {
  using enum BinaryOperator;
  static const std::array<BinaryLevel, 5> levels = {{{true, {{"or", Or}}},
                                                     {true, {{"and", And}}},
                                                     {false, {{"+", Add}, {"-", Subtract}}},
                                                     {false, {{"*", Multiply}, {"/", Divide}, {"//", FloorDivide}, {"%", Modulo}}},
                                                     {false, {{"**", Power}}}}};
  return levels;
}

}  // namespace

void ExpressionParser::fail(const std::string& message, int line) const {
  throw TemplateError("TemplateSyntaxError", message, line > 0 ? line : tokens_[position_].line);
}

const Token& ExpressionParser::current() const {
  const Token& token = tokens_[position_];
  if (token.type == Type::Error) fail(token.text);
  return token;
}

Token ExpressionParser::take() {
  Token token = current();
  if (position_ + 1 < tokens_.size()) ++position_;
  current();
  return token;
}

bool ExpressionParser::skip_name(std::string_view name) {
  if (!current().is_name(name)) return false;
  take();
  return true;
}

bool ExpressionParser::skip_operator(std::string_view symbol) {
  if (!current().is_operator(symbol)) return false;
  take();
  return true;
}

Token ExpressionParser::expect(Type type) {
  const Token& token = current();
  if (token.type == type) return take();
  if (token.type == Type::End) fail("unexpected end of template, expected " + string_repr(describe(type)) + ".");
  fail("expected token " + string_repr(describe(type)) + ", got " + string_repr(describe(token)));
}

void ExpressionParser::expect_operator(std::string_view symbol) {
  if (skip_operator(symbol)) return;
  if (current().type == Type::End) fail("unexpected end of template, expected " + string_repr(symbol) + ".");
  fail("expected token " + string_repr(symbol) + ", got " + string_repr(describe(current())));
}

void ExpressionParser::expect_name(std::string_view name) {
  if (skip_name(name)) return;
  if (current().type == Type::End) fail("unexpected end of template, expected " + string_repr(name) + ".");
  fail("expected token " + string_repr(name) + ", got " + string_repr(describe(current())));
}

ExpressionPtr ExpressionParser::make_list(int line, std::vector<ExpressionPtr> items, bool is_tuple) {
  const Expression* highest = nullptr;
  for (const auto& item : items) {
    if (!highest || item->height > highest->height) highest = item.get();
  }
  return make(line, ListNode{std::move(items), is_tuple}, {highest});
}

ExpressionPtr ExpressionParser::parse_expression(bool with_condition) {
  const Nesting nesting(*this);
  return with_condition ? parse_condition() : parse_binary(kOr);
}

ExpressionPtr ExpressionParser::parse_condition() {
  const std::size_t mark = unknown_.size();
  const int line = current().line;
  ExpressionPtr result = parse_binary(kOr);
  while (skip_name("if")) {
    ExpressionPtr condition = parse_binary(kOr);
    ExpressionPtr otherwise = skip_name("else") ? parse_expression() : nullptr;
    forget_unknown_of_branch(mark);
    const Expression* children[] = {condition.get(), result.get(), otherwise.get()};
    result =
        make(line, ConditionalNode{std::move(condition), std::move(result), std::move(otherwise)}, {children[0], children[1], children[2]});
  }
  return result;
}

ExpressionPtr ExpressionParser::parse_binary(std::size_t level) {
  const auto operand = [&] {
    switch (level) {
      case kOr: return parse_binary(kAnd);
      case kAnd: return parse_not();
      case kSum: return parse_concat();
      case kProduct: return parse_binary(kPower);
      default: return parse_unary();
    }
  };
  const bool words = binary_levels()[level].words;
  const auto& operators = binary_levels()[level].operators;
  const int line = current().line;
  ExpressionPtr left = operand();
  for (;;) {
    const auto found = std::find_if(operators.begin(), operators.end(), [&](const auto& candidate) {
      return words ? current().is_name(candidate.first) : current().is_operator(candidate.first);
    });
    if (found == operators.end()) return left;
    take();
    ExpressionPtr right = operand();
    const Expression *a = left.get(), *b = right.get();
    left = make(line, BinaryNode{found->second, std::move(left), std::move(right)}, {a, b});
  }
}

ExpressionPtr ExpressionParser::parse_not() {
  if (!current().is_name("not")) return parse_comparison();
  const Nesting nesting(*this);
  const int line = take().line;
  ExpressionPtr operand = parse_not();
  const Expression* child = operand.get();
  return make(line, UnaryNode{UnaryOperator::Not, std::move(operand)}, {child});
}

ExpressionPtr ExpressionParser::parse_comparison() {
  using enum ComparisonOperator;
  static constexpr std::array<std::pair<std::string_view, ComparisonOperator>, 6> kSymbols = {
      {{"==", Equal}, {"!=", NotEqual}, {"<", Less}, {"<=", LessEqual}, {">", Greater}, {">=", GreaterEqual}}};
  const int line = current().line;
  ExpressionPtr first = parse_binary(kSum);
  const Expression* highest = first.get();
  ComparisonNode node{std::move(first), {}};
  for (;;) {
    const auto found =
        std::find_if(kSymbols.begin(), kSymbols.end(), [&](const auto& symbol) { return current().is_operator(symbol.first); });
    if (found != kSymbols.end()) {
      take();
      node.rest.emplace_back(found->second, parse_binary(kSum));
    } else if (skip_name("in")) {
      node.rest.emplace_back(In, parse_binary(kSum));
    } else if (current().is_name("not") && next_token().is_name("in")) {
      take();
      take();
      node.rest.emplace_back(NotIn, parse_binary(kSum));
    } else {
      break;
    }
    if (node.rest.back().second->height > highest->height) highest = node.rest.back().second.get();
  }
  if (node.rest.empty()) return std::move(node.first);
  return make(line, std::move(node), {highest});
}

ExpressionPtr ExpressionParser::parse_concat() {
  const int line = current().line;
  std::vector<ExpressionPtr> items;
  items.push_back(parse_binary(kProduct));
  const Expression* highest = items[0].get();
  while (skip_operator("~")) {
    items.push_back(parse_binary(kProduct));
    if (items.back()->height > highest->height) highest = items.back().get();
  }
  if (items.size() == 1) return std::move(items[0]);
  return make(line, ConcatNode{std::move(items)}, {highest});
}

ExpressionPtr ExpressionParser::parse_unary(bool with_filters) {
  const Nesting nesting(*this);
  const int line = current().line;
  ExpressionPtr result;
  if (current().is_operator("-") || current().is_operator("+")) {
    const UnaryOperator symbol = take().text == "-" ? UnaryOperator::Negative : UnaryOperator::Positive;
    ExpressionPtr operand = parse_unary(false);
    const Expression* child = operand.get();
    result = make(line, UnaryNode{symbol, std::move(operand)}, {child});
  } else {
    result = parse_primary();
  }
  result = parse_postfix(std::move(result));
  return with_filters ? parse_filter_chain(std::move(result)) : std::move(result);
}

ExpressionPtr ExpressionParser::parse_primary(bool with_namespace) {
  const Token& token = current();
  const int line = token.line;
  switch (token.type) {
    case Type::Name: {
      const std::string name = take().text;
      if (name == "true" || name == "True" || name == "false" || name == "False")
        return make(line, LiteralNode{Value(name[0] == 't' || name[0] == 'T')});
      if (name == "none" || name == "None") return make(line, LiteralNode{Value()});
      if (with_namespace && skip_operator(".")) return make(line, NamespaceTargetNode{name, expect(Type::Name).text});
      for (MacroDefinition* macro : macros_) {
        macro->uses_varargs |= name == "varargs";
        macro->uses_kwargs |= name == "kwargs";
        macro->uses_caller |= name == "caller";
      }
      return make(line, NameNode{name});
    }
    case Type::String: {
      std::string text;
      while (current().type == Type::String) text += take().text;
      return make(line, LiteralNode{make_string(heap_, std::move(text))});
    }
    case Type::IntegerLiteral:
    case Type::FloatLiteral: return parse_number(take());
    case Type::Operator:
      if (token.text == "(") {
        take();
        ExpressionPtr inner = parse_tuple(true, {}, true);
        expect_operator(")");
        return inner;
      }
      if (token.text == "[") return parse_bracketed_list();
      if (token.text == "{") return parse_dict();
      break;
    default: break;
  }
  fail("unexpected " + string_repr(describe(token)), line);
}

ExpressionPtr ExpressionParser::parse_number(const Token& token) {
  if (token.type == Type::FloatLiteral) {
    double number = 0;
    const auto parsed = std::from_chars(token.text.data(), token.text.data() + token.text.size(), number);
    if (parsed.ec == std::errc::result_out_of_range) {  // Python: too large is infinity, too small is zero
      const std::size_t exponent = token.text.find_first_of("eE");
      number = exponent != std::string::npos && token.text[exponent + 1] == '-' ? 0.0 : HUGE_VAL;
    }
    return make(token.line, LiteralNode{Value(number)});
  }
  const auto number = parse_integer(token.text, 0);
  if (!number) fail("the integer " + token.text.substr(0, 60) + " is too large (this interpreter has 127 bits)", token.line);
  return make(token.line, LiteralNode{Value(*number)});
}

bool ExpressionParser::at_tuple_end(std::string_view end_name) const {
  const Token& token = current();
  return token.type == Type::VariableEnd || token.type == Type::BlockEnd || token.is_operator(")") ||
         (!end_name.empty() && token.is_name(end_name));
}

ExpressionPtr ExpressionParser::parse_tuple(bool with_condition, std::string_view end_name, bool parenthesised) {
  const int line = current().line;
  std::vector<ExpressionPtr> items;
  bool is_tuple = false;
  for (;;) {
    if (!items.empty()) expect_operator(",");
    if (at_tuple_end(end_name)) break;
    items.push_back(parse_expression(with_condition));
    if (!current().is_operator(",")) break;
    is_tuple = true;
  }
  if (!is_tuple) {
    if (!items.empty()) return std::move(items[0]);
    if (!parenthesised) fail("Expected an expression, got " + string_repr(describe(current())));
  }
  return make_list(line, std::move(items), true);
}

void ExpressionParser::check_target(const Expression& target) const {
  const auto refuse = [&](const char* kind) { fail("can't assign to '" + std::string(kind) + "'", target.line); };
  if (const auto* list = std::get_if<ListNode>(&target.node)) {
    if (!list->is_tuple) refuse("list");
    for (const auto& item : list->items) check_target(*item);
  } else if (!std::holds_alternative<NameNode>(target.node) && !std::holds_alternative<NamespaceTargetNode>(target.node)) {
    refuse(std::holds_alternative<LiteralNode>(target.node) ? "const" : "expression");
  }
}

ExpressionPtr ExpressionParser::parse_target(std::string_view end_name, bool with_namespace) {
  const int line = current().line;
  std::vector<ExpressionPtr> items;
  bool is_tuple = false;
  for (;;) {
    if (!items.empty()) expect_operator(",");
    if (at_tuple_end(end_name)) break;
    items.push_back(parse_primary(with_namespace));
    if (!current().is_operator(",")) break;
    is_tuple = true;
  }
  if (items.empty()) fail("Expected an expression, got " + string_repr(describe(current())));
  ExpressionPtr target = is_tuple ? make_list(line, std::move(items), true) : std::move(items[0]);
  check_target(*target);
  return target;
}

std::string ExpressionParser::parse_target_name() {
  const Token token = expect(Type::Name);
  static constexpr std::array<std::string_view, 6> kConstants = {"true", "false", "none", "True", "False", "None"};
  if (std::find(kConstants.begin(), kConstants.end(), token.text) != kConstants.end()) fail("can't assign to 'name'", token.line);
  return token.text;
}

ExpressionPtr ExpressionParser::parse_bracketed_list() {
  const int line = take().line;
  std::vector<ExpressionPtr> items;
  while (!current().is_operator("]")) {
    if (!items.empty()) expect_operator(",");
    if (current().is_operator("]")) break;
    items.push_back(parse_expression());
  }
  expect_operator("]");
  return make_list(line, std::move(items), false);
}

ExpressionPtr ExpressionParser::parse_dict() {
  const int line = take().line;
  DictNode node;
  const Expression* highest = nullptr;
  while (!current().is_operator("}")) {
    if (!node.items.empty()) expect_operator(",");
    if (current().is_operator("}")) break;
    ExpressionPtr key = parse_expression();
    expect_operator(":");
    node.items.emplace_back(std::move(key), parse_expression());
    for (const Expression* side : {node.items.back().first.get(), node.items.back().second.get()}) {
      if (!highest || side->height > highest->height) highest = side;
    }
  }
  expect_operator("}");
  return make(line, std::move(node), {highest});
}

void ExpressionParser::forget_unknown_of_branch(std::size_t mark) {
  const auto begin = unknown_.begin() + static_cast<std::ptrdiff_t>(mark);
  unknown_.erase(std::remove_if(begin, unknown_.end(), [](const Unknown& unknown) { return unknown.in_branch; }), unknown_.end());
}

void ExpressionParser::make_unknown_sure(std::size_t mark) {
  for (std::size_t i = mark; i < unknown_.size(); ++i) unknown_[i].in_branch = false;
}

}  // namespace lockstep::text::jinja
