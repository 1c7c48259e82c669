#include "engine/text/jinja_json.h"

#include <algorithm>
#include <cmath>

#include "engine/text/jinja_unicode.h"

namespace lockstep::text::jinja {

namespace {

Value text_value(Heap& heap, const std::string& text) {
  if (!is_valid_utf8(text)) raise("TypeError", "a template variable has text that is not UTF-8");
  return make_string(heap, text);
}

Value convert(Heap& heap, const nlohmann::ordered_json& json, std::size_t level) {
  if (level > kMaxValueDepth) raise("LimitError", "the template's variables nest over " + std::to_string(kMaxValueDepth) + " deep");
  heap.step();
  using Type = nlohmann::ordered_json::value_t;
  switch (json.type()) {
    case Type::boolean: return Value(json.get<bool>());
    case Type::number_integer: return Value(static_cast<Integer>(json.get<std::int64_t>()));
    case Type::number_unsigned: return Value(static_cast<Integer>(json.get<std::uint64_t>()));
    case Type::number_float: return Value(json.get<double>());
    case Type::string: return text_value(heap, json.get_ref<const std::string&>());
    case Type::array: {
      std::vector<Value> items;
      items.reserve(json.size());
      for (const auto& item : json) items.push_back(convert(heap, item, level + 1));
      return make_sequence(heap, std::move(items));
    }
    case Type::object: {
      std::vector<Dict::Item> items;
      items.reserve(json.size());
      for (const auto& [key, item] : json.items()) items.emplace_back(text_value(heap, key), convert(heap, item, level + 1));
      return make_dict(heap, std::move(items));
    }
    default: return Value();
  }
}

class Writer {
 public:
  Writer(Heap& heap, const JsonStyle& style) : heap_(heap), style_(style), out_(heap) {}

  void write(const Value& value) {
    heap_.step();
    if (value.is_none()) {
      out_.append("null");
    } else if (const bool* boolean = value.boolean()) {
      out_.append(*boolean ? "true" : "false");
    } else if (const double* number = value.floating()) {
      out_.append(float_text(*number));
    } else if (value.string()) {
      write_string(value.string()->text);
    } else if (value.dict()) {
      write_dict(*value.dict());
    } else if (const auto integer = value.as_integer()) {
      out_.append(integer_text(*integer));
    } else if (const Sequence* list = value.sequence(); list && (list->kind == Sequence::Kind::List || list->is_tuple())) {
      write_list(*list);
    } else {
      raise("TypeError", "Object of type " + type_name(value) + " is not JSON serializable");
    }
  }

  std::string take() { return out_.take(); }

 private:
  static std::string float_text(double number) {
    if (std::isnan(number)) return "NaN";
    if (std::isinf(number)) return number < 0 ? "-Infinity" : "Infinity";
    return float_repr(number);
  }

  void new_line() {
    if (!style_.multi_line) return;
    out_.append("\n");
    for (std::size_t i = 0; i < level_; ++i) out_.append(style_.indent);
  }

  void write_list(const Sequence& list) {
    if (list.items.empty()) return out_.append("[]");
    out_.append("[");
    ++level_;
    for (std::size_t i = 0; i < list.items.size(); ++i) {
      if (i > 0) out_.append(style_.item_separator);
      new_line();
      write(list.items[i]);
    }
    --level_;
    new_line();
    out_.append("]");
  }

  void write_dict(const Dict& dict) {
    if (dict.items.empty()) return out_.append("{}");
    std::vector<const Dict::Item*> items;
    items.reserve(dict.items.size());
    for (const Dict::Item& item : dict.items) items.push_back(&item);
    if (style_.sort_keys) {
      std::stable_sort(items.begin(), items.end(), [&](const auto* a, const auto* b) { return less(heap_, a->first, b->first); });
    }
    out_.append("{");
    ++level_;
    for (std::size_t i = 0; i < items.size(); ++i) {
      if (i > 0) out_.append(style_.item_separator);
      new_line();
      write_string(key_text(items[i]->first));
      out_.append(style_.key_separator);
      write(items[i]->second);
    }
    --level_;
    new_line();
    out_.append("}");
  }

  static std::string key_text(const Value& key) {
    if (key.string()) return key.string()->text;
    if (key.is_none()) return "null";
    if (key.boolean()) return *key.boolean() ? "true" : "false";
    if (key.floating()) return float_text(*key.floating());
    if (const auto integer = key.as_integer()) return integer_text(*integer);
    raise("TypeError", "keys must be str, int, float, bool or None, not " + type_name(key));
  }

  void write_unit(char32_t unit) {
    static constexpr char kDigits[] = "0123456789abcdef";
    const char escape[] = {'\\', 'u', kDigits[unit >> 12 & 0xF], kDigits[unit >> 8 & 0xF], kDigits[unit >> 4 & 0xF], kDigits[unit & 0xF]};
    out_.append(std::string_view(escape, sizeof(escape)));
  }

  void write_escaped(char32_t code_point) {
    switch (code_point) {
      case '"': return out_.append("\\\"");
      case '\\': return out_.append("\\\\");
      case '\n': return out_.append("\\n");
      case '\r': return out_.append("\\r");
      case '\t': return out_.append("\\t");
      case '\f': return out_.append("\\f");
      case '\b': return out_.append("\\b");
      default: break;
    }
    if (code_point < 0x10000) return write_unit(code_point);
    write_unit(0xD800 + ((code_point - 0x10000) >> 10));
    write_unit(0xDC00 + ((code_point - 0x10000) & 0x3FF));
  }

  void write_string(std::string_view text) {
    out_.append("\"");
    std::size_t plain_from = 0;
    for (std::size_t position = 0; position < text.size();) {
      const std::size_t start = position;
      const char32_t code_point = next_code_point(text, position);
      if (code_point >= 0x20 && code_point != '"' && code_point != '\\' && (code_point < 0x7F || !style_.ensure_ascii)) continue;
      out_.append(text.substr(plain_from, start - plain_from));
      write_escaped(code_point);
      plain_from = position;
    }
    out_.append(text.substr(plain_from));
    out_.append("\"");
  }

  Heap& heap_;
  const JsonStyle& style_;
  TextBuilder out_;
  std::size_t level_ = 0;
};

}  // namespace

Value from_json(Heap& heap, const nlohmann::ordered_json& json) { return convert(heap, json, 0); }

std::string to_json(Heap& heap, const Value& value, const JsonStyle& style) {
  Writer writer(heap, style);
  writer.write(value);
  return writer.take();
}

}  // namespace lockstep::text::jinja
