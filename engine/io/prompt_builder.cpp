#include "engine/io/prompt_builder.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "engine/io/stable_hash.h"
#include "engine/text/chat_template.h"

namespace lockstep::engine {
namespace {

constexpr std::size_t kCompletionsMaxTokens = 16;  // OpenAI's default
constexpr unsigned kUnusedSeedBits = 11;           // 64 - 53

std::string render(const ParsedRequest& request, const PromptContext& context) {
  if (!context.render_chat) {
    throw RequestError(400, "no_chat_template", "messages", "messages can not be answered: the model has no chat template");
  }
  nlohmann::ordered_json variables = request.chat;
  const auto spell = [&](const char* name, TokenId id) {
    if (id >= 0 && !variables.contains(name)) variables[name] = std::string(context.tokenizer.spelling(id));
  };
  spell("bos_token", context.tokenizer.bos_id());
  spell("eos_token", context.tokenizer.eos_id());
  try {
    return context.render_chat(variables, context.template_time);
  } catch (const text::TemplateError& error) {
    throw RequestError(400, "template_error", "messages", std::string("the chat template refuses the messages: ") + error.what());
  }
}

std::vector<std::vector<TokenId>> tokenize(const ParsedRequest& request, const PromptContext& context) {
  if (request.endpoint == Endpoint::kChat) return {context.tokenizer.encode(render(request, context), false)};
  std::vector<std::vector<TokenId>> prompts;
  for (const RawPrompt& prompt : request.prompts) {
    const std::string* const text = std::get_if<std::string>(&prompt);
    prompts.push_back(text != nullptr ? context.tokenizer.encode(*text, true) : std::get<std::vector<TokenId>>(prompt));
  }
  return prompts;
}

Echo echo_of(const RawPrompt& prompt, const std::vector<TokenId>& ids, const text::Tokenizer& tokenizer) {
  const std::string* const text = std::get_if<std::string>(&prompt);
  return {text != nullptr ? *text : tokenizer.decode(ids, true), ids.front()};
}

/// The name of prompt `index` in messages.
std::string prompt_name(const ParsedRequest& request, std::size_t index) {
  if (request.endpoint == Endpoint::kChat) return "messages";
  return request.prompts.size() == 1 ? "prompt" : "prompt[" + std::to_string(index) + "]";
}

std::uint32_t clip_max_tokens(const ParsedRequest& request, std::size_t prompt_tokens, std::size_t max_model_len) {
  const std::size_t left = max_model_len - prompt_tokens;
  const std::size_t fallback = request.endpoint == Endpoint::kChat ? left : kCompletionsMaxTokens;
  const std::size_t wanted = request.max_tokens ? *request.max_tokens : fallback;
  return static_cast<std::uint32_t>(std::min({wanted, left, static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max())}));
}

}  // namespace

std::uint64_t line_seed(std::uint64_t job_seed, std::uint64_t line_number) {
  return mix_bits(mix_bits(job_seed) ^ line_number) >> kUnusedSeedBits;
}

std::uint64_t prompt_seed(std::uint64_t seed, std::size_t index) {
  return index == 0 ? seed : mix_bits(mix_bits(seed) ^ mix_bits(index)) >> kUnusedSeedBits;
}

PreparedRequest prepare_request(const ParsedRequest& request, std::uint64_t line_number, const PromptContext& context) {
  const std::uint64_t seed = request.seed ? static_cast<std::uint64_t>(*request.seed) : line_seed(context.job_seed, line_number);
  std::vector<std::vector<TokenId>> prompts = tokenize(request, context);
  PreparedRequest prepared;
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    const std::size_t length = prompts[i].size();
    const std::string name = prompt_name(request, i);
    if (length == 0) throw RequestError(400, "empty_prompt", name, name + " is empty: it has no tokens");
    const bool scores = request.echo && request.sampling.logprobs >= 0;
    const bool only_scored = scores && request.max_tokens == 0u;  // nothing is computed of its last token
    if (length >= context.max_model_len + (only_scored ? 2 : 0)) {
      throw RequestError(400, "context_length_exceeded", name,
                         name + " has " + std::to_string(length) + " tokens, which leaves no room for one more in the context of " +
                             std::to_string(context.max_model_len));
    }
    Request one;
    one.prompt = std::move(prompts[i]);
    if (scores) one.first_scored = 1;
    if (request.echo) prepared.echoes.push_back(echo_of(request.prompts[i], one.prompt, context.tokenizer));
    one.sampling = request.sampling;
    one.sampling.seed = prompt_seed(seed, i);
    one.sampling.max_tokens = only_scored ? 0 : clip_max_tokens(request, length, context.max_model_len);
    prepared.requests.push_back(std::move(one));
  }
  return prepared;
}

}  // namespace lockstep::engine
