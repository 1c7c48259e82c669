#include "engine/text/jinja_value.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "engine/text/jinja_unicode.h"

namespace lockstep::text::jinja {

namespace {

constexpr std::size_t kIndexFrom = 9;  // a dict of fewer items is searched item by item

std::size_t deepest(const std::vector<Value>& items) {
  std::size_t depth = 0;
  for (const Value& item : items) depth = std::max(depth, item.depth());
  return depth;
}

const char* kind_name(Sequence::Kind kind) {
  switch (kind) {
    case Sequence::Kind::List: return "list";
    case Sequence::Kind::Tuple: return "tuple";
    case Sequence::Kind::Group: return "_GroupTuple";
    case Sequence::Kind::Range: return "range";
    case Sequence::Kind::Generator: return "generator";
    case Sequence::Kind::DictKeys: return "dict_keys";
    case Sequence::Kind::DictValues: return "dict_values";
    case Sequence::Kind::DictItems: return "dict_items";
  }
  return "sequence";
}

bool same_family(const Sequence& a, const Sequence& b) { return a.kind == b.kind || (a.is_tuple() && b.is_tuple()); }

}  // namespace

std::optional<Integer> Value::as_integer() const {
  if (const Integer* integer = std::get_if<Integer>(&data_)) return *integer;
  if (const bool* boolean = std::get_if<bool>(&data_)) return *boolean ? 1 : 0;
  return std::nullopt;
}

std::optional<double> Value::as_number() const {
  if (const double* number = floating()) return *number;
  if (const auto integer = as_integer()) return static_cast<double>(*integer);
  return std::nullopt;
}

std::size_t Value::depth() const {
  if (const Sequence* items = sequence()) return items->depth;
  if (const Dict* items = dict()) return items->depth;
  if (const Object* other = object()) return other->depth;
  return 0;
}

std::size_t container_depth(std::size_t deepest_item) {
  if (deepest_item >= kMaxValueDepth) raise("LimitError", "the template nests values over " + std::to_string(kMaxValueDepth) + " deep");
  return deepest_item + 1;
}

String::String(Heap& heap, std::string content, bool is_markup)
    : text(std::move(content)), length(code_points(text)), markup(is_markup), charge(heap, text.size() + 64) {}

Sequence::Sequence(Heap& heap, Kind sequence_kind, std::vector<Value> values)
    : kind(sequence_kind),
      items(std::move(values)),
      depth(container_depth(deepest(items))),
      charge(heap, items.size() * sizeof(Value) + sizeof(Sequence)) {}

Dict::Dict(Heap& heap, std::vector<Item> content) : depth(0) {
  heap.step(content.size());
  charge_.emplace(heap, content.size() * (sizeof(Item) + 48) + sizeof(Dict));
  std::size_t deepest_item = 0;
  items.reserve(content.size());
  for (Item& item : content) {
    const std::size_t hashed = hash(heap, item.first);
    deepest_item = std::max({deepest_item, item.first.depth(), item.second.depth()});
    if (const Value* found = find(heap, item.first)) {
      const_cast<Value&>(*found) = std::move(item.second);  // of this dict, which is not const yet
      continue;
    }
    items.push_back(std::move(item));
    index_.emplace(hashed, items.size() - 1);
  }
  if (items.size() < kIndexFrom) index_.clear();
  depth = container_depth(deepest_item);
}

const Value* Dict::find(Heap& heap, const Value& key) const {
  heap.step();
  const std::size_t hashed = hash(heap, key);
  if (index_.empty()) {
    for (const Item& item : items) {
      if (equal(heap, item.first, key)) return &item.second;
    }
    return nullptr;
  }
  const auto [begin, end] = index_.equal_range(hashed);
  for (auto entry = begin; entry != end; ++entry) {
    if (equal(heap, items[entry->second].first, key)) return &items[entry->second].second;
  }
  return nullptr;
}

const Value* Dict::find(std::string_view key) const {
  const auto matches = [&](const Item& item) { return item.first.string() && item.first.string()->text == key; };
  if (index_.empty()) {
    const auto found = std::find_if(items.begin(), items.end(), matches);
    return found == items.end() ? nullptr : &found->second;
  }
  const auto [begin, end] = index_.equal_range(std::hash<std::string_view>{}(key));
  const auto found = std::find_if(begin, end, [&](const auto& entry) { return matches(items[entry.second]); });
  return found == end ? nullptr : &items[found->second].second;
}

Value Object::call(Interpreter&, Arguments&) { raise("TypeError", "'" + type_name() + "' object is not callable"); }

Value make_string(Heap& heap, std::string text, bool markup) {
  heap.check_string(text.size());
  heap.step(text.size() / 256);
  return Value(std::make_shared<const String>(heap, std::move(text), markup));
}

Value make_sequence(Heap& heap, std::vector<Value> items, Sequence::Kind kind) {
  heap.step(items.size());
  return Value(SequenceRef(std::make_shared<const Sequence>(heap, kind, std::move(items))));
}

Value make_range(Heap& heap, Integer start, Integer stop, Integer step) {
  constexpr Integer kMaxRange = 100000;
  if (step == 0) raise("ValueError", "range() arg 3 must not be zero");
  Integer count = 0;
  if (step > 0 ? start < stop : start > stop) {
    const Integer limit = static_cast<Integer>(1) << 100;
    if (start > limit || start < -limit || stop > limit || stop < -limit) raise("OverflowError", "range() arguments are too large");
    count = step > 0 ? (stop - start - 1) / step + 1 : step < -limit ? 1 : (start - stop - 1) / -step + 1;
  }
  if (count > kMaxRange) raise("OverflowError", "Range too big. The sandbox blocks ranges larger than MAX_RANGE (100000).");
  heap.step(static_cast<std::size_t>(count));
  std::vector<Value> items;
  items.reserve(static_cast<std::size_t>(count));
  for (Integer i = 0; i < count; ++i) items.emplace_back(start + i * (count > 1 ? step : 1));
  auto range = std::make_shared<Sequence>(heap, Sequence::Kind::Range, std::move(items));
  range->range_start = start;
  range->range_stop = stop;
  range->range_step = step;
  return Value(SequenceRef(std::move(range)));
}

Value make_dict(Heap& heap, std::vector<Dict::Item> items) { return Value(DictRef(std::make_shared<const Dict>(heap, std::move(items)))); }

Value make_undefined(Heap& heap, std::string message, std::string kind) {
  const std::size_t bytes = message.size() + sizeof(Undefined);
  heap.step();
  return Value(UndefinedRef(new Undefined{std::move(kind), std::move(message), Charge(heap, bytes)}));
}

Value undefined_name(Heap& heap, std::string_view name) { return make_undefined(heap, string_repr(name) + " is undefined"); }

Value undefined_element(Heap& heap, const Value& subject, const Value& key) {
  if (key.string()) {
    const std::string_view name = std::string_view(key.string()->text);
    return make_undefined(heap, "'" + described_type(subject) + "' has no attribute " + string_repr(name.substr(0, 4096)));
  }
  return make_undefined(heap, described_type(subject) + " has no element " + to_repr(heap, key));
}

std::string type_name(const Value& value) {
  if (value.is_none()) return "NoneType";
  if (value.undefined()) return "Undefined";
  if (value.boolean()) return "bool";
  if (value.floating()) return "float";
  if (value.string()) return value.string()->markup ? "Markup" : "str";
  if (value.sequence()) return kind_name(value.sequence()->kind);
  if (value.dict()) return "dict";
  if (value.object()) return value.object()->type_name();
  return "int";
}

std::string described_type(const Value& value) {
  if (value.is_none()) return "None";
  return (value.object() ? value.object()->module_name() : std::string()) + type_name(value) + " object";
}

bool truthy(const Value& value) {
  if (value.is_none() || value.undefined()) return false;
  if (value.string()) return !value.string()->text.empty();
  if (const Sequence* sequence = value.sequence()) return sequence->kind == Sequence::Kind::Generator || !sequence->items.empty();
  if (value.dict()) return !value.dict()->items.empty();
  if (const auto integer = value.as_integer()) return *integer != 0;
  if (value.floating()) return *value.floating() != 0;
  return true;
}

std::optional<std::size_t> length(const Value& value) {
  if (value.undefined()) return 0;
  if (value.string()) return value.string()->length;
  if (value.dict()) return value.dict()->items.size();
  if (value.sequence() && value.sequence()->kind != Sequence::Kind::Generator) return value.sequence()->items.size();
  return std::nullopt;
}

void fail_undefined(const Undefined& undefined) { throw TemplateError(undefined.kind, undefined.message); }

bool equal(Heap& heap, const Value& a, const Value& b) {
  heap.step();
  if (a.is_none() || b.is_none()) return a.is_none() && b.is_none();
  if (a.undefined() || b.undefined()) return a.undefined() && b.undefined();
  if (a.string() || b.string()) {
    if (!a.string() || !b.string()) return false;
    heap.step(std::min(a.string()->text.size(), b.string()->text.size()) / 256);
    return a.string()->text == b.string()->text;
  }
  if (const Sequence* x = a.sequence(), *y = b.sequence(); x || y) {
    if (x == y) return true;
    if (!x || !y || !same_family(*x, *y) || x->items.size() != y->items.size() || x->kind == Sequence::Kind::Generator) return false;
    for (std::size_t i = 0; i < x->items.size(); ++i) {
      if (!equal(heap, x->items[i], y->items[i])) return false;
    }
    return true;
  }
  if (const Dict* x = a.dict(), *y = b.dict(); x || y) {
    if (x == y) return true;
    if (!x || !y || x->items.size() != y->items.size()) return false;
    for (const auto& [key, value] : x->items) {
      const Value* other = y->find(heap, key);
      if (!other || !equal(heap, value, *other)) return false;
    }
    return true;
  }
  if (a.object() || b.object()) return a.object() == b.object();
  const auto x = a.as_integer(), y = b.as_integer();
  if (x && y) return *x == *y;
  return *a.as_number() == *b.as_number();
}

bool less(Heap& heap, const Value& a, const Value& b, const char* symbol) {
  heap.step();
  const bool swapped = symbol[0] == '>';  // a > b is asked as b < a
  require_defined(swapped ? b : a);
  require_defined(swapped ? a : b);
  if (a.string() && b.string()) {
    heap.step(std::min(a.string()->text.size(), b.string()->text.size()) / 256);
    return a.string()->text < b.string()->text;  // the order of UTF-8 bytes is that of code points
  }
  const Sequence *x = a.sequence(), *y = b.sequence();
  if (x && y && same_family(*x, *y) && (x->kind == Sequence::Kind::List || x->is_tuple())) {
    for (std::size_t i = 0; i < std::min(x->items.size(), y->items.size()); ++i) {
      if (!equal(heap, x->items[i], y->items[i])) return less(heap, x->items[i], y->items[i], symbol);
    }
    return x->items.size() < y->items.size();
  }
  if (!a.is_number() || !b.is_number()) {
    raise("TypeError", std::string("'") + symbol + "' not supported between instances of '" + type_name(swapped ? b : a) + "' and '" +
                           type_name(swapped ? a : b) + "'");
  }
  const auto i = a.as_integer(), j = b.as_integer();
  if (i && j) return *i < *j;
  return *a.as_number() < *b.as_number();
}

std::size_t hash(Heap& heap, const Value& value) {
  heap.step();
  if (const String* string = value.string()) {
    heap.step(string->text.size() / 256);
    return std::hash<std::string_view>{}(string->text);
  }
  if (value.dict()) raise("TypeError", "unhashable type: 'dict'");
  if (const Sequence* sequence = value.sequence()) {
    if (sequence->kind == Sequence::Kind::List || sequence->kind == Sequence::Kind::DictKeys ||
        sequence->kind == Sequence::Kind::DictItems) {
      raise("TypeError", "unhashable type: '" + type_name(value) + "'");
    }
    if (!sequence->is_tuple()) return std::hash<const void*>{}(sequence);
    std::size_t combined = 0x9e3779b97f4a7c15u;
    for (const Value& item : sequence->items) combined = combined * 1000003u ^ hash(heap, item);
    return combined;
  }
  if (const Object* object = value.object()) return std::hash<const void*>{}(object);
  if (const auto number = value.as_number()) return std::isnan(*number) ? 0 : std::hash<double>{}(*number);  // 1, 1.0 and true are one key
  return value.is_none() ? 1 : 2;
}

}  // namespace lockstep::text::jinja
