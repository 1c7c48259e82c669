#include "engine/io/request_values.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <utility>

namespace lockstep::engine {
namespace {

constexpr std::size_t kMaxStopStrings = 16;

std::string at(const std::string& param, std::size_t index) { return param + "[" + std::to_string(index) + "]"; }

std::string brief(double value) { return Json(value).dump(); }

/// Content of a message: text, null, or text parts.
Json read_content(const std::string& param, const Json& value) {
  if (value.is_string() || value.is_null()) return value;
  if (!value.is_array()) refuse_value(param, "must be a string or a list of text parts", value);
  std::string text;
  for (std::size_t i = 0; i < value.size(); ++i) {
    const Json& part = value[i];
    const std::string name = at(param, i);
    if (!part.is_object()) refuse_value(name, "must be an object", part);
    const auto type = part.find("type");
    if (type == part.end() || *type != "text") refuse_value(name + ".type", "must be \"text\"", type == part.end() ? Json() : *type);
    const auto content = part.find("text");
    if (content == part.end()) throw RequestError(400, "missing_parameter", name + ".text", name + ".text is missing");
    if (i > 0) text += '\n';
    text += read_string(name + ".text", *content);
  }
  return text;
}

/// OpenAI clients send the arguments of a call as a JSON text; templates expect the object.
void open_tool_calls(const std::string& param, Json& calls) {
  if (calls.is_null()) return;
  if (!calls.is_array()) refuse_value(param, "must be a list", calls);
  for (std::size_t i = 0; i < calls.size(); ++i) {
    if (!calls[i].is_object()) refuse_value(at(param, i), "must be an object", calls[i]);
    const auto function = calls[i].find("function");
    if (function == calls[i].end() || !function->is_object()) continue;
    const auto arguments = function->find("arguments");
    if (arguments == function->end() || !arguments->is_string()) continue;
    try {
      Json opened = parse_json(arguments->get_ref<const std::string&>());
      if (!opened.is_object()) refuse_value(at(param, i) + ".function.arguments", "must be an object as JSON text", *arguments);
      *arguments = std::move(opened);
    } catch (const RequestError& error) {
      if (error.code() != "invalid_json") throw;
      refuse_value(at(param, i) + ".function.arguments", "must be an object as JSON text", *arguments);
    }
  }
}

}  // namespace

void refuse_value(const std::string& param, const std::string& must, const Json& value) {
  throw RequestError(400, "invalid_value", param, param + " " + must + ", but is " + shown(value));
}

bool read_bool(const std::string& param, const Json& value) {
  if (!value.is_boolean()) refuse_value(param, "must be true or false", value);
  return value.get<bool>();
}

const std::string& read_string(const std::string& param, const Json& value) {
  if (!value.is_string()) refuse_value(param, "must be a string", value);
  return value.get_ref<const std::string&>();
}

std::int64_t read_integer(const std::string& param, const Json& value, std::int64_t low, std::int64_t high) {
  const auto refuse = [&]() {
    refuse_value(param, "must be a whole number from " + std::to_string(low) + " to " + std::to_string(high), value);
  };
  std::int64_t number = 0;
  if (value.is_number_unsigned()) {
    if (value.get<std::uint64_t>() > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) refuse();
    number = static_cast<std::int64_t>(value.get<std::uint64_t>());
  } else if (value.is_number_integer()) {
    number = value.get<std::int64_t>();
  } else if (value.is_number_float()) {
    const double real = value.get<double>();
    if (std::trunc(real) != real || std::fabs(real) > 9007199254740992.0) refuse();  // 2^53: beyond it a double skips whole numbers
    number = static_cast<std::int64_t>(real);
  } else {
    refuse();
  }
  if (number < low || number > high) refuse();
  return number;
}

float read_number(const std::string& param, const Json& value, double low, double high) {
  const double number = value.is_number() ? value.get<double>() : std::numeric_limits<double>::quiet_NaN();
  if (!(number >= low && number <= high)) refuse_value(param, "must be a number from " + brief(low) + " to " + brief(high), value);
  return static_cast<float>(number);
}

std::vector<TokenId> read_token_ids(const std::string& param, const Json& value, std::size_t vocab_size, std::size_t max_count) {
  if (!value.is_array()) refuse_value(param, "must be a list of token ids", value);
  if (value.empty()) refuse_value(param, "must hold at least one token id", value);
  if (value.size() > max_count) refuse_value(param, "must hold at most " + std::to_string(max_count) + " token ids", value);
  std::vector<TokenId> ids;
  ids.reserve(value.size());
  const std::int64_t last = static_cast<std::int64_t>(vocab_size) - 1;
  for (std::size_t i = 0; i < value.size(); ++i) {
    if (value[i].is_number_integer() && value[i].get<std::int64_t>() >= 0 && value[i].get<std::int64_t>() <= last) {
      ids.push_back(static_cast<TokenId>(value[i].get<std::int64_t>()));
    } else {  // off the common path, which builds no name
      ids.push_back(static_cast<TokenId>(read_integer(at(param, i), value[i], 0, last)));
    }
  }
  return ids;
}

std::vector<std::pair<TokenId, float>> read_logit_bias(const std::string& param, const Json& value, std::size_t vocab_size) {
  constexpr double kMaxBias = 100.0;
  if (!value.is_object()) refuse_value(param, "must be an object of token ids and biases", value);
  std::vector<std::pair<TokenId, float>> biases;
  biases.reserve(value.size());
  for (const auto& [key, bias] : value.items()) {
    std::int64_t id = -1;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
    if (error != std::errc() || end != key.data() + key.size() || id < 0 || static_cast<std::uint64_t>(id) >= vocab_size)
      refuse_value(param, "must have token ids from 0 to " + std::to_string(vocab_size - 1) + " as its keys", key);
    biases.emplace_back(static_cast<TokenId>(id), read_number(param + "." + key, bias, -kMaxBias, kMaxBias));
  }
  std::sort(biases.begin(), biases.end());
  const auto twice = std::adjacent_find(biases.begin(), biases.end(), [](const auto& a, const auto& b) { return a.first == b.first; });
  if (twice != biases.end()) refuse_value(param, "must name every token once", std::to_string(twice->first));
  return biases;
}

std::vector<std::string> read_stop_strings(const std::string& param, const Json& value) {
  std::vector<std::string> strings;
  if (value.is_string()) {
    strings.push_back(value.get<std::string>());
  } else if (value.is_array()) {
    if (value.size() > kMaxStopStrings) refuse_value(param, "must hold at most " + std::to_string(kMaxStopStrings) + " strings", value);
    for (std::size_t i = 0; i < value.size(); ++i) strings.push_back(read_string(at(param, i), value[i]));
  } else {
    refuse_value(param, "must be a string or a list of strings", value);
  }
  for (const std::string& string : strings) {
    if (string.empty()) refuse_value(param, "must not hold an empty string", value);
  }
  return strings;
}

Json read_messages(const std::string& param, const Json& value) {
  if (!value.is_array() || value.empty()) refuse_value(param, "must be a list of at least one message", value);
  Json messages = Json::array();
  for (std::size_t i = 0; i < value.size(); ++i) {
    const std::string name = at(param, i);
    if (!value[i].is_object()) refuse_value(name, "must be an object", value[i]);
    Json message = value[i];
    const auto role = message.find("role");
    if (role == message.end()) throw RequestError(400, "missing_parameter", name + ".role", name + ".role is missing");
    if (read_string(name + ".role", *role).empty()) refuse_value(name + ".role", "must not be empty", *role);
    if (const auto calls = message.find("tool_calls"); calls != message.end()) open_tool_calls(name + ".tool_calls", *calls);
    if (const auto content = message.find("content"); content != message.end()) {
      *content = read_content(name + ".content", *content);
    }
    const bool has_content = message.contains("content") && !message["content"].is_null();
    const bool has_calls = message.contains("tool_calls") && !message["tool_calls"].is_null();
    if (!has_content && !has_calls) throw RequestError(400, "missing_parameter", name + ".content", name + ".content is missing");
    messages.push_back(std::move(message));
  }
  return messages;
}

Json read_tools(const std::string& param, const Json& value) {
  if (!value.is_array()) refuse_value(param, "must be a list", value);
  for (std::size_t i = 0; i < value.size(); ++i) {
    const std::string name = at(param, i);
    const Json& tool = value[i];
    if (!tool.is_object()) refuse_value(name, "must be an object", tool);
    const auto type = tool.find("type");
    if (type == tool.end() || *type != "function")
      refuse_value(name + ".type", "must be \"function\"", type == tool.end() ? Json() : *type);
    const auto function = tool.find("function");
    if (function == tool.end() || !function->is_object()) {
      refuse_value(name + ".function", "must be an object", function == tool.end() ? Json() : *function);
    }
  }
  return value.empty() ? Json() : value;
}

}  // namespace lockstep::engine
