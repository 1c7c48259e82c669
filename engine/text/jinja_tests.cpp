// What stands after `is`.
#include <algorithm>
#include <cmath>

#include "engine/text/jinja_interpreter.h"
#include "engine/text/jinja_operators.h"
#include "engine/text/jinja_unicode.h"

namespace lockstep::text::jinja {

namespace {

bool defined(Interpreter&, const Value& subject, Bound&) { return !subject.undefined(); }
bool undefined(Interpreter&, const Value& subject, Bound&) { return subject.undefined() != nullptr; }
bool none(Interpreter&, const Value& subject, Bound&) { return subject.is_none(); }
bool boolean(Interpreter&, const Value& subject, Bound&) { return subject.boolean() != nullptr; }
bool is_true(Interpreter&, const Value& subject, Bound&) { return subject.boolean() && *subject.boolean(); }
bool is_false(Interpreter&, const Value& subject, Bound&) { return subject.boolean() && !*subject.boolean(); }
bool integer(Interpreter&, const Value& subject, Bound&) { return subject.as_integer() && !subject.boolean(); }
bool floating(Interpreter&, const Value& subject, Bound&) { return subject.floating() != nullptr; }
bool number(Interpreter&, const Value& subject, Bound&) { return subject.is_number(); }
bool string(Interpreter&, const Value& subject, Bound&) { return subject.string() != nullptr; }
bool mapping(Interpreter&, const Value& subject, Bound&) { return subject.dict() != nullptr; }
bool iterable(Interpreter&, const Value& subject, Bound&) {
  return subject.string() || subject.dict() || subject.sequence() || subject.undefined();
}
bool callable(Interpreter&, const Value& subject, Bound&) {
  return subject.undefined() || (subject.object() && subject.object()->callable());
}
bool escaped(Interpreter&, const Value& subject, Bound&) { return subject.string() && subject.string()->markup; }

bool sequence(Interpreter&, const Value& subject, Bound&) {
  return subject.string() || subject.dict() || subject.undefined() || (subject.sequence() && subject.sequence()->is_subscriptable());
}

bool has_case(Interpreter& in, const Value& subject, bool wants_upper) {
  Arguments none_given;
  const Value text = make_string(in.heap(), to_text(in.heap(), subject));
  return truthy(in.apply_filter(*find_string_method(wants_upper ? "isupper" : "islower"), text, none_given));
}

bool is_lower_text(Interpreter& in, const Value& subject, Bound&) { return has_case(in, subject, false); }
bool is_upper_text(Interpreter& in, const Value& subject, Bound&) { return has_case(in, subject, true); }

bool divisible(Interpreter& in, const Value& subject, const Value& divisor, Integer rest) {
  return equal(in.heap(), arithmetic(in, BinaryOperator::Modulo, subject, divisor), Value(rest));
}

bool even(Interpreter& in, const Value& subject, Bound&) { return divisible(in, subject, Value(Integer{2}), 0); }
bool odd(Interpreter& in, const Value& subject, Bound&) { return divisible(in, subject, Value(Integer{2}), 1); }
bool divisible_by(Interpreter& in, const Value& subject, Bound& arguments) { return divisible(in, subject, arguments.at(0), 0); }

bool same_as(Interpreter& in, const Value& subject, Bound& arguments) {
  const Value& other = arguments.at(0);
  if (subject.sequence() || other.sequence()) return subject.sequence() == other.sequence();
  if (subject.dict() || other.dict()) return subject.dict() == other.dict();
  return type_name(subject) == type_name(other) && equal(in.heap(), subject, other);
}

template <ComparisonOperator symbol>
bool compares(Interpreter& in, const Value& subject, Bound& arguments) {
  return compare(in, symbol, subject, arguments.at(0));
}

bool filter(Interpreter& in, const Value& subject, Bound&) { return find_filter(to_text(in.heap(), subject)) != nullptr; }
bool test(Interpreter& in, const Value& subject, Bound&) { return find_test(to_text(in.heap(), subject)) != nullptr; }

using enum ComparisonOperator;

constexpr Test kTests[] = {{"defined", defined},
                           {"undefined", undefined},
                           {"none", none},
                           {"boolean", boolean},
                           {"true", is_true},
                           {"false", is_false},
                           {"integer", integer},
                           {"float", floating},
                           {"number", number},
                           {"string", string},
                           {"mapping", mapping},
                           {"iterable", iterable},
                           {"sequence", sequence},
                           {"callable", callable},
                           {"escaped", escaped},
                           {"lower", is_lower_text},
                           {"upper", is_upper_text},
                           {"even", even},
                           {"odd", odd},
                           {"divisibleby", divisible_by, "num", 1},
                           {"sameas", same_as, "other", 1},
                           {"filter", filter},
                           {"test", test},
                           {"in", compares<In>, "seq", 1},
                           {"==", compares<Equal>, "other", 1},
                           {"eq", compares<Equal>, "other", 1},
                           {"equalto", compares<Equal>, "other", 1},
                           {"!=", compares<NotEqual>, "other", 1},
                           {"ne", compares<NotEqual>, "other", 1},
                           {"<", compares<Less>, "other", 1},
                           {"lt", compares<Less>, "other", 1},
                           {"lessthan", compares<Less>, "other", 1},
                           {"<=", compares<LessEqual>, "other", 1},
                           {"le", compares<LessEqual>, "other", 1},
                           {">", compares<Greater>, "other", 1},
                           {"gt", compares<Greater>, "other", 1},
                           {"greaterthan", compares<Greater>, "other", 1},
                           {">=", compares<GreaterEqual>, "other", 1},
                           {"ge", compares<GreaterEqual>, "other", 1}};

}  // namespace

const Test* find_test(std::string_view name) {
  const auto found = std::find_if(std::begin(kTests), std::end(kTests), [&](const Test& candidate) { return candidate.name == name; });
  return found == std::end(kTests) ? nullptr : found;
}

}  // namespace lockstep::text::jinja
