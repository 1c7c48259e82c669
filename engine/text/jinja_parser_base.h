#pragma once

#include <algorithm>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/text/jinja_ast.h"
#include "engine/text/jinja_lexer.h"

namespace lockstep::text::jinja {

/// The tokens and the expressions of a template; statements are built on top (jinja_parser.cpp).
class ExpressionParser {
 public:
  ExpressionParser(Heap& heap, std::string_view source) : heap_(heap), tokens_(tokenize(source)) {}

 protected:
  /// How deep brackets, signs and blocks may nest in the source.
  static constexpr int kMaxNesting = 250;

  class Nesting {
   public:
    explicit Nesting(ExpressionParser& parser) : parser_(parser) {
      if (++parser_.nesting_ > kMaxNesting) parser_.fail("the template nests over " + std::to_string(kMaxNesting) + " deep");
    }
    ~Nesting() { --parser_.nesting_; }
    Nesting(const Nesting&) = delete;
    Nesting& operator=(const Nesting&) = delete;

   private:
    ExpressionParser& parser_;
  };

  /// A filter or test that does not exist: an error of the whole template, unless it stands in a branch that may not be taken.
  struct Unknown {
    std::string message;
    int line;
    bool in_branch;
  };

  [[noreturn]] void fail(const std::string& message, int line = 0) const;

  const Token& current() const;
  const Token& next_token() const { return tokens_[std::min(position_ + 1, tokens_.size() - 1)]; }
  Token take();
  bool skip_name(std::string_view name);
  bool skip_operator(std::string_view symbol);
  void expect_operator(std::string_view symbol);
  Token expect(Token::Type type);
  void expect_name(std::string_view name);

  ExpressionPtr parse_expression(bool with_condition = true);
  ExpressionPtr parse_tuple(bool with_condition = true, std::string_view end_name = {}, bool parenthesised = false);
  ExpressionPtr parse_target(std::string_view end_name = {}, bool with_namespace = false);
  std::string parse_target_name();
  /// Filters from a '|' on; `named`: the first one's '|' is left out.
  ExpressionPtr parse_filters(ExpressionPtr subject, bool named = false);

  /// The unknown filters since `mark` stand in a branch (`for` bodies and macros count as sure to run).
  void forget_unknown_of_branch(std::size_t mark);
  void make_unknown_sure(std::size_t mark);

  Heap& heap_;
  std::vector<Unknown> unknown_;
  std::vector<MacroDefinition*> macros_;  // that enclose this place

 private:
  template <class Node>
  ExpressionPtr make(int line, Node node, std::initializer_list<const Expression*> children = {});
  ExpressionPtr make_list(int line, std::vector<ExpressionPtr> items, bool is_tuple);
  int height_of(const CallArguments& arguments) const;
  bool at_tuple_end(std::string_view end_name) const;
  void check_target(const Expression& target) const;

  ExpressionPtr parse_binary(std::size_t level);
  ExpressionPtr parse_condition();
  ExpressionPtr parse_not();
  ExpressionPtr parse_comparison();
  ExpressionPtr parse_concat();
  ExpressionPtr parse_unary(bool with_filters = true);
  ExpressionPtr parse_primary(bool with_namespace = false);
  ExpressionPtr parse_number(const Token& token);
  ExpressionPtr parse_bracketed_list();
  ExpressionPtr parse_dict();
  ExpressionPtr parse_postfix(ExpressionPtr subject);
  ExpressionPtr parse_filter_chain(ExpressionPtr subject);
  ExpressionPtr parse_subscript(ExpressionPtr subject);
  ExpressionPtr parse_call(ExpressionPtr callee);
  ExpressionPtr parse_test(ExpressionPtr subject);
  CallArguments parse_arguments();
  std::string parse_dotted_name();

  std::vector<Token> tokens_;
  std::size_t position_ = 0;
  int nesting_ = 0;
};

template <class Node>
ExpressionPtr ExpressionParser::make(int line, Node node, std::initializer_list<const Expression*> children) {
  int height = 0;
  for (const Expression* child : children) height = std::max(height, child ? child->height : 0);
  if (height >= kMaxHeight) fail("an expression is nested or chained over " + std::to_string(kMaxHeight) + " deep", line);
  return std::make_unique<Expression>(Expression{line, height + 1, std::move(node)});
}

}  // namespace lockstep::text::jinja
