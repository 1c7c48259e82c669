#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "engine/io/request_error.h"
#include "engine/io/request_json.h"
#include "engine/runtime/request.h"

namespace lockstep::engine {

// Typed reading of request parameters. Each throws RequestError 400 that names the parameter, what it has to be, and what it is.

/// `must`: "must be a string"; the message is "PARAM must be a string, but is VALUE".
[[noreturn]] void refuse_value(const std::string& param, const std::string& must, const Json& value);

bool read_bool(const std::string& param, const Json& value);
const std::string& read_string(const std::string& param, const Json& value);
/// A whole number, written as 5 or 5.0.
std::int64_t read_integer(const std::string& param, const Json& value, std::int64_t low, std::int64_t high);
float read_number(const std::string& param, const Json& value, double low, double high);
/// Token ids below `vocab_size`, at least one and at most `max_count`.
std::vector<TokenId> read_token_ids(const std::string& param, const Json& value, std::size_t vocab_size, std::size_t max_count);
/// One string or a list of them, none empty.
std::vector<std::string> read_stop_strings(const std::string& param, const Json& value);

/// {"50256": -100, ...}: token ids below `vocab_size`, in decimal, each once, with -100 ... 100; ids ascending.
std::vector<std::pair<TokenId, float>> read_logit_bias(const std::string& param, const Json& value, std::size_t vocab_size);

/// A list of messages as templates want it: content is a string (text parts are joined by '\n') or null, arguments of tool calls are
/// objects.
Json read_messages(const std::string& param, const Json& value);
/// A list of function tools, unchanged.
Json read_tools(const std::string& param, const Json& value);

}  // namespace lockstep::engine
