#include "engine/io/request_parser.h"

#include <algorithm>
#include <array>
#include <limits>
#include <span>
#include <utility>

#include "engine/io/request_values.h"

namespace lockstep::engine {
namespace {

constexpr std::int64_t kMaxChoices = 128;         // n
constexpr std::size_t kMaxPrompts = 2048;         // of one line
constexpr std::size_t kMaxChoicesOfLine = 16384;  // n x prompts
constexpr std::int64_t kMaxTopLogprobs = 20;
constexpr std::size_t kMaxStopTokenIds = 1024;
constexpr std::int64_t kInt32Max = std::numeric_limits<std::int32_t>::max();

/// A body while it is read: parameters that belong together are put together at the end.
struct Draft {
  ParsedRequest& request;
  const RequestContext& context;
  std::optional<std::int64_t> max_completion_tokens{};
  std::optional<bool> chat_logprobs{};
  std::optional<std::int64_t> top_logprobs{};
  bool use_beam_search = false;
  BeamParams beams{};
  std::optional<std::int64_t> best_of{};
  std::vector<std::string> given{};  // parameters that are not null
  Json template_arguments = Json::object();
};

using Read = void (*)(Draft& draft, const std::string& name, const Json& value);
struct Parameter {
  std::string_view name;
  Read read;
};

void ignore(Draft&, const std::string&, const Json&) {}

void read_early_stopping(Draft& draft, const std::string& name, const Json& value) {
  if (value != "never" && !value.is_boolean()) refuse_value(name, "must be true, false or \"never\"", value);
  draft.beams.early_stopping = value == "never" ? EarlyStopping::kNever : value == true ? EarlyStopping::kYes : EarlyStopping::kNo;
}

void read_prompt(Draft& draft, const std::string& name, const Json& value) {
  std::vector<RawPrompt>& prompts = draft.request.prompts;
  const std::size_t vocab_size = draft.context.vocab_size;
  if (value.is_string()) {
    prompts.emplace_back(value.get<std::string>());
    return;
  }
  if (!value.is_array()) refuse_value(name, "must be a string, a list of strings, a list of token ids or a list of such lists", value);
  if (value.empty()) refuse_value(name, "must not be empty", value);
  if (value[0].is_number()) {
    prompts.emplace_back(read_token_ids(name, value, vocab_size, value.size()));
    return;
  }
  if (value.size() > kMaxPrompts) refuse_value(name, "must hold at most " + std::to_string(kMaxPrompts) + " prompts", value);
  const bool strings = value[0].is_string();
  for (std::size_t i = 0; i < value.size(); ++i) {
    const std::string element = name + "[" + std::to_string(i) + "]";
    if (strings) {
      prompts.emplace_back(read_string(element, value[i]));
    } else {
      prompts.emplace_back(read_token_ids(element, value[i], vocab_size, value[i].size()));
    }
  }
}

void read_template_arguments(Draft& draft, const std::string& name, const Json& value) {
  if (!value.is_object()) refuse_value(name, "must be an object", value);
  for (const auto& [key, argument] : value.items()) {
    if (key == "messages" || key == "tools") refuse_value(name, "must not hold \"" + key + "\"", value);
  }
  draft.template_arguments = value;
}

constexpr auto kSharedParameters = std::to_array<Parameter>({
    {"model", [](Draft& d, const std::string& name, const Json& value) { d.request.model = read_string(name, value); }},
    {"temperature", [](Draft& d, const std::string& name, const Json& value) { d.request.sampling.temperature = read_number(name, value, 0, 2); }},
    {"top_p", [](Draft& d, const std::string& name, const Json& value) { d.request.sampling.top_p = read_number(name, value, 0, 1); }},
    {"min_p", [](Draft& d, const std::string& name, const Json& value) { d.request.sampling.min_p = read_number(name, value, 0, 1); }},
    {"top_k", [](Draft& d, const std::string& name, const Json& value) {
       d.request.sampling.top_k = static_cast<std::int32_t>(read_integer(name, value, -1, kInt32Max));
     }},
    {"typical_p", [](Draft& d, const std::string& name, const Json& value) { d.request.sampling.typical_p = read_number(name, value, 0, 1); }},
    {"no_repeat_ngram_size", [](Draft& d, const std::string& name, const Json& value) {
       d.request.sampling.no_repeat_ngram_size = static_cast<std::uint32_t>(read_integer(name, value, 0, kInt32Max));
     }},
    {"logit_bias", [](Draft& d, const std::string& name, const Json& value) {
       d.request.sampling.logit_bias = read_logit_bias(name, value, d.context.vocab_size);
     }},
    {"min_tokens", [](Draft& d, const std::string& name, const Json& value) {
       d.request.sampling.min_tokens = static_cast<std::uint32_t>(read_integer(name, value, 0, kInt32Max));
     }},
    {"presence_penalty", [](Draft& d, const std::string& name, const Json& value) { d.request.sampling.presence_penalty = read_number(name, value, -2, 2); }},
    {"frequency_penalty", [](Draft& d, const std::string& name, const Json& value) { d.request.sampling.frequency_penalty = read_number(name, value, -2, 2); }},
    {"repetition_penalty", [](Draft& d, const std::string& name, const Json& value) { d.request.sampling.repetition_penalty = read_number(name, value, 0.01, 100); }},
    {"n", [](Draft& d, const std::string& name, const Json& value) {
       d.request.sampling.n = static_cast<std::uint32_t>(read_integer(name, value, 1, kMaxChoices));
     }},
    {"seed", [](Draft& d, const std::string& name, const Json& value) {
       d.request.seed = read_integer(name, value, std::numeric_limits<std::int64_t>::min(), std::numeric_limits<std::int64_t>::max());
     }},
    {"max_tokens", [](Draft& d, const std::string& name, const Json& value) {
       const std::int64_t least = d.request.endpoint == Endpoint::kCompletions ? 0 : 1;  // 0: with echo
       d.request.max_tokens = static_cast<std::uint32_t>(read_integer(name, value, least, kInt32Max));
     }},
    {"stop", [](Draft& d, const std::string& name, const Json& value) { d.request.sampling.stop = read_stop_strings(name, value); }},
    {"stop_token_ids", [](Draft& d, const std::string& name, const Json& value) {
       if (value.is_array() && value.empty()) return;
       d.request.sampling.stop_token_ids = read_token_ids(name, value, d.context.vocab_size, kMaxStopTokenIds);
     }},
    {"ignore_eos", [](Draft& d, const std::string& name, const Json& value) { d.request.sampling.ignore_eos = read_bool(name, value); }},
    {"use_beam_search", [](Draft& d, const std::string& name, const Json& value) { d.use_beam_search = read_bool(name, value); }},
    {"best_of", [](Draft& d, const std::string& name, const Json& value) { d.best_of = read_integer(name, value, 1, kMaxChoices); }},
    {"length_penalty", [](Draft& d, const std::string& name, const Json& value) { d.beams.length_penalty = read_number(name, value, -10, 10); }},
    {"early_stopping", read_early_stopping},
    {"user", ignore},
    {"metadata", ignore},
    {"store", ignore},
});

constexpr auto kChatParameters = std::to_array<Parameter>({
    {"messages", [](Draft& d, const std::string& name, const Json& value) { d.request.chat["messages"] = read_messages(name, value); }},
    {"tools", [](Draft& d, const std::string& name, const Json& value) { d.request.chat["tools"] = read_tools(name, value); }},
    {"add_generation_prompt",
     [](Draft& d, const std::string& name, const Json& value) { d.request.chat["add_generation_prompt"] = read_bool(name, value); }},
    {"chat_template_kwargs", read_template_arguments},
    {"max_completion_tokens",
     [](Draft& d, const std::string& name, const Json& value) { d.max_completion_tokens = read_integer(name, value, 1, kInt32Max); }},
    {"logprobs", [](Draft& d, const std::string& name, const Json& value) { d.chat_logprobs = read_bool(name, value); }},
    {"top_logprobs",
     [](Draft& d, const std::string& name, const Json& value) { d.top_logprobs = read_integer(name, value, 0, kMaxTopLogprobs); }},
});

constexpr auto kCompletionsParameters = std::to_array<Parameter>({
    {"prompt", read_prompt},
    {"echo", [](Draft& d, const std::string& name, const Json& value) { d.request.echo = read_bool(name, value); }},
    {"logprobs",
     [](Draft& d, const std::string& name, const Json& value) {
       d.request.sampling.logprobs = static_cast<std::int32_t>(read_integer(name, value, 0, kMaxTopLogprobs));
     }},
});

/// Parameters that we do not support, but whose neutral value clients write out: that one changes nothing, so it may stand.
struct Neutral {
  std::string_view name;
  std::string_view value;  // as compact JSON
};
constexpr auto kNeutral = std::to_array<Neutral>({
    {"stream", "false"},
    {"echo", "false"},
    {"response_format", R"({"type":"text"})"},
    {"tool_choice", R"("auto")"},
    {"parallel_tool_calls", "true"},
    {"skip_special_tokens", "true"},
    {"include_stop_str_in_output", "false"},
    {"continue_final_message", "false"},
});

Read find_reader(std::span<const Parameter> parameters, std::string_view name) {
  const auto found = std::find_if(parameters.begin(), parameters.end(), [&](const Parameter& parameter) { return parameter.name == name; });
  return found == parameters.end() ? nullptr : found->read;
}

void read_parameter(Draft& draft, const std::string& name, const Json& value) {
  if (value.is_null()) return;
  draft.given.push_back(name);
  const std::span<const Parameter> own = draft.request.endpoint == Endpoint::kChat ? std::span<const Parameter>(kChatParameters)
                                                                                   : std::span<const Parameter>(kCompletionsParameters);
  Read read = find_reader(own, name);
  if (read == nullptr) read = find_reader(kSharedParameters, name);
  if (read != nullptr) return read(draft, name, value);
  const auto neutral = std::find_if(kNeutral.begin(), kNeutral.end(), [&](const Neutral& entry) { return entry.name == name; });
  if (neutral != kNeutral.end()) {
    if (value.size() <= 1 && value.dump(-1, ' ', false, Json::error_handler_t::replace) == neutral->value) return;
    throw RequestError(400, "unsupported_parameter", name,
                       name + " is not supported, except " + std::string(neutral->value) + ", but is " + shown(value));
  }
  const std::string known_name = shown(name);
  throw RequestError(400, "unsupported_parameter", known_name.substr(1, known_name.size() - 2),
                     "unknown or unsupported parameter " + known_name);
}

void apply_defaults(const GenerationDefaults& defaults, SamplingParams& sampling) {
  sampling.temperature = defaults.temperature.value_or(sampling.temperature);
  sampling.top_p = defaults.top_p.value_or(sampling.top_p);
  sampling.top_k = defaults.top_k.value_or(sampling.top_k);
  sampling.min_p = defaults.min_p.value_or(sampling.min_p);
  sampling.repetition_penalty = defaults.repetition_penalty.value_or(sampling.repetition_penalty);
}

void finish_chat(Draft& draft) {
  ParsedRequest& request = draft.request;
  if (!request.chat.contains("messages")) throw RequestError(400, "missing_parameter", "messages", "messages is missing");
  if (draft.max_completion_tokens) request.max_tokens = static_cast<std::uint32_t>(*draft.max_completion_tokens);
  if (draft.chat_logprobs.value_or(false)) {
    request.sampling.logprobs = static_cast<std::int32_t>(draft.top_logprobs.value_or(0));
  } else if (draft.top_logprobs) {
    throw RequestError(400, "invalid_value", "top_logprobs", "top_logprobs needs logprobs to be true, but it is not");
  }
  // As transformers calls a template: these are always there, and a null is "none" to it.
  if (!request.chat.contains("tools")) request.chat["tools"] = nullptr;
  request.chat["documents"] = nullptr;
  if (!request.chat.contains("add_generation_prompt")) request.chat["add_generation_prompt"] = true;
  for (const auto& [key, argument] : draft.template_arguments.items()) request.chat[key] = argument;
}

void finish_completions(const Draft& draft) {
  const ParsedRequest& request = draft.request;
  if (request.prompts.empty()) throw RequestError(400, "missing_parameter", "prompt", "prompt is missing");
  if (request.max_tokens == 0u && !request.echo)
    throw RequestError(400, "invalid_value", "max_tokens", "max_tokens must be at least 1 where echo is not true, but is 0");
  if (request.prompts.size() * request.sampling.n > kMaxChoicesOfLine) {
    throw RequestError(400, "invalid_value", "n",
                       "n x prompts must be at most " + std::to_string(kMaxChoicesOfLine) + ", but is " +
                           std::to_string(request.sampling.n) + " x " + std::to_string(request.prompts.size()));
  }
}

/// What may stand beside use_beam_search: all else steers sampling, or asks for what a search does not have.
constexpr auto kWithBeams =
    std::to_array<std::string_view>({"model", "messages", "tools", "add_generation_prompt", "chat_template_kwargs", "prompt", "max_tokens",
                                     "max_completion_tokens", "n", "best_of", "use_beam_search", "length_penalty", "early_stopping",
                                     "stop_token_ids", "ignore_eos", "seed", "user", "metadata", "store"});

void finish_beams(const Draft& draft) {
  SamplingParams& sampling = draft.request.sampling;
  const auto is_given = [&](std::string_view name) { return std::find(draft.given.begin(), draft.given.end(), name) != draft.given.end(); };
  if (!draft.use_beam_search) {
    for (const char* name : {"best_of", "length_penalty", "early_stopping"}) {
      if (is_given(name))
        throw RequestError(400, "invalid_value", name, std::string(name) + " needs use_beam_search to be true, but it is not");
    }
    return;
  }
  for (const std::string& name : draft.given) {
    const bool neutral =  // its value was checked, but for that of echo where it is supported
        name != "echo" && std::any_of(kNeutral.begin(), kNeutral.end(), [&](const Neutral& entry) { return entry.name == name; });
    const bool off = (name == "temperature" && sampling.temperature == 0.0f) || (name == "echo" && !draft.request.echo) ||
                     ((name == "logprobs" || name == "top_logprobs") && sampling.logprobs < 0);
    if (neutral || off || std::find(kWithBeams.begin(), kWithBeams.end(), name) != kWithBeams.end()) continue;
    throw RequestError(400, "unsupported_parameter", name, name + " is not supported together with use_beam_search");
  }
  BeamParams beams = draft.beams;
  beams.num_beams = static_cast<std::uint32_t>(draft.best_of.value_or(sampling.n));
  if (beams.num_beams < sampling.n) {
    throw RequestError(400, "invalid_value", "best_of",
                       "best_of must be at least n, but is " + std::to_string(beams.num_beams) + " of " + std::to_string(sampling.n));
  }
  SamplingParams kept;
  kept.n = sampling.n;
  kept.ignore_eos = sampling.ignore_eos;
  kept.stop_token_ids = sampling.stop_token_ids;
  kept.beams = beams;
  sampling = std::move(kept);
}

void read_body(const Json& body, const RequestContext& context, ParsedRequest& request) {
  if (request.endpoint == Endpoint::kChat) request.chat = Json::object();
  apply_defaults(context.defaults, request.sampling);
  Draft draft{.request = request, .context = context};
  for (const auto& [name, value] : body.items()) read_parameter(draft, name, value);
  if (context.served_model_name && !request.model.empty() && request.model != *context.served_model_name) {
    throw RequestError(404, "model_not_found", "model",
                       "the model " + shown(request.model) + " is not served here, but " + shown(*context.served_model_name));
  }
  if (request.endpoint == Endpoint::kChat) {
    finish_chat(draft);
  } else {
    finish_completions(draft);
  }
  finish_beams(draft);
  if (request.max_tokens && request.sampling.min_tokens > *request.max_tokens) {
    throw RequestError(400, "invalid_value", "min_tokens",
                       "min_tokens must be at most max_tokens, but is " + std::to_string(request.sampling.min_tokens) + " of " +
                           std::to_string(*request.max_tokens));
  }
}

bool given(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && !found->is_null();
}

/// From the URL if there is one, else from what the body holds.
Endpoint read_endpoint(const Json& envelope, const Json& body) {
  if (given(envelope, "method") && envelope["method"] != "POST") refuse_value("method", "must be \"POST\"", envelope["method"]);
  if (given(envelope, "url")) {
    const Json& url = envelope["url"];
    if (url == "/v1/chat/completions") return Endpoint::kChat;
    if (url == "/v1/completions") return Endpoint::kCompletions;
    refuse_value("url", "must be \"/v1/chat/completions\" or \"/v1/completions\"", url);
  }
  const bool messages = given(body, "messages");
  const bool prompt = given(body, "prompt");
  if (messages && prompt)
    throw RequestError(400, "invalid_value", "prompt", "prompt and messages are both given, and no url says which counts");
  if (!messages && !prompt) throw RequestError(400, "missing_parameter", "prompt", "neither prompt nor messages is given");
  return messages ? Endpoint::kChat : Endpoint::kCompletions;
}

constexpr std::array<std::string_view, 3> kEnvelopeKeys = {"custom_id", "method", "url"};

void read_line(Json& line, const RequestContext& context, RequestLine& result) {
  if (!line.is_object()) throw RequestError(400, "invalid_request", "", "the line must be a JSON object, but is " + shown(line));
  if (given(line, "custom_id")) {
    const Json& custom_id = line["custom_id"];
    if (!custom_id.is_string() || custom_id == "") refuse_value("custom_id", "must be a string that is not empty", custom_id);
    result.custom_id = custom_id.get<std::string>();
  }
  Json body;
  if (line.contains("body")) {
    for (const auto& [key, value] : line.items()) {
      if (key == "body" || std::find(kEnvelopeKeys.begin(), kEnvelopeKeys.end(), key) != kEnvelopeKeys.end()) continue;
      const std::string name = shown(key);
      throw RequestError(400, "unsupported_parameter", name.substr(1, name.size() - 2), "unknown key " + name + " beside body");
    }
    body = std::move(line["body"]);
    if (!body.is_object()) refuse_value("body", "must be an object", body);
  } else {
    if (given(line, "url") && !given(line, "prompt") && !given(line, "messages"))
      throw RequestError(400, "missing_parameter", "body", "body is missing");
    body = Json::object();
    for (auto& [key, value] : line.items()) {
      if (std::find(kEnvelopeKeys.begin(), kEnvelopeKeys.end(), key) == kEnvelopeKeys.end()) body[key] = std::move(value);
    }
  }
  result.request.endpoint = read_endpoint(line, body);
  read_body(body, context, result.request);
}

}  // namespace

RequestLine parse_request_line(std::string_view line, std::uint64_t line_number, const RequestContext& context) {
  RequestLine result;
  result.custom_id = "line-" + std::to_string(line_number);
  try {
    Json parsed = parse_json(line);
    read_line(parsed, context, result);
  } catch (const RequestError& error) {
    result.error = error;
  }
  return result;
}

}  // namespace lockstep::engine
