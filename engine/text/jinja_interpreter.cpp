// Expressions, attributes and calls.
#include "engine/text/jinja_interpreter.h"

#include <algorithm>
#include <array>

#include "engine/text/jinja_json.h"
#include "engine/text/jinja_nesting.h"
#include "engine/text/jinja_operators.h"
#include "engine/text/jinja_unicode.h"

namespace lockstep::text::jinja {

namespace {

/// What Python would do, and the sandbox does not let a template do.
bool is_unsafe(const Value& subject, std::string_view name) {
  static constexpr std::array<std::string_view, 8> kListMutators = {"append", "clear", "pop",    "reverse",
                                                                    "insert", "sort",  "extend", "remove"};
  static constexpr std::array<std::string_view, 5> kDictMutators = {"clear", "pop", "popitem", "setdefault", "update"};
  const auto among = [&](const auto& names) { return std::find(names.begin(), names.end(), name) != names.end(); };
  if (name.size() > 4 && name.starts_with("__") && name.ends_with("__")) return !subject.dict() || !subject.dict()->find(name);
  if (subject.dict()) return among(kDictMutators);
  return subject.sequence() && subject.sequence()->kind == Sequence::Kind::List && among(kListMutators);
}

SequenceRef as_sequence(Heap& heap, std::vector<Value> items) {
  heap.step(items.size());
  return std::make_shared<const Sequence>(heap, Sequence::Kind::List, std::move(items));
}

}  // namespace

Interpreter::Interpreter(const ChatTemplate::Limits& limits, std::int64_t now_unix)
    : heap_(limits.max_steps, limits.max_output_bytes, limits.max_memory_bytes), now_unix_(now_unix) {}

Interpreter::~Interpreter() {
  scope_.reset();
  for (const ObjectRef& object : adopted_) object->clear();  // each is still held by the list, so nothing recurses
}

void Interpreter::adopt(ObjectRef object) {
  heap_.take(sizeof(Loop));
  adopted_.push_back(std::move(object));
}

struct Interpreter::Evaluate {
  Interpreter& in;

  Value operator()(const LiteralNode& node) const { return node.value; }
  Value operator()(const NameNode& node) const { return in.lookup(node.name); }
  Value operator()(const NamespaceTargetNode& node) const { return in.attribute(in.lookup(node.name), node.attribute); }

  Value operator()(const ListNode& node) const {
    std::vector<Value> items;
    items.reserve(node.items.size());
    for (const auto& item : node.items) items.push_back(in.evaluate(*item));
    return make_sequence(in.heap_, std::move(items), node.is_tuple ? Sequence::Kind::Tuple : Sequence::Kind::List);
  }

  Value operator()(const DictNode& node) const {
    std::vector<Dict::Item> items;
    items.reserve(node.items.size());
    for (const auto& [key, value] : node.items) {
      Value evaluated_key = in.evaluate(*key);
      items.emplace_back(std::move(evaluated_key), in.evaluate(*value));
    }
    return make_dict(in.heap_, std::move(items));
  }

  Value operator()(const UnaryNode& node) const {
    const Value operand = in.evaluate(*node.operand);
    switch (node.symbol) {
      case UnaryOperator::Not: return Value(!truthy(operand));
      case UnaryOperator::Negative: return negative(operand);
      default: return positive(operand);
    }
  }

  Value operator()(const BinaryNode& node) const {
    Value left = in.evaluate(*node.left);
    if (node.symbol == BinaryOperator::And) return truthy(left) ? in.evaluate(*node.right) : left;
    if (node.symbol == BinaryOperator::Or) return truthy(left) ? left : in.evaluate(*node.right);
    return arithmetic(in, node.symbol, left, in.evaluate(*node.right));
  }

  Value operator()(const ComparisonNode& node) const {
    Value left = in.evaluate(*node.first);
    for (const auto& [symbol, operand] : node.rest) {
      Value right = in.evaluate(*operand);
      if (!compare(in, symbol, left, right)) return Value(false);
      left = std::move(right);
    }
    return Value(true);
  }

  Value operator()(const ConcatNode& node) const {
    TextBuilder text(in.heap_);
    for (const auto& item : node.items) text.append(to_text(in.heap_, in.evaluate(*item)));
    return make_string(in.heap_, text.take());
  }

  Value operator()(const ConditionalNode& node) const {
    if (truthy(in.evaluate(*node.condition))) return in.evaluate(*node.yes);
    if (node.no) return in.evaluate(*node.no);
    return make_undefined(in.heap_, "the inline if-expression on line " + std::to_string(node.condition->line) +
                                        " evaluated to false and no else section was defined.");
  }

  Value operator()(const AttributeNode& node) const { return in.attribute(in.evaluate(*node.subject), node.name); }

  Value operator()(const ItemNode& node) const {
    const Value subject = in.evaluate(*node.subject);
    return in.item(subject, in.evaluate(*node.key));
  }

  Value operator()(const SliceNode& node) const {
    const Value subject = in.evaluate(*node.subject);
    const Value start = in.evaluate_optional(node.start), stop = in.evaluate_optional(node.stop), step = in.evaluate_optional(node.step);
    return slice(in.heap_, subject, start, stop, step);
  }

  Value operator()(const CallNode& node) const {
    const Value callee = in.evaluate(*node.callee);
    Arguments arguments = in.evaluate_arguments(node.arguments);
    return in.call(callee, arguments);
  }

  Value operator()(const FilterNode& node) const { return in.filtered(node, node.subject ? in.evaluate(*node.subject) : Value()); }

  Value operator()(const TestNode& node) const {
    if (!node.test) raise("TemplateRuntimeError", "No test named " + string_repr(node.name) + " found.");
    const Value subject = in.evaluate(*node.subject);
    Arguments arguments = in.evaluate_arguments(node.arguments);
    return Value(in.apply_test(*node.test, subject, arguments));
  }
};

Value Interpreter::evaluate(const Expression& expression) {
  const Nesting nesting(*this);
  heap_.step();
  Value value = std::visit(Evaluate{*this}, expression.node);
  line_ = expression.line;
  return value;
}

Value Interpreter::filtered(const FilterNode& node, const Value& subject) {
  if (!node.filter) raise("TemplateRuntimeError", "No filter named " + string_repr(node.name) + " found.");
  Arguments arguments = evaluate_arguments(node.arguments);
  return apply_filter(*node.filter, subject, arguments);
}

Arguments Interpreter::evaluate_arguments(const CallArguments& nodes) {
  Arguments arguments;
  for (const auto& node : nodes.positional) arguments.positional.push_back(evaluate(*node));
  for (const auto& [name, node] : nodes.keyword) arguments.keyword.emplace_back(name, evaluate(*node));
  if (nodes.star) {
    const SequenceRef more = iterate(evaluate(*nodes.star));
    heap_.step(more->items.size());
    arguments.positional.insert(arguments.positional.end(), more->items.begin(), more->items.end());
  }
  if (nodes.double_star) {
    const Value more = evaluate(*nodes.double_star);
    if (!more.dict()) raise("TypeError", "argument after ** must be a mapping, not " + type_name(more));
    heap_.step(more.dict()->items.size());
    for (const auto& [key, value] : more.dict()->items) {
      if (!key.string()) raise("TypeError", "keywords must be strings");
      arguments.keyword.emplace_back(key.string()->text, value);
    }
  }
  return arguments;
}

Value Interpreter::lookup(std::string_view name) {
  for (Scope* scope = scope_.get(); scope; scope = scope->parent.get()) {
    heap_.step(1 + scope->variables.size() / 32);
    if (const Value* found = scope->find(name)) return *found;
  }
  if (auto global = find_global(heap_, name)) return *global;
  return undefined_name(heap_, name);
}

SequenceRef Interpreter::iterate(const Value& value) {
  if (const SequenceRef* sequence = value.sequence_ref()) {
    if ((*sequence)->kind != Sequence::Kind::Generator) return *sequence;
    const Sequence& generator = **sequence;
    const std::size_t from = std::exchange(generator.next, generator.items.size());
    if (from == 0) return *sequence;
    return as_sequence(heap_, {generator.items.begin() + static_cast<std::ptrdiff_t>(from), generator.items.end()});
  }
  std::vector<Value> items;
  if (const Dict* dict = value.dict()) {
    heap_.check_elements(dict->items.size(), sizeof(Value));
    for (const auto& item : dict->items) items.push_back(item.first);
  } else if (const String* string = value.string()) {
    heap_.check_elements(string->length, sizeof(Value) + sizeof(String));
    heap_.step(string->length);
    for (std::size_t position = 0; position < string->text.size();) {
      const std::size_t start = position;
      next_code_point(string->text, position);
      items.push_back(make_string(heap_, string->text.substr(start, position - start), string->markup));
    }
  } else if (!value.undefined()) {
    raise("TypeError", "'" + type_name(value) + "' object is not iterable");
  }
  return as_sequence(heap_, std::move(items));
}

std::optional<Value> Interpreter::builtin_attribute(const Value& subject, std::string_view name) {
  if (Object* object = subject.object()) return object->attribute(*this, name);
  const Method* method = nullptr;
  if (subject.string()) method = find_string_method(name);
  if (subject.dict()) method = find_dict_method(name);
  if (const Sequence* sequence = subject.sequence()) {
    if (sequence->is_subscriptable()) method = find_sequence_method(name);
    if (sequence->kind == Sequence::Kind::Group && name == "grouper") return sequence->items[0];
    if (sequence->kind == Sequence::Kind::Group && name == "list") return sequence->items[1];
  }
  if (!method) return std::nullopt;
  return Value(ObjectRef(std::make_shared<BoundMethod>(heap_, *method, subject)));
}

std::optional<Value> Interpreter::subscript(const Value& subject, const Value& key) {
  if (const Dict* dict = subject.dict()) {
    if (key.dict() || (key.sequence() && key.sequence()->kind == Sequence::Kind::List)) return std::nullopt;
    const Value* found = dict->find(heap_, key);
    return found ? std::optional(*found) : std::nullopt;
  }
  const auto place = key.as_integer();
  if (!place) return std::nullopt;
  const auto resolve = [&](std::size_t size) -> std::optional<std::size_t> {
    const Integer absolute = *place < 0 ? *place + static_cast<Integer>(size) : *place;
    if (absolute < 0 || absolute >= static_cast<Integer>(size)) return std::nullopt;
    return static_cast<std::size_t>(absolute);
  };
  if (const String* string = subject.string()) {
    const auto found = resolve(string->length);
    if (!found) return std::nullopt;
    heap_.step(string->length == string->text.size() ? 0 : *found / 256);
    const std::size_t begin = string->length == string->text.size() ? *found : byte_offset(string->text, *found);
    std::size_t end = begin;
    next_code_point(string->text, end);
    return make_string(heap_, string->text.substr(begin, end - begin), string->markup);
  }
  if (const Sequence* sequence = subject.sequence(); sequence && sequence->is_subscriptable()) {
    if (const auto found = resolve(sequence->items.size())) return sequence->items[*found];
  }
  return std::nullopt;
}

Value Interpreter::attribute(const Value& subject, std::string_view name) {
  require_defined(subject);
  const bool unsafe = is_unsafe(subject, name);
  if (!unsafe) {
    if (auto found = builtin_attribute(subject, name)) return *found;
    if (subject.dict()) {
      if (const Value* found = subject.dict()->find(name)) return *found;
    }
    return undefined_element(heap_, subject, make_string(heap_, std::string(name)));
  }
  return make_undefined(heap_, "access to attribute " + string_repr(name) + " of '" + type_name(subject) + "' object is unsafe.",
                        "SecurityError");
}

Value Interpreter::item(const Value& subject, const Value& key) {
  require_defined(subject);
  if (auto found = subscript(subject, key)) return *found;
  if (key.string()) {
    const std::string& name = key.string()->text;
    if (is_unsafe(subject, name)) return attribute(subject, name);
    if (auto found = builtin_attribute(subject, name)) return *found;
  }
  return undefined_element(heap_, subject, key);
}

Value Interpreter::call(const Value& callee, Arguments& arguments) {
  require_defined(callee);
  if (!callee.object()) raise("TypeError", "'" + type_name(callee) + "' object is not callable");
  const Nesting nesting(*this);
  // The call may overwrite what holds the callee.
  const Value held = callee;  // NOLINT(performance-unnecessary-copy-initialization)
  return held.object()->call(*this, arguments);
}

Value Interpreter::apply_filter(const Filter& filter, const Value& subject, Arguments& arguments) {
  const Nesting nesting(*this);
  heap_.step(1 + (subject.string() ? subject.string()->text.size() / 256 : 0));
  Bound bound(filter.name.data(), filter.parameters, filter.required, arguments);
  return filter.function(*this, subject, bound);
}

bool Interpreter::apply_test(const Test& test, const Value& subject, Arguments& arguments) {
  heap_.step(1 + (subject.string() ? subject.string()->text.size() / 256 : 0));
  Bound bound(test.name.data(), test.parameters, test.required, arguments);
  return test.function(*this, subject, bound);
}

}  // namespace lockstep::text::jinja
