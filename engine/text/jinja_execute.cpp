// Statements, loops and macros.
#include <algorithm>

#include "engine/text/jinja_interpreter.h"
#include "engine/text/jinja_json.h"
#include "engine/text/jinja_nesting.h"

namespace lockstep::text::jinja {

struct Interpreter::Execute {
  Interpreter& in;

  Flow operator()(const TextStatement& statement) const {
    in.out_->append(statement.text);
    return Flow::Next;
  }

  Flow operator()(const OutputStatement& statement) const {
    const Value value = in.evaluate(*statement.expression);
    if (const String* string = value.string()) {
      in.out_->append(string->text);
    } else {
      in.out_->append(to_text(in.heap_, value));
    }
    return Flow::Next;
  }

  Flow operator()(const ForStatement& statement) const {
    const SequenceRef items = in.iterate(in.evaluate(*statement.items));
    return in.execute_loop(statement, items, in.scope_, 0);
  }

  Flow operator()(const IfStatement& statement) const {
    for (const auto& [condition, body] : statement.branches) {
      if (truthy(in.evaluate(*condition))) return in.execute(body);
    }
    return in.execute(statement.otherwise);
  }

  Flow operator()(const SetStatement& statement) const {
    in.assign(*statement.target, in.evaluate(*statement.value));
    return Flow::Next;
  }

  Flow operator()(const SetBlockStatement& statement) const {
    Capture capture(in);
    const Flow flow = in_new_scope(statement.body);
    in.assign(*statement.target, in.filter_text(statement.filter, make_string(in.heap_, capture.text.take())));
    return flow;
  }

  Flow operator()(const MacroStatement& statement) const {
    in.scope_->set(statement.macro.name, make_macro(statement.macro));
    return Flow::Next;
  }

  Flow operator()(const CallStatement& statement) const {
    const auto& call = std::get<CallNode>(statement.call->node);
    const Value caller = make_macro(statement.caller);
    const Value callee = in.evaluate(*call.callee);
    Arguments arguments = in.evaluate_arguments(call.arguments);
    arguments.keyword.emplace_back("caller", caller);
    in.out_->append(to_text(in.heap_, in.call(callee, arguments)));
    return Flow::Next;
  }

  Flow operator()(const FilterStatement& statement) const {
    Value result;
    Flow flow = Flow::Next;
    {
      Capture capture(in);
      flow = in_new_scope(statement.body);
      result = in.filter_text(statement.filter, make_string(in.heap_, capture.text.take()));
    }
    in.out_->append(to_text(in.heap_, result));
    return flow;
  }

  Flow operator()(const WithStatement& statement) const {
    const auto scope = std::make_shared<Scope>(in.scope_);
    std::vector<Value> values;
    for (const auto& variable : statement.variables) values.push_back(in.evaluate(*variable.second));
    const InScope inner(in, scope);
    for (std::size_t i = 0; i < values.size(); ++i) in.assign(*statement.variables[i].first, std::move(values[i]));
    return in.execute(statement.body);
  }

  Flow operator()(const GroupStatement& statement) const { return in.execute(statement.body); }
  Flow operator()(const BreakStatement&) const { return Flow::Break; }
  Flow operator()(const ContinueStatement&) const { return Flow::Continue; }

  Flow in_new_scope(const Body& body) const {
    const InScope inner(in, std::make_shared<Scope>(in.scope_));
    return in.execute(body);
  }

  Value make_macro(const MacroDefinition& definition) const {
    in.adopt(in.scope_);  // the macro keeps the scope, and the scope may keep the macro
    return Value(ObjectRef(std::make_shared<Macro>(definition, in.scope_)));
  }
};

std::string Interpreter::render(const Body& body, const nlohmann::ordered_json& variables) {
  try {
    if (!variables.is_object() && !variables.is_null()) raise("TypeError", "a template's variables must be an object");
    scope_ = std::make_shared<Scope>(nullptr);
    for (const auto& [name, value] : variables.items()) scope_->variables.emplace_back(name, from_json(heap_, value));
    adopt(scope_);
    Capture capture(*this);
    execute(body);
    return capture.text.take();
  } catch (const TemplateError& error) {
    throw error.line() > 0 ? error : TemplateError(error.kind(), error.message(), line_);
  }
}

Interpreter::Flow Interpreter::execute(const Body& body) {
  const Nesting nesting(*this);
  for (const auto& statement : body) {
    heap_.step();
    line_ = statement->line;
    const Flow flow = std::visit(Execute{*this}, statement->node);
    if (flow != Flow::Next) return flow;
  }
  return Flow::Next;
}

Interpreter::Flow Interpreter::execute_loop(const ForStatement& statement, SequenceRef items, const ScopeRef& outer, int depth0) {
  const auto loop = std::make_shared<Loop>(statement, std::move(items), outer, depth0);
  if (statement.condition) {
    loop->accepts = [this, &statement, &outer](const Value& candidate) {
      const InScope inner(*this, std::make_shared<Scope>(outer));
      assign(*statement.target, candidate);
      return truthy(evaluate(*statement.condition));
    };
  }
  // Whatever way the loop ends, nothing may call the condition afterwards: it refers to this frame.
  struct Closer {
    Loop& loop;
    ~Closer() { loop.accepts = nullptr; }
  } closer{*loop};
  if (statement.recursive) adopt(loop);
  while (loop->advance()) {
    const auto scope = std::make_shared<Scope>(outer);
    const InScope inner(*this, scope);
    scope->set("loop", Value(ObjectRef(loop)));
    assign(*statement.target, loop->current);
    if (execute(statement.body) == Flow::Break) return Flow::Next;
  }
  if (loop->started) return Flow::Next;
  const InScope inner(*this, std::make_shared<Scope>(outer));
  return execute(statement.otherwise);
}

Value Interpreter::call_loop(const Loop& loop, const Value& items) {
  if (!loop.statement.recursive) {
    raise("TypeError", "The loop must have the 'recursive' marker to be called recursively.");
  }
  Capture capture(*this);
  execute_loop(loop.statement, iterate(items), loop.outer_scope, loop.depth0 + 1);
  return make_string(heap_, capture.text.take());
}

Value Interpreter::filter_text(const ExpressionPtr& filter, Value text) {
  if (!filter) return text;
  const auto& node = std::get<FilterNode>(filter->node);
  return filtered(node, node.subject ? filter_text(node.subject, std::move(text)) : text);
}

void Interpreter::assign(const Expression& target, Value value) {
  if (const auto* name = std::get_if<NameNode>(&target.node)) return scope_->set(name->name, std::move(value));
  if (const auto* reference = std::get_if<NamespaceTargetNode>(&target.node)) {
    const Value holder = lookup(reference->name);
    auto* space = dynamic_cast<Namespace*>(holder.object());
    if (!space) raise("TemplateRuntimeError", "cannot assign attribute on non-namespace object");
    return space->set(*this, reference->attribute, std::move(value));
  }
  const auto& targets = std::get<ListNode>(target.node).items;
  if (!value.sequence() && !value.string() && !value.dict() && !value.undefined()) {
    raise("TypeError", "cannot unpack non-iterable " + type_name(value) + " object");
  }
  const SequenceRef items = iterate(value);
  const std::size_t given = items->items.size();
  if (given < targets.size()) {
    raise("ValueError", "not enough values to unpack (expected " + std::to_string(targets.size()) + ", got " + std::to_string(given) + ")");
  }
  if (given > targets.size()) raise("ValueError", "too many values to unpack (expected " + std::to_string(targets.size()) + ")");
  for (std::size_t i = 0; i < given; ++i) assign(*targets[i], items->items[i]);
}

Value Interpreter::call_macro(const Macro& macro, Arguments& arguments) {
  const MacroDefinition& definition = macro.definition;
  const std::string name = string_repr(definition.name);
  const auto scope = std::make_shared<Scope>(macro.scope);
  const std::size_t count = definition.parameters.size();
  const std::size_t positional = std::min(count, arguments.positional.size());
  std::vector<std::optional<Value>> given(count);
  for (std::size_t i = 0; i < positional; ++i) given[i] = arguments.positional[i];
  if (arguments.positional.size() > count && !definition.uses_varargs) {
    raise("TypeError", "macro " + name + " takes not more than " + std::to_string(count) + " argument(s)");
  }
  std::vector<Dict::Item> others;
  Value caller = make_undefined(heap_, "No caller defined");
  for (auto& [key, value] : arguments.keyword) {
    const auto found = std::find(definition.parameters.begin(), definition.parameters.end(), key);
    const auto place = static_cast<std::size_t>(found - definition.parameters.begin());
    if (found != definition.parameters.end() && !given[place]) {
      given[place] = std::move(value);
    } else if (key == "caller" && definition.uses_caller) {
      caller = std::move(value);
    } else if (definition.uses_kwargs) {
      others.emplace_back(make_string(heap_, key), std::move(value));
    } else if (key == "caller") {
      raise("TypeError", "macro " + name + " was invoked with two values for the special caller argument. This is most likely a bug.");
    } else {
      raise("TypeError", "macro " + name + " takes no keyword argument " + string_repr(key));
    }
  }
  const InScope inner(*this, scope);
  if (definition.uses_caller) scope->set("caller", caller);
  if (definition.uses_varargs) {
    std::vector<Value> rest(arguments.positional.begin() + static_cast<std::ptrdiff_t>(positional), arguments.positional.end());
    scope->set("varargs", make_sequence(heap_, std::move(rest), Sequence::Kind::Tuple));
  }
  if (definition.uses_kwargs) scope->set("kwargs", make_dict(heap_, std::move(others)));
  const std::size_t first_default = count - definition.defaults.size();
  for (std::size_t i = 0; i < count; ++i) {
    if (!given[i]) {
      given[i] = i >= first_default ? evaluate(*definition.defaults[i - first_default])
                                    : make_undefined(heap_, "parameter " + string_repr(definition.parameters[i]) + " was not provided");
    }
    scope->set(definition.parameters[i], std::move(*given[i]));
  }
  Capture capture(*this);
  execute(definition.body);
  return make_string(heap_, capture.text.take());
}

}  // namespace lockstep::text::jinja
