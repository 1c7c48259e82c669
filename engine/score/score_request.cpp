#include "engine/score/score_request.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <new>

#include "engine/io/request_json.h"
#include "engine/io/request_values.h"
#include "engine/score/token_pair.h"

namespace lockstep::engine {
namespace {

constexpr auto kKeys = std::to_array<std::string_view>({"id", "metadata", "context", "continuation", "text", "token_logprobs"});

bool given(const Json& line, const char* key) {
  const auto found = line.find(key);
  return found != line.end() && !found->is_null();
}

const text::Tokenizer& tokenizer_of(const ScoreContext& context, const std::string& param) {
  if (context.tokenizer == nullptr)
    throw RequestError(400, "no_tokenizer", param, param + " is text, and the model has no usable tokenizer: give token ids");
  return *context.tokenizer;
}

/// An empty list is fine where `may_be_empty`.
std::vector<TokenId> ids_of(const std::string& param, const Json& value, const ScoreContext& context, bool may_be_empty) {
  if (may_be_empty && value.is_array() && value.empty()) return {};
  return read_token_ids(param, value, context.vocab_size, value.size());
}

void put_prefix(std::vector<TokenId>& tokens, const ScoreContext& context, const std::string& param) {
  const TokenId prefix = context.tokenizer != nullptr ? prefix_token(*context.tokenizer) : -1;
  if (!tokens.empty() && tokens.front() == prefix) return;
  if (prefix < 0)
    throw RequestError(400, "empty_context", param,
                       "there is nothing before " + param + ", and the model has neither BOS nor EOS to begin with");
  tokens.insert(tokens.begin(), prefix);
}

void read_pair(const Json& line, const ScoreContext& context, ScoreRequest& request) {
  for (const char* key : {"context", "continuation"}) {
    if (!given(line, key)) throw RequestError(400, "missing_parameter", key, std::string(key) + " is missing");
  }
  const Json& head = line["context"];
  const Json& tail = line["continuation"];
  TokenPair pair;
  if (head.is_array() && tail.is_array()) {
    pair.tokens = ids_of("context", head, context, true);
    pair.first_scored = pair.tokens.size();
    const std::vector<TokenId> ids = ids_of("continuation", tail, context, false);
    pair.tokens.insert(pair.tokens.end(), ids.begin(), ids.end());
    if (pair.first_scored == 0) {
      put_prefix(pair.tokens, context, "continuation");
      pair.first_scored = 1;
    }
    if (pair.first_scored == pair.tokens.size())
      throw RequestError(400, "empty_continuation", "continuation", "continuation is empty: it has no tokens behind the first one");
  } else {
    const std::string& text = read_string("context", head);
    pair = pair_tokens(tokenizer_of(context, "context"), text, read_string("continuation", tail), context.add_special);
  }
  const std::size_t num_scored = pair.tokens.size() - pair.first_scored;
  if (num_scored > context.max_model_len) {
    throw RequestError(400, "context_length_exceeded", "continuation",
                       "continuation has " + std::to_string(num_scored) + " tokens, more than the context of " +
                           std::to_string(context.max_model_len) + " has room for");
  }
  const std::size_t most = context.max_model_len + 1;  // the last token is only scored
  if (pair.tokens.size() > most) request.num_cut = pair.tokens.size() - most;
  pair.tokens.erase(pair.tokens.begin(), pair.tokens.begin() + static_cast<std::ptrdiff_t>(request.num_cut));
  request.tokens = std::move(pair.tokens);
  request.windows = {{0, request.tokens.size(), pair.first_scored - request.num_cut}};
}

void read_text(const Json& line, const ScoreContext& context, ScoreRequest& request) {
  const Json& text = line["text"];
  request.rolling = true;
  if (text.is_array()) {
    request.tokens = ids_of("text", text, context, false);
  } else {
    const std::string& string = read_string("text", text);
    request.tokens = encode_open(tokenizer_of(context, "text"), string, false);
    request.num_bytes = string.size();
  }
  put_prefix(request.tokens, context, "text");
  request.windows = rolling_windows(request.tokens.size(), context.max_model_len);
  if (request.windows.empty()) throw RequestError(400, "empty_text", "text", "text is empty: it has no tokens");
}

void read_line(const Json& line, const ScoreContext& context, ScoreRequest& request) {
  if (!line.is_object()) throw RequestError(400, "invalid_request", "", "the line must be a JSON object, but is " + shown(line));
  if (given(line, "id")) {
    if (!line["id"].is_string() && !line["id"].is_number_integer()) refuse_value("id", "must be a string or a whole number", line["id"]);
    request.id = line["id"];
  }
  for (const auto& [key, value] : line.items()) {
    if (std::find(kKeys.begin(), kKeys.end(), key) != kKeys.end()) continue;
    const std::string name = shown(key);
    throw RequestError(400, "unsupported_parameter", name.substr(1, name.size() - 2),
                       "unknown key " + name + ": what is to be handed on belongs into metadata");
  }
  if (given(line, "metadata")) request.metadata = line["metadata"];
  if (given(line, "token_logprobs")) request.token_logprobs = read_bool("token_logprobs", line["token_logprobs"]);
  if (!given(line, "text")) return read_pair(line, context, request);
  if (given(line, "context") || given(line, "continuation"))
    throw RequestError(400, "invalid_value", "text", "text is given beside a context or continuation: one line asks one thing");
  read_text(line, context, request);
}

/// The shortest decimal that reads back as this number, so that files compare byte for byte.
double shortest(float value) {
  std::array<char, 32> digits{};
  const auto end = std::to_chars(digits.data(), digits.data() + digits.size() - 1, value);
  *end.ptr = '\0';
  return std::strtod(digits.data(), nullptr);
}

Json start_line(const ScoreRequest& request) {
  Json line;
  line["id"] = request.id;
  return line;
}

std::string finish_line(const ScoreRequest& request, Json line) {
  if (!request.metadata.is_null()) line["metadata"] = request.metadata;
  return line.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace

ScoreRequest parse_score_line(std::string_view line, std::uint64_t line_number, const ScoreContext& context) {
  ScoreRequest request;
  request.id = "line-" + std::to_string(line_number);
  try {
    read_line(parse_json(line), context, request);
  } catch (const RequestError& error) {
    request.error = error;
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& error) {  // a fault of ours in the tokenizer
    request.error = RequestError(500, "internal_error", "", error.what());
  }
  return request;
}

std::string score_line(const ScoreRequest& request, const std::vector<std::vector<TokenLogprob>>& scores) {
  double sum = 0.0;
  bool is_greedy = true;
  std::size_t num_tokens = 0;
  Json tokens = Json::array(), logprobs = Json::array();
  for (const std::vector<TokenLogprob>& window : scores) {
    double sum_of_window = 0.0;
    for (const TokenLogprob& token : window) {
      sum_of_window += static_cast<double>(token.logprob);
      is_greedy = is_greedy && token.is_greedy;
      if (!request.token_logprobs) continue;
      tokens.push_back(token.token);
      logprobs.push_back(shortest(token.logprob));
    }
    sum += sum_of_window;
    num_tokens += window.size();
  }
  Json line = start_line(request);
  line["loglikelihood"] = sum;
  if (!request.rolling) line["is_greedy"] = is_greedy;
  line["num_tokens"] = num_tokens;
  if (request.num_bytes > 0) line["num_bytes"] = request.num_bytes;
  if (request.num_cut > 0) line["num_cut"] = request.num_cut;
  if (request.token_logprobs) {
    line["tokens"] = std::move(tokens);
    line["token_logprobs"] = std::move(logprobs);
  }
  return finish_line(request, std::move(line));
}

std::string score_error_line(const ScoreRequest& request, const RequestError& error) {
  Json line = start_line(request);
  line["error"] = Json{{"code", error.code()}, {"message", error.what()}, {"param", error.param().empty() ? Json() : Json(error.param())}};
  return finish_line(request, std::move(line));
}

}  // namespace lockstep::engine
