// Filters over sequences and dicts.
#include <algorithm>

#include "engine/text/jinja_filter_tables.h"
#include "engine/text/jinja_interpreter.h"
#include "engine/text/jinja_operators.h"
#include "engine/text/jinja_unicode.h"

namespace lockstep::text::jinja {

namespace {

constexpr auto kGenerator = Sequence::Kind::Generator;

Value list(Interpreter& in, const Value& subject, Bound&) { return make_sequence(in.heap(), in.iterate(subject)->items); }

Value count(Interpreter&, const Value& subject, Bound&) {
  if (const auto size = length(subject)) return Value::integer(*size);
  raise("TypeError", "object of type '" + type_name(subject) + "' has no len()");
}

Value first(Interpreter& in, const Value& subject, Bound&) {
  if (const Sequence* generator = subject.sequence(); generator && generator->kind == kGenerator) {
    if (generator->next < generator->items.size()) return generator->items[generator->next++];
    return make_undefined(in.heap(), "No first item, sequence was empty.");
  }
  if (subject.string() && !subject.string()->text.empty()) return in.item(subject, Value(Integer{0}));
  const SequenceRef items = in.iterate(subject);
  return items->items.empty() ? make_undefined(in.heap(), "No first item, sequence was empty.") : items->items.front();
}

Value last(Interpreter& in, const Value& subject, Bound&) {
  if (subject.sequence() && subject.sequence()->kind == kGenerator) raise("TypeError", "'generator' object is not reversible");
  if (subject.string() && !subject.string()->text.empty()) return in.item(subject, Value(Integer{-1}));
  const SequenceRef items = in.iterate(subject);
  return items->items.empty() ? make_undefined(in.heap(), "No last item, sequence was empty.") : items->items.back();
}

Value join(Interpreter& in, const Value& subject, Bound& arguments) {
  const std::string separator = arguments.has(0) ? to_text(in.heap(), arguments.at(0)) : std::string();
  const SequenceRef items = in.iterate(subject);
  TextBuilder text(in.heap());
  for (std::size_t i = 0; i < items->items.size(); ++i) {
    in.heap().step();
    if (i > 0) text.append(separator);
    text.append(to_text(in.heap(), arguments.given(1) ? attribute_path(in, items->items[i], arguments.at(1)) : items->items[i]));
  }
  return make_string(in.heap(), text.take());
}

Value reverse(Interpreter& in, const Value& subject, Bound&) {
  if (subject.string()) return slice(in.heap(), Value(subject), Value(), Value(), Value(Integer{-1}));
  const SequenceRef items = in.iterate(subject);
  return make_sequence(in.heap(), {items->items.rbegin(), items->items.rend()}, kGenerator);
}

/// What sorting and comparing go by: the attribute, and for texts the lower case.
Value sort_key(Interpreter& in, const Value& item, const Value* path, bool case_sensitive) {
  Value key = path && !path->is_none() ? attribute_path(in, item, *path) : item;
  if (case_sensitive || !key.string()) return key;
  return make_string(in.heap(), lower(key.string()->text));
}

/// For sort: several attributes, separated by commas, make a list.
Value multi_key(Interpreter& in, const Value& item, const Value* path, bool case_sensitive) {
  if (!path || !path->string() || path->string()->text.find(',') == std::string::npos) return sort_key(in, item, path, case_sensitive);
  std::vector<Value> keys;
  std::string_view rest = path->string()->text;
  for (bool more = true; more;) {
    const std::size_t comma = rest.find(',');
    more = comma != std::string_view::npos;
    const Value part = make_string(in.heap(), std::string(rest.substr(0, comma)));
    keys.push_back(sort_key(in, item, &part, case_sensitive));
    if (more) rest.remove_prefix(comma + 1);
  }
  return make_sequence(in.heap(), std::move(keys));
}

using Keyed = std::vector<std::pair<Value, Value>>;  // key, item

void sort_by_key(Interpreter& in, Keyed& items, bool descending) {
  std::stable_sort(items.begin(), items.end(), [&](const auto& a, const auto& b) {
    return descending ? less(in.heap(), b.first, a.first) : less(in.heap(), a.first, b.first);
  });
}

std::vector<Value> items_of(Keyed keyed) {
  std::vector<Value> items;
  items.reserve(keyed.size());
  for (auto& entry : keyed) items.push_back(std::move(entry.second));
  return items;
}

Value sort(Interpreter& in, const Value& subject, Bound& arguments) {
  const Value* path = arguments.given(2) ? &arguments.at(2) : nullptr;
  Keyed keyed;
  const SequenceRef source = in.iterate(subject);
  for (const Value& item : source->items) keyed.emplace_back(multi_key(in, item, path, arguments.flag(1, false)), item);
  sort_by_key(in, keyed, arguments.flag(0, false));
  return make_sequence(in.heap(), items_of(std::move(keyed)));
}

Value dict_sort(Interpreter& in, const Value& subject, Bound& arguments) {
  const std::string_view by = arguments.string(1, "key");
  if (by != "key" && by != "value") raise("FilterArgumentError", "You can only sort by either \"key\" or \"value\"");
  require_defined(subject);
  if (!subject.dict()) raise("UndefinedError", "'" + described_type(subject) + "' has no attribute 'items'");
  Keyed keyed;
  for (const auto& [key, value] : subject.dict()->items) {
    keyed.emplace_back(sort_key(in, by == "key" ? key : value, nullptr, arguments.flag(0, false)),
                       make_sequence(in.heap(), {key, value}, Sequence::Kind::Tuple));
  }
  sort_by_key(in, keyed, arguments.flag(2, false));
  return make_sequence(in.heap(), items_of(std::move(keyed)));
}

Value unique(Interpreter& in, const Value& subject, Bound& arguments) {
  const Value* path = arguments.given(1) ? &arguments.at(1) : nullptr;
  std::unordered_multimap<std::size_t, Value> seen;
  std::vector<Value> items;
  const SequenceRef source = in.iterate(subject);
  for (const Value& item : source->items) {
    Value key = sort_key(in, item, path, arguments.flag(0, false));
    const std::size_t hashed = hash(in.heap(), key);
    const auto [begin, end] = seen.equal_range(hashed);
    if (std::any_of(begin, end, [&](const auto& entry) { return equal(in.heap(), entry.second, key); })) continue;
    seen.emplace(hashed, std::move(key));
    items.push_back(item);
  }
  return make_sequence(in.heap(), std::move(items), kGenerator);
}

Value extreme(Interpreter& in, const Value& subject, Bound& arguments, bool largest) {
  const Value* path = arguments.given(1) ? &arguments.at(1) : nullptr;
  const bool case_sensitive = arguments.flag(0, false);
  const SequenceRef items = in.iterate(subject);
  if (items->items.empty()) return make_undefined(in.heap(), "No aggregated item, sequence was empty.");
  Value best = items->items[0];
  Value best_key = sort_key(in, best, path, case_sensitive);
  for (std::size_t i = 1; i < items->items.size(); ++i) {
    Value key = sort_key(in, items->items[i], path, case_sensitive);
    if (largest ? less(in.heap(), best_key, key, ">") : less(in.heap(), key, best_key)) {
      best = items->items[i];
      best_key = std::move(key);
    }
  }
  return best;
}

Value minimum(Interpreter& in, const Value& subject, Bound& arguments) { return extreme(in, subject, arguments, false); }
Value maximum(Interpreter& in, const Value& subject, Bound& arguments) { return extreme(in, subject, arguments, true); }

Value sum(Interpreter& in, const Value& subject, Bound& arguments) {
  Value total = arguments.has(1) ? arguments.at(1) : Value(Integer{0});
  if (total.string()) raise("TypeError", "sum() can't sum strings [use ''.join(seq) instead]");
  const SequenceRef source = in.iterate(subject);
  for (const Value& item : source->items) {
    in.heap().step();
    total = arithmetic(in, BinaryOperator::Add, total, arguments.given(0) ? attribute_path(in, item, arguments.at(0)) : item);
  }
  return total;
}

Value batch(Interpreter& in, const Value& subject, Bound& arguments) {
  const Integer size = arguments.integer(0, 1);
  std::vector<Value> rows, row;
  const auto finish = [&] { rows.push_back(make_sequence(in.heap(), std::exchange(row, {}))); };
  const SequenceRef source = in.iterate(subject);
  for (const Value& item : source->items) {
    if (static_cast<Integer>(row.size()) == size) finish();
    row.push_back(item);
  }
  if (!row.empty()) {
    if (arguments.given(1) && size > static_cast<Integer>(row.size())) {
      in.heap().check_elements(static_cast<std::size_t>(std::min<Integer>(size, Integer{1} << 40)), sizeof(Value));
      row.resize(static_cast<std::size_t>(size), arguments.at(1));
    }
    finish();
  }
  return make_sequence(in.heap(), std::move(rows), kGenerator);
}

Value slice_columns(Interpreter& in, const Value& subject, Bound& arguments) {
  const SequenceRef items = in.iterate(subject);
  const Integer columns = arguments.integer(0, 1);
  if (columns == 0) raise("ZeroDivisionError", "integer division or modulo by zero");
  if (columns < 0) return make_sequence(in.heap(), {}, kGenerator);
  in.heap().check_elements(static_cast<std::size_t>(std::min<Integer>(columns, Integer{1} << 40)), sizeof(Value));
  const std::size_t wanted = static_cast<std::size_t>(columns);
  in.heap().step(wanted);
  const std::size_t per_slice = items->items.size() / wanted, longer = items->items.size() % wanted;
  std::vector<Value> slices;
  std::size_t place = 0;
  for (std::size_t i = 0; i < wanted; ++i) {
    const std::size_t size = per_slice + (i < longer ? 1 : 0);
    const auto begin = items->items.begin() + static_cast<std::ptrdiff_t>(place);
    std::vector<Value> column(begin, begin + static_cast<std::ptrdiff_t>(size));
    if (arguments.given(1) && i >= longer) column.push_back(arguments.at(1));
    slices.push_back(make_sequence(in.heap(), std::move(column)));
    place += size;
  }
  return make_sequence(in.heap(), std::move(slices), kGenerator);
}

Value items(Interpreter& in, const Value& subject, Bound&) {
  if (subject.undefined()) return make_sequence(in.heap(), {}, kGenerator);
  if (!subject.dict()) raise("TypeError", "Can only get item pairs from a mapping.");
  std::vector<Value> pairs;
  for (const auto& [key, value] : subject.dict()->items) pairs.push_back(make_sequence(in.heap(), {key, value}, Sequence::Kind::Tuple));
  return make_sequence(in.heap(), std::move(pairs), kGenerator);
}

Value group_by(Interpreter& in, const Value& subject, Bound& arguments) {
  const Value* otherwise = arguments.given(1) ? &arguments.at(1) : nullptr;
  const bool case_sensitive = arguments.flag(2, false);
  const auto group_key = [&](const Value& item) {
    const Value key = attribute_path(in, item, arguments.at(0), otherwise);
    return sort_key(in, key, nullptr, case_sensitive);
  };
  Keyed keyed;
  const SequenceRef source = in.iterate(subject);
  for (const Value& item : source->items) keyed.emplace_back(group_key(item), item);
  sort_by_key(in, keyed, false);
  std::vector<Value> groups;
  for (std::size_t begin = 0, end = 0; begin < keyed.size(); begin = end) {
    std::vector<Value> members;
    for (end = begin; end < keyed.size() && equal(in.heap(), keyed[end].first, keyed[begin].first); ++end)
      members.push_back(keyed[end].second);
    Value shown = case_sensitive ? keyed[begin].first : attribute_path(in, keyed[begin].second, arguments.at(0), otherwise);
    groups.push_back(make_sequence(in.heap(), {std::move(shown), make_sequence(in.heap(), std::move(members))}, Sequence::Kind::Group));
    if (end == begin) ++end;  // a value that does not equal itself (nan) is a group of its own
  }
  return make_sequence(in.heap(), std::move(groups));
}

Value attr(Interpreter& in, const Value& subject, Bound& arguments) {
  const Value& name = arguments.at(0);
  if (subject.dict()) {  // attributes alone, never items
    if (name.string() && find_dict_method(name.string()->text)) return in.attribute(subject, name.string()->text);
    return undefined_element(in.heap(), subject, name);
  }
  return in.attribute(subject, arguments.string(0, {}));
}

/// The rest of the arguments, after `count` positional ones.
Arguments rest_of(const Arguments& all, std::size_t count_used) {
  Arguments rest;
  rest.positional.assign(all.positional.begin() + static_cast<std::ptrdiff_t>(count_used), all.positional.end());
  rest.keyword = all.keyword;
  return rest;
}

Value map(Interpreter& in, const Value& subject, Bound& arguments) {
  const Arguments& all = arguments.all();
  const SequenceRef source = in.iterate(subject);
  std::vector<Value> results;
  if (all.positional.empty()) {
    const Value *path = nullptr, *otherwise = nullptr;
    const std::string* unexpected = nullptr;
    for (const auto& [name, value] : all.keyword) {
      if (name == "attribute") {
        path = &value;
      } else if (name == "default") {
        otherwise = &value;
      } else {
        unexpected = &name;
      }
    }
    if (!path) raise("FilterArgumentError", "map requires a filter argument");
    if (unexpected) raise("FilterArgumentError", "Unexpected keyword argument " + string_repr(*unexpected));
    for (const Value& item : source->items)
      results.push_back(attribute_path(in, item, *path, otherwise && !otherwise->is_none() ? otherwise : nullptr));
  } else {
    const std::string name = to_text(in.heap(), all.positional[0]);
    const Filter* filter = find_filter(name);
    if (!filter) raise("TemplateRuntimeError", "No filter named " + string_repr(name) + ".");
    for (const Value& item : source->items) {
      Arguments rest = rest_of(all, 1);
      in.heap().step(rest.positional.size() + rest.keyword.size());
      results.push_back(in.apply_filter(*filter, item, rest));
    }
  }
  return make_sequence(in.heap(), std::move(results), kGenerator);
}

Value choose(Interpreter& in, const Value& subject, Bound& arguments, bool by_attribute, bool wanted) {
  const Arguments& all = arguments.all();
  if (by_attribute && all.positional.empty()) raise("FilterArgumentError", "Missing parameter for attribute name");
  const std::size_t test_at = by_attribute ? 1 : 0;
  const Test* test = nullptr;
  if (all.positional.size() > test_at) {
    const std::string name = to_text(in.heap(), all.positional[test_at]);
    test = find_test(name);
    if (!test) raise("TemplateRuntimeError", "No test named " + string_repr(name) + ".");
  }
  std::vector<Value> chosen;
  const SequenceRef source = in.iterate(subject);
  for (const Value& item : source->items) {
    const Value value = by_attribute ? attribute_path(in, item, all.positional[0]) : item;
    bool passes = truthy(value);
    if (test) {
      Arguments rest = rest_of(all, test_at + 1);
      in.heap().step(rest.positional.size() + rest.keyword.size());
      passes = in.apply_test(*test, value, rest);
    }
    if (passes == wanted) chosen.push_back(item);
  }
  return make_sequence(in.heap(), std::move(chosen), kGenerator);
}

Value select(Interpreter& in, const Value& subject, Bound& arguments) { return choose(in, subject, arguments, false, true); }
Value reject(Interpreter& in, const Value& subject, Bound& arguments) { return choose(in, subject, arguments, false, false); }
Value select_attribute(Interpreter& in, const Value& subject, Bound& arguments) { return choose(in, subject, arguments, true, true); }
Value reject_attribute(Interpreter& in, const Value& subject, Bound& arguments) { return choose(in, subject, arguments, true, false); }

constexpr Filter kFilters[] = {{"list", list},
                               {"length", count},
                               {"count", count},
                               {"first", first},
                               {"last", last},
                               {"join", join, "d attribute"},
                               {"reverse", reverse},
                               {"sort", sort, "reverse case_sensitive attribute"},
                               {"dictsort", dict_sort, "case_sensitive by reverse"},
                               {"unique", unique, "case_sensitive attribute"},
                               {"min", minimum, "case_sensitive attribute"},
                               {"max", maximum, "case_sensitive attribute"},
                               {"sum", sum, "attribute start"},
                               {"batch", batch, "linecount fill_with", 1},
                               {"slice", slice_columns, "slices fill_with", 1},
                               {"items", items},
                               {"groupby", group_by, "attribute default case_sensitive", 1},
                               {"attr", attr, "name", 1},
                               {"map", map, "*"},
                               {"select", select, "*"},
                               {"reject", reject, "*"},
                               {"selectattr", select_attribute, "*"},
                               {"rejectattr", reject_attribute, "*"}};

}  // namespace

Value attribute_path(Interpreter& interpreter, const Value& subject, const Value& path, const Value* otherwise) {
  const auto step = [&](const Value& value, const Value& key) {
    Value found = interpreter.item(value, key);
    return found.undefined() && otherwise ? *otherwise : found;
  };
  if (!path.string()) return step(subject, path);
  Value value = subject;
  std::string_view rest = path.string()->text;
  for (bool more = true; more;) {
    const std::size_t dot = rest.find('.');
    more = dot != std::string_view::npos;
    const std::string part(rest.substr(0, dot));
    const bool is_index = !part.empty() && part.find_first_not_of("0123456789") == std::string::npos;
    value = step(value, is_index ? Value(*parse_integer(part, 10)) : make_string(interpreter.heap(), part));
    if (more) rest.remove_prefix(dot + 1);
  }
  return value;
}

const Filter* find_sequence_filter(std::string_view name) {
  const auto found = std::find_if(std::begin(kFilters), std::end(kFilters), [&](const Filter& filter) { return filter.name == name; });
  return found == std::end(kFilters) ? nullptr : found;
}

}  // namespace lockstep::text::jinja
