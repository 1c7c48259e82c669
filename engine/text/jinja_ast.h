#pragma once

#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "engine/text/jinja_value.h"

namespace lockstep::text::jinja {

struct Filter;
struct Test;
struct Expression;
struct Statement;
using ExpressionPtr = std::unique_ptr<Expression>;
using Body = std::vector<std::unique_ptr<Statement>>;

struct CallArguments {
  std::vector<ExpressionPtr> positional;
  std::vector<std::pair<std::string, ExpressionPtr>> keyword;
  ExpressionPtr star;         // *list, or null
  ExpressionPtr double_star;  // **dict, or null
};

enum class UnaryOperator { Not, Negative, Positive };
enum class BinaryOperator { Add, Subtract, Multiply, Divide, FloorDivide, Modulo, Power, And, Or };
enum class ComparisonOperator { Equal, NotEqual, Less, LessEqual, Greater, GreaterEqual, In, NotIn };

struct LiteralNode {
  Value value;
};
struct NameNode {
  std::string name;
};
struct ListNode {
  std::vector<ExpressionPtr> items;
  bool is_tuple;
};
struct DictNode {
  std::vector<std::pair<ExpressionPtr, ExpressionPtr>> items;
};
struct UnaryNode {
  UnaryOperator symbol;
  ExpressionPtr operand;
};
struct BinaryNode {
  BinaryOperator symbol;
  ExpressionPtr left, right;
};
struct ComparisonNode {
  ExpressionPtr first;
  std::vector<std::pair<ComparisonOperator, ExpressionPtr>> rest;
};
struct ConcatNode {
  std::vector<ExpressionPtr> items;
};
struct ConditionalNode {
  ExpressionPtr condition, yes, no;
};  // no `else`: null
struct AttributeNode {
  ExpressionPtr subject;
  std::string name;
};
struct ItemNode {
  ExpressionPtr subject, key;
};
struct SliceNode {
  ExpressionPtr subject, start, stop, step;
};  // the last three may be null
struct CallNode {
  ExpressionPtr callee;
  CallArguments arguments;
};
struct FilterNode {
  ExpressionPtr subject;
  std::string name;
  const Filter* filter;
  CallArguments arguments;
};  // of a filter block: no subject
struct TestNode {
  ExpressionPtr subject;
  std::string name;
  const Test* test;
  CallArguments arguments;
};
struct NamespaceTargetNode {
  std::string name, attribute;
};  // only on the left of `set`

struct Expression {
  int line;
  int height;  // of the tree below, at most kMaxHeight: no walk over it runs out of stack
  std::variant<LiteralNode, NameNode, ListNode, DictNode, UnaryNode, BinaryNode, ComparisonNode, ConcatNode, ConditionalNode, AttributeNode,
               ItemNode, SliceNode, CallNode, FilterNode, TestNode, NamespaceTargetNode>
      node;
};

/// A macro, or the body of a call block.
struct MacroDefinition {
  std::string name;
  std::vector<std::string> parameters;
  std::vector<ExpressionPtr> defaults;  // of the last parameters
  bool uses_varargs = false, uses_kwargs = false, uses_caller = false;
  Body body;
};

struct TextStatement {
  std::string text;
};
struct OutputStatement {
  ExpressionPtr expression;
};
struct ForStatement {
  ExpressionPtr target, items, condition;
  bool recursive;
  Body body, otherwise;
};
struct IfStatement {
  std::vector<std::pair<ExpressionPtr, Body>> branches;
  Body otherwise;
};
struct SetStatement {
  ExpressionPtr target, value;
};
struct SetBlockStatement {
  ExpressionPtr target, filter;
  Body body;
};
struct MacroStatement {
  MacroDefinition macro;
};
struct CallStatement {
  ExpressionPtr call;
  MacroDefinition caller;
};
struct FilterStatement {
  ExpressionPtr filter;
  Body body;
};
struct WithStatement {
  std::vector<std::pair<ExpressionPtr, ExpressionPtr>> variables;
  Body body;
};
struct GroupStatement {
  Body body;
};  // generation, block: the body in place
struct BreakStatement {};
struct ContinueStatement {};

struct Statement {
  int line;
  std::variant<TextStatement, OutputStatement, ForStatement, IfStatement, SetStatement, SetBlockStatement, MacroStatement, CallStatement,
               FilterStatement, WithStatement, GroupStatement, BreakStatement, ContinueStatement>
      node;
};

constexpr int kMaxHeight = 400;

}  // namespace lockstep::text::jinja
