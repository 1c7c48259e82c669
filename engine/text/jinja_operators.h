#pragma once

#include "engine/text/jinja_ast.h"

namespace lockstep::text::jinja {

/// Python's arithmetic. @throws TypeError, ZeroDivisionError, OverflowError (beyond 127 bits), UndefinedError.
Value arithmetic(Interpreter& interpreter, BinaryOperator symbol, const Value& left, const Value& right);
Value negative(const Value& operand);
Value positive(const Value& operand);
bool compare(Interpreter& interpreter, ComparisonOperator symbol, const Value& left, const Value& right);
bool contains(Interpreter& interpreter, const Value& container, const Value& item);

/// The places of a Python slice over `size` elements: `count` of them from `start`, `step` apart.
struct SlicePlaces {
  std::size_t start, count;
  std::ptrdiff_t step;
};
Value slice(Heap& heap, const Value& subject, const Value& start, const Value& stop, const Value& step);

}  // namespace lockstep::text::jinja
