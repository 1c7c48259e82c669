#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "engine/text/jinja_ast.h"
#include "engine/text/jinja_builtins.h"

namespace lockstep::text::jinja {

/// Names and their values; an inner scope reads the outer ones and writes only to itself. The names are owned by the program or the
/// variables.
struct Scope : Object {
  explicit Scope(std::shared_ptr<Scope> outer) : parent(std::move(outer)) {}
  std::string type_name() const override { return "scope"; }
  void clear() override { variables.clear(); }
  Value* find(std::string_view name);
  void set(std::string_view name, Value value);

  std::vector<std::pair<std::string_view, Value>> variables;
  std::shared_ptr<Scope> parent;
};
using ScopeRef = std::shared_ptr<Scope>;

/// The object that `namespace(...)` makes: the one thing that a template can change.
struct Namespace : Object {
  std::string type_name() const override { return "Namespace"; }
  std::string module_name() const override { return "jinja2.utils."; }
  std::optional<Value> attribute(Interpreter& interpreter, std::string_view name) override;
  void set(Interpreter& interpreter, std::string_view name, Value value);
  void clear() override { attributes.clear(); }

  std::vector<std::pair<std::string, Value>> attributes;
};

/// `loop` of a running `for`.
struct Loop : Object, std::enable_shared_from_this<Loop> {
  Loop(const ForStatement& for_statement, SequenceRef loop_items, ScopeRef outer, int loop_depth);
  std::string type_name() const override { return "LoopContext"; }
  std::string module_name() const override { return "jinja2.runtime."; }
  bool callable() const override { return true; }
  std::optional<Value> attribute(Interpreter& interpreter, std::string_view name) override;
  Value call(Interpreter& interpreter, Arguments& arguments) override;
  void clear() override;

  /// On to the next item that the condition lets through; false at the end.
  bool advance();
  const Value* peek();
  std::size_t total();

  const ForStatement& statement;
  SequenceRef items;
  ScopeRef outer_scope;                       // for recursive calls
  std::function<bool(const Value&)> accepts;  // the `if` of the loop, or empty
  std::size_t next_item = 0;
  std::deque<Value> ahead;  // accepted, but not yet reached
  std::size_t index0 = 0;   // of `current`
  bool started = false;
  Value current, previous;
  int depth0;
  std::optional<std::vector<Value>> changed;

 private:
  bool fetch();
};

struct Macro : Object {
  Macro(const MacroDefinition& macro_definition, ScopeRef definition_scope)
      : definition(macro_definition), scope(std::move(definition_scope)) {}
  std::string type_name() const override { return "Macro"; }
  std::string module_name() const override { return "jinja2.runtime."; }
  bool callable() const override { return true; }
  std::optional<Value> attribute(Interpreter& interpreter, std::string_view name) override;
  Value call(Interpreter& interpreter, Arguments& arguments) override;

  const MacroDefinition& definition;
  ScopeRef scope;
};

/// A method with what it is called on.
struct BoundMethod : Object {
  BoundMethod(Heap& heap, const Method& bound_method, Value bound_subject);
  std::string type_name() const override { return "builtin_function_or_method"; }
  bool callable() const override { return true; }
  Value call(Interpreter& interpreter, Arguments& arguments) override;

  const Method& method;
  Value subject;
  Charge charge;
};

/// One render: walks the statements and evaluates the expressions.
class Interpreter {
 public:
  Interpreter(const ChatTemplate::Limits& limits, std::int64_t now_unix);
  ~Interpreter();
  Interpreter(const Interpreter&) = delete;
  Interpreter& operator=(const Interpreter&) = delete;

  std::string render(const Body& body, const nlohmann::ordered_json& variables);

  // What filters, methods and objects need:
  Heap& heap() { return heap_; }
  std::int64_t now() const { return now_unix_; }
  /// The items of a value, as a loop sees them. Keep the reference while walking over them: nothing else may hold it. @throws TypeError.
  SequenceRef iterate(const Value& value);
  Value attribute(const Value& subject, std::string_view name);  // subject.name
  Value item(const Value& subject, const Value& key);            // subject[key]
  Value call(const Value& callee, Arguments& arguments);
  Value apply_filter(const Filter& filter, const Value& subject, Arguments& arguments);
  bool apply_test(const Test& test, const Value& subject, Arguments& arguments);
  Value call_macro(const Macro& macro, Arguments& arguments);
  Value call_loop(const Loop& loop, const Value& items);
  /// Has `object` cleared at the end of the render, since it may be part of a cycle.
  void adopt(ObjectRef object);

 private:
  enum class Flow { Next, Break, Continue };
  class Nesting;
  class Capture;
  class InScope;
  struct Evaluate;
  struct Execute;

  Value evaluate(const Expression& expression);
  Flow execute(const Body& body);
  Flow execute_loop(const ForStatement& statement, SequenceRef items, const ScopeRef& outer, int depth0);
  Value evaluate_optional(const ExpressionPtr& expression) { return expression ? evaluate(*expression) : Value(); }
  Arguments evaluate_arguments(const CallArguments& arguments);
  Value filter_text(const ExpressionPtr& filter, Value text);
  Value filtered(const FilterNode& filter, const Value& subject);
  void assign(const Expression& target, Value value);
  std::optional<Value> builtin_attribute(const Value& subject, std::string_view name);
  std::optional<Value> subscript(const Value& subject, const Value& key);
  Value lookup(std::string_view name);

  Heap heap_;
  std::int64_t now_unix_;
  ScopeRef scope_;
  TextBuilder* out_ = nullptr;
  int nesting_ = 0;
  int line_ = 0;
  std::vector<ObjectRef> adopted_;
};

}  // namespace lockstep::text::jinja
