#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "engine/text/jinja_heap.h"

namespace lockstep::text::jinja {

/// Python's integers, as far as a template needs them: 127 bits and a sign; beyond that an operation raises OverflowError.
__extension__ typedef __int128 Integer;

class Value;
class Interpreter;
struct String;
struct Sequence;
struct Dict;
struct Object;

/// Jinja's Undefined: prints as nothing, is false and empty; nearly every other use raises `kind` with `message`.
struct Undefined {
  std::string kind;
  std::string message;
  Charge charge;
};

using UndefinedRef = std::shared_ptr<const Undefined>;
using StringRef = std::shared_ptr<const String>;
using SequenceRef = std::shared_ptr<const Sequence>;
using DictRef = std::shared_ptr<const Dict>;
using ObjectRef = std::shared_ptr<Object>;

/// A template's value. Strings, sequences and dicts never change (the sandbox forbids it), so copies share them.
class Value {
 public:
  struct None {};
  Value() : data_(None{}) {}
  explicit Value(UndefinedRef undefined) : data_(std::move(undefined)) {}
  explicit Value(bool boolean) : data_(boolean) {}
  explicit Value(Integer integer) : data_(integer) {}
  explicit Value(double number) : data_(number) {}
  explicit Value(StringRef string) : data_(std::move(string)) {}
  explicit Value(SequenceRef sequence) : data_(std::move(sequence)) {}
  explicit Value(DictRef dict) : data_(std::move(dict)) {}
  explicit Value(ObjectRef object) : data_(std::move(object)) {}

  static Value integer(std::size_t number) { return Value(static_cast<Integer>(number)); }

  bool is_none() const { return std::holds_alternative<None>(data_); }
  const Undefined* undefined() const { return pointer<UndefinedRef>(); }
  const bool* boolean() const { return std::get_if<bool>(&data_); }
  const double* floating() const { return std::get_if<double>(&data_); }
  const String* string() const { return pointer<StringRef>(); }
  const Sequence* sequence() const { return pointer<SequenceRef>(); }
  const Dict* dict() const { return pointer<DictRef>(); }
  Object* object() const { return pointer<ObjectRef>(); }
  const SequenceRef* sequence_ref() const { return std::get_if<SequenceRef>(&data_); }
  const ObjectRef* object_ref() const { return std::get_if<ObjectRef>(&data_); }

  /// The number of an int or a bool, as Python has it.
  std::optional<Integer> as_integer() const;
  /// The number of an int, bool or float.
  std::optional<double> as_number() const;
  bool is_number() const { return as_number().has_value(); }

  std::size_t depth() const;  // of the nested containers; 0 for a scalar

 private:
  template <class Ref>
  auto pointer() const -> typename Ref::element_type* {
    const Ref* found = std::get_if<Ref>(&data_);
    return found ? found->get() : nullptr;
  }

  std::variant<None, UndefinedRef, bool, Integer, double, StringRef, SequenceRef, DictRef, ObjectRef> data_;
};

struct String {
  String(Heap& heap, std::string content, bool is_markup);
  std::string text;    // valid UTF-8
  std::size_t length;  // code points
  bool markup;         // made by `escape` or `safe`
  Charge charge;
};

/// Everything that is a row of values. Only `kind` tells a list from a tuple; a generator gives its items once.
struct Sequence {
  enum class Kind { List, Tuple, Group, Range, Generator, DictKeys, DictValues, DictItems };
  Sequence(Heap& heap, Kind sequence_kind, std::vector<Value> values);

  /// Python may subscript it and ask its length.
  bool is_subscriptable() const { return kind == Kind::List || is_tuple() || kind == Kind::Range; }
  bool is_tuple() const { return kind == Kind::Tuple || kind == Kind::Group; }

  Kind kind;
  std::vector<Value> items;
  std::size_t depth;
  Integer range_start = 0, range_stop = 0, range_step = 1;  // of a Range, for printing it
  mutable std::size_t next = 0;                             // of a Generator: where it goes on
  Charge charge;
};

/// Keys keep the order of insertion. Keys may be strings, numbers, booleans, none and tuples of those.
struct Dict {
  using Item = std::pair<Value, Value>;
  /// Later items of the same key replace earlier ones. @throws TypeError for an unhashable key.
  Dict(Heap& heap, std::vector<Item> content);

  const Value* find(Heap& heap, const Value& key) const;
  const Value* find(std::string_view key) const;

  std::vector<Item> items;
  std::size_t depth;

 private:
  std::unordered_multimap<std::size_t, std::size_t> index_;  // hash of key -> place, for large ones
  std::optional<Charge> charge_;
};

/// What a call passes.
struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> keyword;
};

/// Everything else: functions, macros, namespaces, loops.
struct Object {
  virtual ~Object() = default;
  virtual std::string type_name() const = 0;              // as Python names it
  virtual std::string module_name() const { return {}; }  // "jinja2.utils." of what is not built in, for messages
  virtual std::optional<Value> attribute(Interpreter&, std::string_view) { return std::nullopt; }
  virtual bool callable() const { return false; }
  virtual Value call(Interpreter&, Arguments&);
  /// Drops references to other values: at the end of a render all objects that may be part of a cycle are cleared.
  virtual void clear() {}
  std::size_t depth = 1;
};

constexpr std::size_t kMaxValueDepth = 200;

Value make_string(Heap& heap, std::string text, bool markup = false);
Value make_sequence(Heap& heap, std::vector<Value> items, Sequence::Kind kind = Sequence::Kind::List);
Value make_range(Heap& heap, Integer start, Integer stop, Integer step);
Value make_dict(Heap& heap, std::vector<Dict::Item> items);
Value make_undefined(Heap& heap, std::string message, std::string kind = "UndefinedError");
/// "'x' is undefined"
Value undefined_name(Heap& heap, std::string_view name);
/// "'dict object' has no attribute 'x'", "list object has no element 3"
Value undefined_element(Heap& heap, const Value& subject, const Value& key);

/// @throws LimitError if a container that holds something of this depth would nest too deeply.
std::size_t container_depth(std::size_t deepest_item);

std::string type_name(const Value& value);       // "str", "int", "list", ...
std::string described_type(const Value& value);  // "str object", "None"
bool truthy(const Value& value);
/// The length, or nothing where Python's len() refuses.
std::optional<std::size_t> length(const Value& value);
[[noreturn]] void fail_undefined(const Undefined& undefined);
inline void require_defined(const Value& value) {
  if (const Undefined* undefined = value.undefined()) fail_undefined(*undefined);
}

bool equal(Heap& heap, const Value& a, const Value& b);
/// Python's `a < b`. `symbol` is named in the TypeError; one that starts with '>' says that the template asked `b > a`.
bool less(Heap& heap, const Value& a, const Value& b, const char* symbol = "<");
/// @throws TypeError for what Python cannot hash.
std::size_t hash(Heap& heap, const Value& value);

/// Python's str() and repr().
std::string to_text(Heap& heap, const Value& value);
std::string to_repr(Heap& heap, const Value& value);
std::string float_repr(double number);
std::string integer_text(Integer number);
std::string string_repr(std::string_view text);

}  // namespace lockstep::text::jinja
