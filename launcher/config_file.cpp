#include "launcher/config_file.h"

#include <algorithm>
#include <fstream>
#include <optional>
#include <sstream>

#include <fmt/format.h>

// A table or list in another is never right here, and the parser and the destructors descend into each: what is deep is refused.
#define TOML_MAX_NESTED_VALUES 16
#include <toml++/toml.h>

namespace lockstep::launcher {
namespace {

std::optional<Scalar> scalar_from(const toml::node& node) {
  if (const auto* value = node.as_boolean()) return Scalar(value->get());
  if (const auto* value = node.as_integer()) return Scalar(value->get());
  if (const auto* value = node.as_floating_point()) return Scalar(value->get());
  if (const auto* value = node.as_string()) return Scalar(value->get());
  return std::nullopt;
}

/// The scalar as `kind` holds it, or nullopt if it is of another kind. A whole number will do where a number is asked for.
std::optional<Scalar> of_kind(const Scalar& scalar, OptionKind kind) {
  switch (kind) {
    case OptionKind::kText:
    case OptionKind::kTexts: return std::holds_alternative<std::string>(scalar) ? std::optional(scalar) : std::nullopt;
    case OptionKind::kInteger:
    case OptionKind::kIntegers: return std::holds_alternative<std::int64_t>(scalar) ? std::optional(scalar) : std::nullopt;
    case OptionKind::kSwitch: return std::holds_alternative<bool>(scalar) ? std::optional(scalar) : std::nullopt;
    case OptionKind::kReal:
      if (const auto* whole = std::get_if<std::int64_t>(&scalar)) return Scalar(static_cast<double>(*whole));
      return std::holds_alternative<double>(scalar) ? std::optional(scalar) : std::nullopt;
    case OptionKind::kBytes:
      if (const auto* text = std::get_if<std::string>(&scalar)) return values_from_text(kind, *text).front();
      return std::holds_alternative<std::int64_t>(scalar) ? std::optional(scalar) : std::nullopt;
  }
  return std::nullopt;
}

std::string_view kind_of(const toml::node& node) {
  if (node.is_table()) return "a table";
  if (node.is_array()) return "a list";
  if (node.is_string()) return "a text";
  if (node.is_integer()) return "a whole number";
  if (node.is_floating_point()) return "a number";
  if (node.is_boolean()) return "true or false";
  return "a date or time";
}

std::vector<Scalar> values_from(const toml::node& node, const Option& option) {
  std::vector<Scalar> values;
  const auto take = [&](const toml::node& item) {
    const auto scalar = scalar_from(item);
    const auto value = scalar ? of_kind(*scalar, option.kind) : std::nullopt;
    if (!value) throw UsageError(fmt::format("it must be {}, not {}", kind_name(option.kind), kind_of(item)));
    values.push_back(*value);
  };
  const toml::array* list = node.as_array();
  if (list == nullptr || !option.takes_many()) {
    take(node);
  } else {
    for (const toml::node& item : *list) take(item);
  }
  return values;
}

const Option& find_option(const std::string& key, std::span<const Option> options) {
  std::string name = key;
  std::replace(name.begin(), name.end(), '_', '-');
  std::vector<std::string> keys;
  for (const Option& option : options) {
    if (option.name == name) return option;
    if (!option.group.empty()) keys.push_back(option.key());
  }
  const std::string nearest = nearest_name(key, keys);
  throw UsageError(nearest.empty() ? "there is no such key" : fmt::format("there is no such key; did you mean {}?", nearest));
}

/// For messages: control characters of a hostile file do not reach the terminal.
std::string printable(std::string_view text) {
  std::string shown(text.substr(0, 200));
  std::replace_if(
      shown.begin(), shown.end(), [](unsigned char c) { return c < 0x20 || c == 0x7f; }, '?');
  return shown;
}

/// A dotted key is a table for each of its parts, one in the other, and the parser counts none of them: their destructors would use up the
/// stack. @throws UsageError for a line with more dots than any of use.
void refuse_deep_keys(std::string_view toml, const std::string& file_name) {
  constexpr std::ptrdiff_t kMaxDots = 512;
  std::size_t number = 1;
  for (std::size_t begin = 0; begin < toml.size(); ++number) {
    const std::string_view line = toml.substr(begin, toml.find('\n', begin) - begin);
    if (std::count(line.begin(), line.end(), '.') > kMaxDots) {
      throw UsageError(fmt::format("{}:{}: the line has more than {} dots", file_name, number, kMaxDots));
    }
    begin += line.size() + 1;
  }
}

}  // namespace

void apply_config_text(std::string_view toml, const std::string& file_name, std::span<const Option> options, RunConfig& config) {
  refuse_deep_keys(toml, file_name);
  toml::table table;
  try {
    table = toml::parse(toml, file_name);
  } catch (const toml::parse_error& error) {
    throw UsageError(fmt::format("{}:{}: {}", file_name, error.source().begin.line, printable(error.description())));
  }
  for (auto&& [key, node] : table) {
    try {
      const Option& option = find_option(std::string(key.str()), options);
      option.store(config, values_from(node, option));
    } catch (const UsageError& error) {
      throw UsageError(fmt::format("{}:{}: {}: {}", file_name, node.source().begin.line, printable(key.str()), printable(error.what())));
    }
  }
}

void apply_config_file(const std::string& path, std::span<const Option> options, RunConfig& config) {
  constexpr std::size_t kMaxBytes = 1u << 20;
  std::ifstream file(path, std::ios::binary);
  if (!file) throw UsageError(fmt::format("--config {}: the file can not be opened", path));
  std::string text(kMaxBytes + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (file.bad() || (file.fail() && !file.eof())) throw UsageError(fmt::format("--config {}: the file can not be read", path));
  text.resize(static_cast<std::size_t>(file.gcount()));
  if (text.size() > kMaxBytes) throw UsageError(fmt::format("--config {}: a configuration is at most {} bytes long", path, kMaxBytes));
  apply_config_text(text, path, options, config);
}

}  // namespace lockstep::launcher
