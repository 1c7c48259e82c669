// What follows an expression: subscripts, calls, filters and tests.
#include <algorithm>

#include "engine/text/jinja_builtins.h"
#include "engine/text/jinja_parser_base.h"

namespace lockstep::text::jinja {

namespace {

using Type = Token::Type;

bool starts_test_argument(const Token& token) {
  switch (token.type) {
    case Type::String:
    case Type::IntegerLiteral:
    case Type::FloatLiteral: return true;
    case Type::Name: return token.text != "else" && token.text != "or" && token.text != "and";
    case Type::Operator: return token.text == "[" || token.text == "{";
    default: return false;
  }
}

}  // namespace

int ExpressionParser::height_of(const CallArguments& arguments) const {
  int height = std::max(arguments.star ? arguments.star->height : 0, arguments.double_star ? arguments.double_star->height : 0);
  for (const auto& argument : arguments.positional) height = std::max(height, argument->height);
  for (const auto& argument : arguments.keyword) height = std::max(height, argument.second->height);
  return height;
}

ExpressionPtr ExpressionParser::parse_postfix(ExpressionPtr subject) {
  for (;;) {
    if (current().is_operator(".") || current().is_operator("[")) {
      subject = parse_subscript(std::move(subject));
    } else if (current().is_operator("(")) {
      subject = parse_call(std::move(subject));
    } else {
      return subject;
    }
  }
}

ExpressionPtr ExpressionParser::parse_filter_chain(ExpressionPtr subject) {
  for (;;) {
    if (current().is_operator("|")) {
      subject = parse_filters(std::move(subject));
    } else if (current().is_name("is")) {
      subject = parse_test(std::move(subject));
    } else if (current().is_operator("(")) {
      subject = parse_call(std::move(subject));
    } else {
      return subject;
    }
  }
}

ExpressionPtr ExpressionParser::parse_subscript(ExpressionPtr subject) {
  const Token opening = take();
  const Expression* child = subject.get();
  if (opening.text == ".") {
    const Token name = take();
    if (name.type == Type::Name) return make(opening.line, AttributeNode{std::move(subject), name.text}, {child});
    if (name.type != Type::IntegerLiteral) fail("expected name or number", name.line);
    ExpressionPtr key = parse_number(name);
    return make(opening.line, ItemNode{std::move(subject), std::move(key)}, {child});
  }
  ExpressionPtr start;
  if (!current().is_operator(":")) start = parse_expression();
  if (!current().is_operator(":")) {
    expect_operator("]");
    const Expression* key = start.get();
    return make(opening.line, ItemNode{std::move(subject), std::move(start)}, {child, key});
  }
  take();
  ExpressionPtr stop, step;
  if (!current().is_operator(":") && !current().is_operator("]")) stop = parse_expression();
  if (skip_operator(":") && !current().is_operator("]")) step = parse_expression();
  expect_operator("]");
  const Expression *a = start.get(), *b = stop.get(), *c = step.get();
  return make(opening.line, SliceNode{std::move(subject), std::move(start), std::move(stop), std::move(step)}, {child, a, b, c});
}

CallArguments ExpressionParser::parse_arguments() {
  const int line = current().line;
  CallArguments result;
  const auto require = [&](bool allowed) {
    if (!allowed) fail("invalid syntax for function call expression", line);
  };
  expect_operator("(");
  for (bool first = true; !current().is_operator(")"); first = false) {
    if (!first) {
      expect_operator(",");
      if (current().is_operator(")")) break;
    }
    if (skip_operator("*")) {
      require(!result.star && !result.double_star);
      result.star = parse_expression();
    } else if (skip_operator("**")) {
      require(!result.double_star);
      result.double_star = parse_expression();
    } else if (current().type == Type::Name && next_token().is_operator("=")) {
      require(!result.double_star);
      std::string name = take().text;
      take();
      result.keyword.emplace_back(std::move(name), parse_expression());
    } else {
      require(!result.star && !result.double_star && result.keyword.empty());
      result.positional.push_back(parse_expression());
    }
  }
  expect_operator(")");
  return result;
}

ExpressionPtr ExpressionParser::parse_call(ExpressionPtr callee) {
  const int line = current().line;
  CallArguments arguments = parse_arguments();
  const int height = std::max(callee->height, height_of(arguments));
  ExpressionPtr call = make(line, CallNode{std::move(callee), std::move(arguments)});
  call->height = height + 1;
  if (height >= kMaxHeight) fail("an expression is nested or chained over " + std::to_string(kMaxHeight) + " deep", line);
  return call;
}

std::string ExpressionParser::parse_dotted_name() {
  std::string name = expect(Type::Name).text;
  while (skip_operator(".")) name += "." + expect(Type::Name).text;
  return name;
}

ExpressionPtr ExpressionParser::parse_filters(ExpressionPtr subject, bool named) {
  while (named || current().is_operator("|")) {
    if (!named) take();
    named = false;
    const int line = current().line;
    std::string name = parse_dotted_name();
    CallArguments arguments;
    if (current().is_operator("(")) arguments = parse_arguments();
    const Filter* filter = find_filter(name);
    if (!filter) unknown_.push_back({"No filter named " + string_repr(name) + ".", line, true});
    const int height = std::max(subject ? subject->height : 0, height_of(arguments));
    if (height >= kMaxHeight) fail("an expression is nested or chained over " + std::to_string(kMaxHeight) + " deep", line);
    subject = make(line, FilterNode{std::move(subject), std::move(name), filter, std::move(arguments)});
    subject->height = height + 1;
  }
  return subject;
}

ExpressionPtr ExpressionParser::parse_test(ExpressionPtr subject) {
  const int line = take().line;
  const bool negated = skip_name("not");
  std::string name = parse_dotted_name();
  CallArguments arguments;
  if (current().is_operator("(")) {
    arguments = parse_arguments();
  } else if (starts_test_argument(current())) {
    if (current().is_name("is")) fail("You cannot chain multiple tests with is");
    arguments.positional.push_back(parse_postfix(parse_primary()));
  }
  const Test* test = find_test(name);
  if (!test) unknown_.push_back({"No test named " + string_repr(name) + ".", line, true});
  const int height = std::max(subject->height, height_of(arguments));
  if (height + 1 >= kMaxHeight) fail("an expression is nested or chained over " + std::to_string(kMaxHeight) + " deep", line);
  ExpressionPtr result = make(line, TestNode{std::move(subject), std::move(name), test, std::move(arguments)});
  result->height = height + 1;
  if (!negated) return result;
  const Expression* child = result.get();
  return make(line, UnaryNode{UnaryOperator::Not, std::move(result)}, {child});
}

}  // namespace lockstep::text::jinja
