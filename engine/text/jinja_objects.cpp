// Scopes, namespaces, `loop`, macros and bound methods.
#include <algorithm>

#include "engine/text/jinja_interpreter.h"

namespace lockstep::text::jinja {

Value* Scope::find(std::string_view name) {
  const auto found = std::find_if(variables.begin(), variables.end(), [&](const auto& variable) { return variable.first == name; });
  return found == variables.end() ? nullptr : &found->second;
}

void Scope::set(std::string_view name, Value value) {
  if (Value* found = find(name)) {
    *found = std::move(value);
  } else {
    variables.emplace_back(name, std::move(value));
  }
}

std::optional<Value> Namespace::attribute(Interpreter& interpreter, std::string_view name) {
  interpreter.heap().step(1 + attributes.size() / 32);
  const auto found = std::find_if(attributes.begin(), attributes.end(), [&](const auto& entry) { return entry.first == name; });
  return found == attributes.end() ? std::nullopt : std::optional(found->second);
}

void Namespace::set(Interpreter& interpreter, std::string_view name, Value value) {
  interpreter.heap().step(1 + attributes.size() / 32);
  const auto found = std::find_if(attributes.begin(), attributes.end(), [&](const auto& entry) { return entry.first == name; });
  if (found != attributes.end()) {
    found->second = std::move(value);
  } else {
    interpreter.heap().take(sizeof(attributes[0]) + name.size());
    attributes.emplace_back(name, std::move(value));
  }
}

Loop::Loop(const ForStatement& for_statement, SequenceRef loop_items, ScopeRef outer, int loop_depth)
    : statement(for_statement), items(std::move(loop_items)), depth0(loop_depth) {
  depth = container_depth(items->depth);
  if (statement.recursive) outer_scope = std::move(outer);
}

void Loop::clear() {
  changed.reset();
  outer_scope.reset();
}

bool Loop::fetch() {
  while (next_item < items->items.size()) {
    const Value& candidate = items->items[next_item++];
    if (accepts && !accepts(candidate)) continue;
    ahead.push_back(candidate);
    return true;
  }
  return false;
}

const Value* Loop::peek() { return !ahead.empty() || fetch() ? &ahead.front() : nullptr; }

std::size_t Loop::total() {
  if (!statement.condition) return items->items.size();
  while (fetch()) continue;
  return index0 + 1 + ahead.size();
}

bool Loop::advance() {
  if (!peek()) return false;
  previous = std::move(current);
  current = std::move(ahead.front());
  ahead.pop_front();
  if (started) ++index0;
  started = true;
  return true;
}

namespace {

/// loop.cycle and loop.changed.
struct LoopFunction : Object {
  LoopFunction(Value loop_value, bool is_cycle) : loop(std::move(loop_value)), cycles(is_cycle) { depth = container_depth(loop.depth()); }
  std::string type_name() const override { return "method"; }
  bool callable() const override { return true; }

  Value call(Interpreter& interpreter, Arguments& arguments) override {
    Loop& target = static_cast<Loop&>(*loop.object());
    if (cycles) {
      if (arguments.positional.empty()) raise("TypeError", "no items for cycling given");
      return arguments.positional[target.index0 % arguments.positional.size()];
    }
    const auto same = [&](const Value& a, const Value& b) { return equal(interpreter.heap(), a, b); };
    const std::vector<Value>& now = arguments.positional;
    if (target.changed && std::equal(now.begin(), now.end(), target.changed->begin(), target.changed->end(), same)) return Value(false);
    if (!target.changed) interpreter.adopt(*loop.object_ref());
    target.changed = now;
    return Value(true);
  }

  Value loop;
  bool cycles;
};

}  // namespace

std::optional<Value> Loop::attribute(Interpreter& interpreter, std::string_view name) {
  Heap& heap = interpreter.heap();
  if (name == "index") return Value::integer(index0 + 1);
  if (name == "index0") return Value::integer(index0);
  if (name == "first") return Value(index0 == 0);
  if (name == "last") return Value(peek() == nullptr);
  if (name == "length") return Value::integer(total());
  if (name == "revindex") return Value::integer(total() - index0);
  if (name == "revindex0") return Value::integer(total() - index0 - 1);
  if (name == "depth") return Value(static_cast<Integer>(depth0 + 1));
  if (name == "depth0") return Value(static_cast<Integer>(depth0));
  if (name == "previtem") return index0 > 0 ? previous : make_undefined(heap, "there is no previous item");
  if (name == "nextitem") {
    const Value* next = peek();
    return next ? *next : make_undefined(heap, "there is no next item");
  }
  if (name == "cycle" || name == "changed") {
    return Value(ObjectRef(std::make_shared<LoopFunction>(Value(ObjectRef(shared_from_this())), name == "cycle")));
  }
  return std::nullopt;
}

Value Loop::call(Interpreter& interpreter, Arguments& arguments) {
  if (arguments.positional.size() != 1 || !arguments.keyword.empty()) raise("TypeError", "loop() takes one argument, what to loop over");
  return interpreter.call_loop(*this, arguments.positional[0]);
}

std::optional<Value> Macro::attribute(Interpreter& interpreter, std::string_view name) {
  Heap& heap = interpreter.heap();
  if (name == "name") return make_string(heap, definition.name);
  if (name == "catch_varargs") return Value(definition.uses_varargs);
  if (name == "catch_kwargs") return Value(definition.uses_kwargs);
  if (name == "caller") return Value(definition.uses_caller);
  if (name != "arguments") return std::nullopt;
  std::vector<Value> names;
  for (const std::string& parameter : definition.parameters) names.push_back(make_string(heap, parameter));
  return make_sequence(heap, std::move(names), Sequence::Kind::Tuple);
}

Value Macro::call(Interpreter& interpreter, Arguments& arguments) { return interpreter.call_macro(*this, arguments); }

BoundMethod::BoundMethod(Heap& heap, const Method& bound_method, Value bound_subject)
    : method(bound_method), subject(std::move(bound_subject)), charge(heap, sizeof(BoundMethod)) {
  depth = container_depth(subject.depth());
}

Value BoundMethod::call(Interpreter& interpreter, Arguments& arguments) { return interpreter.apply_filter(method, subject, arguments); }

}  // namespace lockstep::text::jinja
