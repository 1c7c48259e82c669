// The methods of lists and dicts, and the global functions.
#include <algorithm>

#include "engine/text/jinja_interpreter.h"

namespace lockstep::text::jinja {

namespace {

Value sequence_count(Interpreter& in, const Value& subject, Bound& arguments) {
  const auto& items = subject.sequence()->items;
  return Value::integer(static_cast<std::size_t>(
      std::count_if(items.begin(), items.end(), [&](const Value& item) { return equal(in.heap(), item, arguments.at(0)); })));
}

Value sequence_index(Interpreter& in, const Value& subject, Bound& arguments) {
  const auto& items = subject.sequence()->items;
  const Integer size = static_cast<Integer>(items.size());
  const auto place = [&](std::size_t parameter, Integer otherwise) {
    const Integer given = arguments.integer(parameter, otherwise);
    return std::clamp<Integer>(given < 0 ? given + size : given, 0, size);
  };
  for (Integer i = place(1, 0); i < place(2, size); ++i) {
    if (equal(in.heap(), items[static_cast<std::size_t>(i)], arguments.at(0))) return Value(i);
  }
  raise("ValueError", to_repr(in.heap(), arguments.at(0)) + " is not in " + type_name(subject));
}

Value same(Interpreter&, const Value& subject, Bound&) { return subject; }  // copy(): nothing can be changed anyway

Value dict_get(Interpreter& in, const Value& subject, Bound& arguments) {
  const Value* found = subject.dict()->find(in.heap(), arguments.at(0));
  return found ? *found : arguments.has(1) ? arguments.at(1) : Value();
}

Value dict_keys(Interpreter& in, const Value& subject, Bound&) {
  std::vector<Value> keys;
  for (const auto& item : subject.dict()->items) keys.push_back(item.first);
  return make_sequence(in.heap(), std::move(keys), Sequence::Kind::DictKeys);
}

Value dict_values(Interpreter& in, const Value& subject, Bound&) {
  std::vector<Value> values;
  for (const auto& item : subject.dict()->items) values.push_back(item.second);
  return make_sequence(in.heap(), std::move(values), Sequence::Kind::DictValues);
}

Value dict_items(Interpreter& in, const Value& subject, Bound&) {
  std::vector<Value> items;
  for (const auto& [key, value] : subject.dict()->items) items.push_back(make_sequence(in.heap(), {key, value}, Sequence::Kind::Tuple));
  return make_sequence(in.heap(), std::move(items), Sequence::Kind::DictItems);
}

constexpr Method kSequenceMethods[] = {
    {"count", sequence_count, "value", 1}, {"index", sequence_index, "value start stop", 1}, {"copy", same}};
constexpr Method kDictMethods[] = {
    {"get", dict_get, "key default", 1}, {"keys", dict_keys}, {"values", dict_values}, {"items", dict_items}, {"copy", same}};

template <std::size_t size>
const Method* find_in(const Method (&table)[size], std::string_view name) {
  const auto found = std::find_if(std::begin(table), std::end(table), [&](const Method& method) { return method.name == name; });
  return found == std::end(table) ? nullptr : found;
}

/// The items that `dict(...)` and `namespace(...)` take: a mapping or pairs, and keywords.
std::vector<Dict::Item> items_from(Interpreter& in, const Arguments& arguments, const char* function) {
  Heap& heap = in.heap();
  std::vector<Dict::Item> items;
  if (arguments.positional.size() > 1) {
    raise("TypeError", std::string(function) + " expected at most 1 argument, got " + std::to_string(arguments.positional.size()));
  }
  if (!arguments.positional.empty()) {
    const Value& source = arguments.positional[0];
    if (source.dict()) {
      heap.step(source.dict()->items.size());
      items = source.dict()->items;
    } else {
      const SequenceRef pairs = in.iterate(source);
      for (const Value& pair : pairs->items) {
        const SequenceRef sides = in.iterate(pair);
        if (sides->items.size() != 2) raise("ValueError", std::string(function) + ": every element must be a pair of key and value");
        items.emplace_back(sides->items[0], sides->items[1]);
      }
    }
  }
  for (const auto& [name, value] : arguments.keyword) items.emplace_back(make_string(heap, name), value);
  return items;
}

Value call_range(Interpreter& in, Arguments& arguments) {
  Bound bound("range", "start stop step", 1, arguments);
  if (!bound.has(1)) return make_range(in.heap(), 0, bound.integer(0, 0), 1);
  return make_range(in.heap(), bound.integer(0, 0), bound.integer(1, 0), bound.integer(2, 1));
}

Value call_dict(Interpreter& in, Arguments& arguments) { return make_dict(in.heap(), items_from(in, arguments, "dict")); }

Value call_namespace(Interpreter& in, Arguments& arguments) {
  const Value content = make_dict(in.heap(), items_from(in, arguments, "namespace"));
  auto space = std::make_shared<Namespace>();
  for (const auto& [key, value] : content.dict()->items) space->attributes.emplace_back(to_text(in.heap(), key), value);
  in.heap().take(content.dict()->items.size() * sizeof(space->attributes[0]));
  in.adopt(space);
  return Value(ObjectRef(std::move(space)));
}

struct Joiner : Object {
  explicit Joiner(Value separator_value) : separator(std::move(separator_value)) { depth = container_depth(separator.depth()); }
  std::string type_name() const override { return "Joiner"; }
  std::string module_name() const override { return "jinja2.utils."; }
  bool callable() const override { return true; }
  Value call(Interpreter& in, Arguments&) override { return std::exchange(used, true) ? separator : make_string(in.heap(), {}); }

  Value separator;
  bool used = false;
};

struct Cycler : Object, std::enable_shared_from_this<Cycler> {
  explicit Cycler(std::vector<Value> cycled) : items(std::move(cycled)) {
    std::size_t deepest = 0;
    for (const Value& item : items) deepest = std::max(deepest, item.depth());
    depth = container_depth(deepest);
  }
  std::string type_name() const override { return "Cycler"; }
  std::string module_name() const override { return "jinja2.utils."; }
  std::optional<Value> attribute(Interpreter&, std::string_view name) override;

  std::vector<Value> items;
  std::size_t place = 0;
};

struct CyclerFunction : Object {
  CyclerFunction(std::shared_ptr<Cycler> target, bool is_reset) : cycler(std::move(target)), resets(is_reset) {
    depth = container_depth(cycler->depth);
  }
  std::string type_name() const override { return "method"; }
  bool callable() const override { return true; }
  Value call(Interpreter&, Arguments&) override {
    if (resets) {
      cycler->place = 0;
      return Value();
    }
    return cycler->items[std::exchange(cycler->place, (cycler->place + 1) % cycler->items.size())];
  }

  std::shared_ptr<Cycler> cycler;
  bool resets;
};

std::optional<Value> Cycler::attribute(Interpreter&, std::string_view name) {
  if (name == "current") return items[place];
  if (name == "next" || name == "reset") return Value(ObjectRef(std::make_shared<CyclerFunction>(shared_from_this(), name == "reset")));
  return std::nullopt;
}

Value call_joiner(Interpreter& in, Arguments& arguments) {
  Bound bound("joiner", "sep", 0, arguments);
  in.heap().take(sizeof(Joiner));
  return Value(ObjectRef(std::make_shared<Joiner>(bound.has(0) ? bound.at(0) : make_string(in.heap(), ", "))));
}

Value call_cycler(Interpreter& in, Arguments& arguments) {
  if (arguments.positional.empty()) raise("RuntimeError", "at least one item has to be provided");
  in.heap().take(sizeof(Cycler) + arguments.positional.size() * sizeof(Value));
  return Value(ObjectRef(std::make_shared<Cycler>(arguments.positional)));
}

Value call_raise(Interpreter& in, Arguments& arguments) {
  Bound bound("raise_exception", "message", 1, arguments);
  raise("TemplateError", to_text(in.heap(), bound.at(0)));
}

Value call_strftime(Interpreter& in, Arguments& arguments) {
  Bound bound("strftime_now", "format", 1, arguments);
  return make_string(in.heap(), format_time(bound.string(0, {}), in.now()));
}

Value call_lipsum(Interpreter&, Arguments&) { raise("TemplateRuntimeError", "the function 'lipsum' is not supported"); }

struct Function {
  std::string_view name;
  Value (*function)(Interpreter&, Arguments&);
};

constexpr Function kFunctions[] = {{"range", call_range},           {"dict", call_dict},     {"namespace", call_namespace},
                                   {"joiner", call_joiner},         {"cycler", call_cycler}, {"raise_exception", call_raise},
                                   {"strftime_now", call_strftime}, {"lipsum", call_lipsum}};

struct GlobalFunction : Object {
  explicit GlobalFunction(const Function& global) : function(global) {}
  std::string type_name() const override { return "function"; }
  bool callable() const override { return true; }
  Value call(Interpreter& in, Arguments& arguments) override { return function.function(in, arguments); }

  const Function& function;
};

}  // namespace

const Method* find_sequence_method(std::string_view name) { return find_in(kSequenceMethods, name); }
const Method* find_dict_method(std::string_view name) { return find_in(kDictMethods, name); }

std::optional<Value> find_global(Heap& heap, std::string_view name) {
  const auto found =
      std::find_if(std::begin(kFunctions), std::end(kFunctions), [&](const Function& function) { return function.name == name; });
  if (found == std::end(kFunctions)) return std::nullopt;
  heap.step();
  return Value(ObjectRef(std::make_shared<GlobalFunction>(*found)));
}

}  // namespace lockstep::text::jinja
