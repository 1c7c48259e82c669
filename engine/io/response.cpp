#include "engine/io/response.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <utility>

#include <utf8proc.h>

#include "engine/io/request_json.h"
#include "engine/io/stable_hash.h"

namespace lockstep::engine {
namespace {

constexpr std::string_view kIdPrefix = "batch_req_";
constexpr std::string_view kLineStart = R"({"id":"batch_req_)";
constexpr float kLowestLogprob = -9999.0f;

std::string key_text(const AnswerKey& key) { return std::to_string(key.line_number) + "_" + hex_digits(key.fingerprint); }

/// Escapes U+2028, U+2029 and U+0085. In a JSON text they stand inside strings alone.
std::string escape_separators(const std::string& json) {
  std::string escaped;
  escaped.reserve(json.size());
  for (std::size_t i = 0; i < json.size();) {
    const std::string_view rest = std::string_view(json).substr(i, 3);
    if (rest == "\xe2\x80\xa8" || rest == "\xe2\x80\xa9") {
      escaped += rest[2] == '\xa8' ? "\\u2028" : "\\u2029";
      i += 3;
    } else if (rest.starts_with("\xc2\x85")) {
      escaped += "\\u0085";
      i += 2;
    } else {
      escaped += json[i++];
    }
  }
  return escaped;
}

std::string to_line(const Json& json) { return escape_separators(json.dump(-1, ' ', false, Json::error_handler_t::replace)); }

Json envelope(const AnswerKey& key, const std::string& custom_id) {
  Json line;
  line["id"] = std::string(kIdPrefix) + key_text(key);  // first: answer_key() looks for it there
  line["custom_id"] = custom_id;
  line["response"] = nullptr;
  line["error"] = nullptr;
  return line;
}

Json response(const AnswerKey& key, int status, Json body) {
  Json json;
  json["status_code"] = status;
  json["request_id"] = "req_" + key_text(key);
  json["body"] = std::move(body);
  return json;
}

/// The shortest decimal number that reads back as this float.
Json logprob_value(float logprob) {
  if (!(logprob > kLowestLogprob)) logprob = kLowestLogprob;
  std::array<char, 32> digits{};
  const auto end = std::to_chars(digits.data(), digits.data() + digits.size() - 1, logprob);
  *end.ptr = '\0';
  return std::strtod(digits.data(), nullptr);
}

bool valid_utf8(std::string_view bytes) {
  const auto* at = reinterpret_cast<const utf8proc_uint8_t*>(bytes.data());
  for (auto left = static_cast<utf8proc_ssize_t>(bytes.size()); left > 0;) {
    utf8proc_int32_t point = 0;
    const utf8proc_ssize_t length = utf8proc_iterate(at, left, &point);
    if (length <= 0) return false;
    at += length;
    left -= length;
  }
  return true;
}

/// A token as text; one that is no whole characters as OpenAI spells it: bytes:\xe2\x80
std::string token_text(std::string_view bytes) {
  if (valid_utf8(bytes)) return std::string(bytes);
  std::string text = "bytes:";
  for (const char c : bytes) text += "\\x" + hex_digits(static_cast<unsigned char>(c)).substr(14);
  return text;
}

Json token_entry(TokenId token, float logprob, const text::Tokenizer& tokenizer) {
  const std::string_view bytes = tokenizer.bytes_of(token, true);
  Json values = Json::array();
  for (const char c : bytes) values.push_back(static_cast<unsigned>(static_cast<unsigned char>(c)));
  Json entry;
  entry["token"] = token_text(bytes);
  entry["logprob"] = logprob_value(logprob);
  entry["bytes"] = std::move(values);
  return entry;
}

Json chat_logprobs(const Choice& choice, const text::Tokenizer& tokenizer) {
  Json content = Json::array();
  for (const TokenLogprob& token : choice.logprobs) {
    Json entry = token_entry(token.token, token.logprob, tokenizer);
    entry["top_logprobs"] = Json::array();
    for (const auto& [id, logprob] : token.top) entry["top_logprobs"].push_back(token_entry(id, logprob, tokenizer));
    content.push_back(std::move(entry));
  }
  return Json{{"content", std::move(content)}, {"refusal", nullptr}};
}

std::size_t count_characters(std::string_view text) {
  return static_cast<std::size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; }));
}

/// The four lists of a completion's log-probabilities. Offsets count characters of the choice's text; a token behind its end (a stop
/// string, an EOS) has the end's.
class LogprobLists {
 public:
  LogprobLists(const text::Tokenizer& tokenizer, std::size_t length) : tokenizer_(tokenizer), length_(length) {}
  /// The first token of a prompt: nothing comes before it.
  void add_first(TokenId token) { add(token, Json(), Json()); }
  void add(const TokenLogprob& token) {
    Json top = Json::object();
    for (const auto& [id, logprob] : token.top) top.emplace(token_text(tokenizer_.bytes_of(id, true)), logprob_value(logprob));
    top.emplace(token_text(tokenizer_.bytes_of(token.token, true)), logprob_value(token.logprob));
    add(token.token, logprob_value(token.logprob), std::move(top));
  }
  void move_to(std::size_t offset) { offset_ = offset; }
  Json finish() {
    return Json{{"tokens", std::move(tokens_)},
                {"token_logprobs", std::move(values_)},
                {"top_logprobs", std::move(tops_)},
                {"text_offset", std::move(offsets_)}};
  }

 private:
  void add(TokenId token, Json value, Json top) {
    tokens_.push_back(token_text(tokenizer_.bytes_of(token, true)));
    values_.push_back(std::move(value));
    tops_.push_back(std::move(top));
    offsets_.push_back(std::min(offset_, length_));
    offset_ += count_characters(tokenizer_.bytes_of(token, false));
  }

  const text::Tokenizer& tokenizer_;
  std::size_t length_;
  std::size_t offset_ = 0;
  Json tokens_ = Json::array(), values_ = Json::array(), tops_ = Json::array(), offsets_ = Json::array();
};

Json completions_logprobs(const Choice& choice, const Echo* echo, const Completion& completion, const text::Tokenizer& tokenizer) {
  const std::size_t echoed = echo != nullptr ? count_characters(echo->text) : 0;
  LogprobLists lists(tokenizer, echoed + count_characters(choice.text));
  if (echo != nullptr) {
    lists.add_first(echo->first);
    for (const TokenLogprob& token : completion.prompt_logprobs) lists.add(token);
    lists.move_to(echoed);
  }
  for (const TokenLogprob& token : choice.logprobs) lists.add(token);
  return lists.finish();
}

Json choice_entry(const AnswerRequest& request, std::size_t index, const Choice& choice, const Echo* echo, const Completion& completion,
                  const text::Tokenizer& tokenizer) {
  Json entry;
  if (request.endpoint == Endpoint::kChat) {
    entry["index"] = index;
    entry["message"] = Json{{"role", "assistant"}, {"content", choice.text}, {"refusal", nullptr}};
    entry["logprobs"] = request.logprobs ? chat_logprobs(choice, tokenizer) : Json();
  } else {
    entry["text"] = echo != nullptr ? echo->text + choice.text : choice.text;
    entry["index"] = index;
    entry["logprobs"] = request.logprobs ? completions_logprobs(choice, echo, completion, tokenizer) : Json();
  }
  if (request.beam_search) entry["beam_score"] = logprob_value(choice.beam_score);
  entry["finish_reason"] = choice.finish_reason == FinishReason::kStop ? "stop" : "length";
  return entry;
}

/// The seeds that repeat this answer.
Json seed_report(const AnswerRequest& request) {
  Json report;
  report["seed"] = request.seed ? Json(*request.seed) : Json(request.seeds.front());
  if (request.seeds.size() > 1) {
    Json seeds = request.seeds;
    if (request.seed) seeds[0] = *request.seed;
    report["prompt_seeds"] = std::move(seeds);
  }
  return report;
}

}  // namespace

Answer completed_answer(const AnswerRequest& request, std::span<const Completion> completions, const AnswerContext& context) {
  const bool chat = request.endpoint == Endpoint::kChat;
  Json choices = Json::array();
  std::size_t prompt_tokens = 0, completion_tokens = 0;
  for (std::size_t prompt = 0; prompt < completions.size(); ++prompt) {
    prompt_tokens += completions[prompt].prompt_tokens;
    for (const Choice& choice : completions[prompt].choices) {
      const std::size_t index = prompt * request.choices_per_prompt + choice.index;
      if (choice.finish_reason == FinishReason::kError) {
        return failed_answer(request.key, request.custom_id, "generation_failed", "choice " + std::to_string(index) + ": " + choice.error);
      }
      completion_tokens += choice.tokens.size();
      const Echo* const echo = request.echoes.empty() ? nullptr : &request.echoes[prompt];
      choices.push_back(choice_entry(request, index, choice, echo, completions[prompt], context.tokenizer));
    }
  }
  Json body;
  body["id"] = (chat ? "chatcmpl-" : "cmpl-") + key_text(request.key);
  body["object"] = chat ? "chat.completion" : "text_completion";
  body["created"] = context.created;
  body["model"] = request.model.empty() ? context.model : request.model;
  body["choices"] = std::move(choices);
  body["usage"] =
      Json{{"prompt_tokens", prompt_tokens}, {"completion_tokens", completion_tokens}, {"total_tokens", prompt_tokens + completion_tokens}};
  body["system_fingerprint"] = context.system_fingerprint;
  body["lockstep"] = seed_report(request);
  Json line = envelope(request.key, request.custom_id);
  line["response"] = response(request.key, 200, std::move(body));
  return {to_line(line), true};
}

Answer refused_answer(const AnswerKey& key, const std::string& custom_id, const RequestError& error) {
  Json reason;
  reason["message"] = error.what();
  reason["type"] = "invalid_request_error";
  reason["param"] = error.param().empty() ? Json() : Json(error.param());
  reason["code"] = error.code();
  Json line = envelope(key, custom_id);
  line["response"] = response(key, error.status(), Json{{"error", std::move(reason)}});
  return {to_line(line), false};
}

Answer failed_answer(const AnswerKey& key, const std::string& custom_id, const std::string& code, const std::string& message) {
  Json line = envelope(key, custom_id);
  line["error"] = Json{{"code", code}, {"message", message}};
  return {to_line(line), false};
}

std::optional<AnswerKey> answer_key(std::string_view line) {
  if (!line.starts_with(kLineStart)) return std::nullopt;
  const char* const begin = line.data() + kLineStart.size();
  const char* const end = line.data() + line.size();
  AnswerKey key;
  const auto number = std::from_chars(begin, end, key.line_number);
  if (number.ec != std::errc() || number.ptr == end || *number.ptr != '_' || key.line_number == 0) return std::nullopt;
  const auto hash = std::from_chars(number.ptr + 1, end, key.fingerprint, 16);
  if (hash.ec != std::errc() || hash.ptr - number.ptr != 17 || hash.ptr == end || *hash.ptr != '"') return std::nullopt;
  return key;
}

std::optional<bool> answer_status(std::string_view line) {
  if (!answer_key(line)) return std::nullopt;
  const auto json = nlohmann::json::parse(line, nullptr, false);
  if (json.is_discarded() || !json.is_object() || !json.contains("response") || !json.contains("error")) return std::nullopt;
  const auto& reply = json["response"];
  return reply.is_object() && reply.value("status_code", nlohmann::json()) == 200;
}

}  // namespace lockstep::engine
