#include "engine/text/jinja_operators.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "engine/text/jinja_builtins.h"
#include "engine/text/jinja_interpreter.h"
#include "engine/text/jinja_unicode.h"

namespace lockstep::text::jinja {

namespace {

__extension__ typedef unsigned __int128 Magnitude;

constexpr Integer kMaximum = static_cast<Integer>(~static_cast<Magnitude>(0) >> 1);  // the minimum is left out: -kMaximum is the least

[[noreturn]] void fail_overflow() { raise("OverflowError", "an integer is too large (this interpreter has 127 bits)"); }

Magnitude magnitude(Integer number) { return number < 0 ? -static_cast<Magnitude>(number) : static_cast<Magnitude>(number); }

Integer with_sign(Magnitude size, bool is_negative) {
  if (size > static_cast<Magnitude>(kMaximum)) fail_overflow();
  return is_negative ? -static_cast<Integer>(size) : static_cast<Integer>(size);
}

Integer add(Integer a, Integer b) {
  if (b > 0 ? a > kMaximum - b : a < -kMaximum - b) fail_overflow();
  return a + b;
}

Integer multiply(Integer a, Integer b) {
  const Magnitude x = magnitude(a), y = magnitude(b);
  if (x != 0 && y > static_cast<Magnitude>(kMaximum) / x) fail_overflow();
  return with_sign(x * y, (a < 0) != (b < 0));
}

Integer floor_divide(Integer a, Integer b) {
  const Integer quotient = a / b;
  return a % b != 0 && (a < 0) != (b < 0) ? quotient - 1 : quotient;
}

Integer modulo(Integer a, Integer b) {
  const Integer rest = a % b;
  return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}

double modulo(double a, double b) {
  const double rest = std::fmod(a, b);
  return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest == 0 ? std::copysign(0.0, b) : rest;
}

Integer power(Integer base, Integer exponent) {
  if (base == 0 || base == 1) return exponent == 0 ? 1 : base;
  if (base == -1) return exponent % 2 == 0 ? 1 : -1;
  Integer result = 1;
  for (; exponent > 0; exponent /= 2) {  // at most 127 doublings before it overflows
    if (exponent % 2 == 1) result = multiply(result, base);
    if (exponent > 1) base = multiply(base, base);
  }
  return result;
}

double power(double base, double exponent) {
  if (base == 0 && exponent < 0) raise("ZeroDivisionError", "0.0 cannot be raised to a negative power");
  if (base < 0 && std::isfinite(base) && std::isfinite(exponent) && exponent != std::floor(exponent)) {
    raise("TypeError", "a negative number to a fractional power is complex, which is not supported");
  }
  const double result = std::pow(base, exponent);
  if (std::isinf(result) && std::isfinite(base) && std::isfinite(exponent)) raise("OverflowError", "(34, 'Numerical result out of range')");
  return result;
}

const char* symbol_text(BinaryOperator symbol) {
  switch (symbol) {
    case BinaryOperator::Add: return "+";
    case BinaryOperator::Subtract: return "-";
    case BinaryOperator::Multiply: return "*";
    case BinaryOperator::Divide: return "/";
    case BinaryOperator::FloorDivide: return "//";
    case BinaryOperator::Modulo: return "%";
    default: return "** or pow()";
  }
}

Value of_integers(BinaryOperator symbol, Integer a, Integer b) {
  const bool divides = symbol == BinaryOperator::Divide || symbol == BinaryOperator::FloorDivide || symbol == BinaryOperator::Modulo;
  if (divides && b == 0) {
    raise("ZeroDivisionError", symbol == BinaryOperator::Divide        ? "division by zero"
                               : symbol == BinaryOperator::FloorDivide ? "integer division or modulo by zero"
                                                                       : "integer modulo by zero");
  }
  switch (symbol) {
    case BinaryOperator::Add: return Value(add(a, b));
    case BinaryOperator::Subtract: return Value(add(a, -b));
    case BinaryOperator::Multiply: return Value(multiply(a, b));
    case BinaryOperator::Divide: return Value(static_cast<double>(a) / static_cast<double>(b));
    case BinaryOperator::FloorDivide: return Value(floor_divide(a, b));
    case BinaryOperator::Modulo: return Value(modulo(a, b));
    default: return b < 0 ? Value(power(static_cast<double>(a), static_cast<double>(b))) : Value(power(a, b));
  }
}

Value of_floats(BinaryOperator symbol, double a, double b) {
  const bool divides = symbol == BinaryOperator::Divide || symbol == BinaryOperator::FloorDivide || symbol == BinaryOperator::Modulo;
  if (divides && b == 0) {
    raise("ZeroDivisionError", symbol == BinaryOperator::Divide        ? "float division by zero"
                               : symbol == BinaryOperator::FloorDivide ? "float floor division by zero"
                                                                       : "float modulo");
  }
  switch (symbol) {
    case BinaryOperator::Add: return Value(a + b);
    case BinaryOperator::Subtract: return Value(a - b);
    case BinaryOperator::Multiply: return Value(a * b);
    case BinaryOperator::Divide: return Value(a / b);
    case BinaryOperator::FloorDivide: return Value(std::floor((a - modulo(a, b)) / b + 0.5));
    case BinaryOperator::Modulo: return Value(modulo(a, b));
    default: return Value(power(a, b));
  }
}

bool is_row(const Value& value) {
  return value.sequence() && (value.sequence()->kind == Sequence::Kind::List || value.sequence()->is_tuple());
}

Value concatenate(Heap& heap, const Value& left, const Value& right) {
  const auto refuse = [&] {
    raise("TypeError", "can only concatenate " + type_name(left) + " (not \"" + type_name(right) + "\") to " + type_name(left));
  };
  if (const String* a = left.string(), *b = right.string(); a) {
    if (!b) refuse();
    heap.check_string(a->text.size() + b->text.size());
    if (a->markup != b->markup) {
      return make_string(heap, a->markup ? a->text + escape_html(b->text) : escape_html(a->text) + b->text, true);
    }
    return make_string(heap, a->text + b->text, a->markup);
  }
  const Sequence *a = left.sequence(), *b = right.sequence();
  if (!is_row(right) || a->is_tuple() != b->is_tuple()) refuse();
  heap.step(a->items.size() + b->items.size());
  heap.check_elements(a->items.size() + b->items.size(), sizeof(Value));
  std::vector<Value> items = a->items;
  items.insert(items.end(), b->items.begin(), b->items.end());
  return make_sequence(heap, std::move(items), a->is_tuple() ? Sequence::Kind::Tuple : Sequence::Kind::List);
}

Value repeat(Heap& heap, const Value& subject, Integer count) {
  const std::size_t times = count <= 0 ? 0 : count > (1 << 30) ? std::size_t{1} << 30 : static_cast<std::size_t>(count);
  if (const String* string = subject.string()) {
    if (string->text.empty()) return subject;
    heap.check_string(string->text.size() * times);
    heap.step(string->text.size() * times / 256);
    std::string text;
    text.reserve(string->text.size() * times);
    for (std::size_t i = 0; i < times; ++i) text += string->text;
    return make_string(heap, std::move(text), string->markup);
  }
  const Sequence& sequence = *subject.sequence();
  if (sequence.items.empty()) return subject;
  heap.check_elements(sequence.items.size() * times, sizeof(Value));
  heap.step(sequence.items.size() * times);
  std::vector<Value> items;
  items.reserve(sequence.items.size() * times);
  for (std::size_t i = 0; i < times; ++i) items.insert(items.end(), sequence.items.begin(), sequence.items.end());
  return make_sequence(heap, std::move(items), sequence.is_tuple() ? Sequence::Kind::Tuple : Sequence::Kind::List);
}

Value multiply_row(Heap& heap, const Value& row, const Value& count) {
  const auto integer = count.as_integer();
  if (!integer) raise("TypeError", "can't multiply sequence by non-int of type '" + type_name(count) + "'");
  return repeat(heap, row, *integer);
}

std::optional<Integer> slice_bound(const Value& value) {
  if (value.is_none()) return std::nullopt;
  if (const auto integer = value.as_integer()) return integer;
  raise("TypeError", "slice indices must be integers or None or have an __index__ method");
}

SlicePlaces places(std::size_t size, const Value& start, const Value& stop, const Value& step) {
  const Integer length = static_cast<Integer>(size);
  const Integer stride = std::clamp<Integer>(slice_bound(step).value_or(1), -length - 1, length + 1);
  if (slice_bound(step).value_or(1) == 0) raise("ValueError", "slice step cannot be zero");
  const bool backwards = stride < 0;
  const auto place = [&](const Value& bound, Integer otherwise) {
    const auto given = slice_bound(bound);
    if (!given) return otherwise;
    const Integer absolute = *given < 0 ? *given + length : *given;
    return backwards ? std::clamp<Integer>(absolute, -1, length - 1) : std::clamp<Integer>(absolute, 0, length);
  };
  const Integer first = place(start, backwards ? length - 1 : 0);
  const Integer end = place(stop, backwards ? -1 : length);
  const Integer distance = backwards ? first - end : end - first;
  const Integer count = distance <= 0 ? 0 : (distance - 1) / (backwards ? -stride : stride) + 1;
  return {static_cast<std::size_t>(std::max<Integer>(first, 0)), static_cast<std::size_t>(count), static_cast<std::ptrdiff_t>(stride)};
}

Value slice_string(Heap& heap, const String& string, const SlicePlaces& where) {
  heap.step(string.text.size() / 256);
  if (where.count == 0) return make_string(heap, {}, string.markup);
  if (where.step == 1) {
    const std::size_t begin = byte_offset(string.text, where.start);
    const std::string_view rest = std::string_view(string.text).substr(begin);
    return make_string(heap, std::string(rest.substr(0, byte_offset(rest, where.count))), string.markup);
  }
  heap.check_elements(string.length, sizeof(std::size_t));
  heap.step(string.length / 16);
  std::vector<std::size_t> offsets;
  offsets.reserve(string.length + 1);
  for (std::size_t position = 0; position < string.text.size(); next_code_point(string.text, position)) offsets.push_back(position);
  offsets.push_back(string.text.size());
  std::string text;
  for (std::size_t i = 0, place = where.start; i < where.count; ++i, place += static_cast<std::size_t>(where.step)) {
    text.append(string.text, offsets[place], offsets[place + 1] - offsets[place]);
  }
  return make_string(heap, std::move(text), string.markup);
}

}  // namespace

Value arithmetic(Interpreter& interpreter, BinaryOperator symbol, const Value& left, const Value& right) {
  Heap& heap = interpreter.heap();
  require_defined(left);
  if (symbol == BinaryOperator::Modulo && left.string()) {
    return make_string(heap, format_percent(interpreter, left.string()->text, right), left.string()->markup);
  }
  require_defined(right);
  const auto a = left.as_integer(), b = right.as_integer();
  if (a && b) return of_integers(symbol, *a, *b);
  if (left.is_number() && right.is_number()) return of_floats(symbol, *left.as_number(), *right.as_number());
  if (symbol == BinaryOperator::Add && (left.string() || is_row(left))) return concatenate(heap, left, right);
  if (symbol == BinaryOperator::Multiply && (left.string() || is_row(left))) return multiply_row(heap, left, right);
  if (symbol == BinaryOperator::Multiply && (right.string() || is_row(right))) return multiply_row(heap, right, left);
  raise("TypeError", std::string("unsupported operand type(s) for ") + symbol_text(symbol) + ": '" + type_name(left) + "' and '" +
                         type_name(right) + "'");
}

Value negative(const Value& operand) {
  require_defined(operand);
  if (const auto integer = operand.as_integer()) return Value(-*integer);
  if (operand.floating()) return Value(-*operand.floating());
  raise("TypeError", "bad operand type for unary -: '" + type_name(operand) + "'");
}

Value positive(const Value& operand) {
  require_defined(operand);
  if (const auto integer = operand.as_integer()) return Value(*integer);
  if (operand.floating()) return operand;
  raise("TypeError", "bad operand type for unary +: '" + type_name(operand) + "'");
}

bool compare(Interpreter& interpreter, ComparisonOperator symbol, const Value& left, const Value& right) {
  Heap& heap = interpreter.heap();
  switch (symbol) {
    case ComparisonOperator::Equal: return equal(heap, left, right);
    case ComparisonOperator::NotEqual: return !equal(heap, left, right);
    case ComparisonOperator::Less: return less(heap, left, right, "<");
    case ComparisonOperator::LessEqual: return less(heap, left, right, "<=") || equal(heap, left, right);
    case ComparisonOperator::Greater: return less(heap, right, left, ">");
    case ComparisonOperator::GreaterEqual: return less(heap, right, left, ">=") || equal(heap, left, right);
    case ComparisonOperator::In: return contains(interpreter, right, left);
    case ComparisonOperator::NotIn: return !contains(interpreter, right, left);
  }
  return false;
}

bool contains(Interpreter& interpreter, const Value& container, const Value& item) {
  Heap& heap = interpreter.heap();
  if (const String* string = container.string()) {
    if (!item.string()) raise("TypeError", "'in <string>' requires string as left operand, not " + type_name(item));
    heap.step(string->text.size() / 256);
    return string->text.find(item.string()->text) != std::string::npos;
  }
  if (container.dict()) return container.dict()->find(heap, item) != nullptr;
  if (!container.sequence() && !container.undefined())
    raise("TypeError", "argument of type '" + type_name(container) + "' is not iterable");
  const SequenceRef items = interpreter.iterate(container);
  return std::any_of(items->items.begin(), items->items.end(), [&](const Value& candidate) { return equal(heap, candidate, item); });
}

Value slice(Heap& heap, const Value& subject, const Value& start, const Value& stop, const Value& step) {
  require_defined(subject);
  if (const String* string = subject.string()) return slice_string(heap, *string, places(string->length, start, stop, step));
  const Sequence* sequence = subject.sequence();
  if (subject.dict()) raise("TypeError", "unhashable type: 'slice'");
  if (!sequence || !sequence->is_subscriptable()) raise("TypeError", "'" + type_name(subject) + "' object is not subscriptable");
  const SlicePlaces where = places(sequence->items.size(), start, stop, step);
  if (sequence->kind == Sequence::Kind::Range) {
    const Integer stride = static_cast<Integer>(where.step) * sequence->range_step;
    const Integer first = sequence->range_start + static_cast<Integer>(where.start) * sequence->range_step;
    return make_range(heap, first, first + static_cast<Integer>(where.count) * stride, stride);
  }
  heap.step(where.count);
  std::vector<Value> items;
  items.reserve(where.count);
  for (std::size_t i = 0, place = where.start; i < where.count; ++i, place += static_cast<std::size_t>(where.step))
    items.push_back(sequence->items[place]);
  return make_sequence(heap, std::move(items), sequence->is_tuple() ? Sequence::Kind::Tuple : Sequence::Kind::List);
}

}  // namespace lockstep::text::jinja
