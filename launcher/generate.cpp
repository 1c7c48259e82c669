#include "launcher/generate.h"

#include <map>
#include <optional>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "engine/io/usage_error.h"
#include "engine/text/chat_template.h"
#include "engine/weights/safetensors.h"

namespace lockstep::launcher {
namespace {

using engine::UsageError;
using Ids = std::vector<std::int32_t>;

Ids ids_of_chat(const RunConfig& config, const engine::Session& session) {
  const text::Tokenizer& tokenizer = session.tokenizer();
  if (session.model().chat_template.empty()) throw UsageError("--chat: " + session.spec().source + " has no chat template");
  nlohmann::ordered_json messages = nlohmann::ordered_json::array();
  if (!config.system.empty()) messages.push_back({{"role", "system"}, {"content", config.system}});
  messages.push_back({{"role", "user"}, {"content", *config.prompt}});
  nlohmann::ordered_json variables{{"messages", messages}, {"tools", nullptr}, {"documents", nullptr}, {"add_generation_prompt", true}};
  if (tokenizer.bos_id() >= 0) variables["bos_token"] = tokenizer.spelling(tokenizer.bos_id());
  if (tokenizer.eos_id() >= 0) variables["eos_token"] = tokenizer.spelling(tokenizer.eos_id());
  return tokenizer.encode(text::ChatTemplate(session.model().chat_template).render(variables), false);
}

Ids prompt_of(const RunConfig& config, const engine::Session& session) {
  if (config.prompt.has_value() == !config.prompt_ids.empty()) throw UsageError("generate: give one of --prompt and --prompt-ids");
  Ids ids;
  if (config.prompt) {
    ids = config.chat ? ids_of_chat(config, session) : session.tokenizer().encode(*config.prompt, true);
  }
  for (const std::int64_t id : config.prompt_ids) {
    if (id < 0 || static_cast<std::uint64_t>(id) >= session.spec().vocab_size) {
      throw UsageError(fmt::format("--prompt-ids: {} is not in the vocabulary of {} ids", id, session.spec().vocab_size));
    }
    ids.push_back(static_cast<std::int32_t>(id));
  }
  if (ids.empty()) throw UsageError("generate: the prompt has no tokens");
  return ids;
}

engine::SamplingParams sampling_of(const RunConfig& config, const engine::GenerationDefaults& defaults) {
  const auto pick = [](const std::optional<double>& flag, const std::optional<float>& stated, float neutral) {
    return flag ? static_cast<float>(*flag) : stated.value_or(neutral);
  };
  engine::SamplingParams params;
  params.temperature = pick(config.temperature, defaults.temperature, 1.0f);
  params.top_p = pick(config.top_p, defaults.top_p, 1.0f);
  params.min_p = pick(config.min_p, defaults.min_p, 0.0f);
  params.repetition_penalty = pick(config.repetition_penalty, defaults.repetition_penalty, 1.0f);
  params.presence_penalty = pick(config.presence_penalty, std::nullopt, 0.0f);
  params.frequency_penalty = pick(config.frequency_penalty, std::nullopt, 0.0f);
  params.top_k = config.top_k ? static_cast<std::int32_t>(*config.top_k) : defaults.top_k.value_or(0);
  params.n = static_cast<std::uint32_t>(config.n);
  params.max_tokens = static_cast<std::uint32_t>(config.max_tokens.value_or(16));
  params.ignore_eos = config.ignore_eos;
  params.stop = config.stop;
  params.logprobs = static_cast<std::int32_t>(config.logprobs);
  params.seed = config.seed.value_or((std::uint64_t{std::random_device{}()} << 21) ^ std::random_device{}());
  return params;
}

/// The dumps that checks compare with a reference; every prompt position.
void dump(const RunConfig& config, engine::Session& session, const Ids& prompt) {
  struct Values {
    std::size_t columns = 0;
    std::vector<float> floats;
  };
  std::map<std::string, Values> hidden;
  std::vector<float> logits;
  engine::Session::OnHidden on_hidden;
  if (!config.dump_hidden.empty()) {
    on_hidden = [&](const std::string& name, std::size_t, std::size_t columns, std::span<const float> values) {
      hidden[name].columns = columns;
      hidden[name].floats.insert(hidden[name].floats.end(), values.begin(), values.end());
    };
  }
  session.forward(
      prompt, [&](std::size_t, std::span<const float> row) { logits.insert(logits.end(), row.begin(), row.end()); }, on_hidden);
  const engine::FloatTensor logits_tensor{"logits", {prompt.size(), session.spec().vocab_size}, logits};
  if (!config.dump_logits.empty()) engine::write_safetensors(config.dump_logits, std::span(&logits_tensor, 1));
  if (config.dump_hidden.empty()) return;
  std::vector<engine::FloatTensor> tensors;
  tensors.reserve(hidden.size() + 1);
  for (const auto& [name, values] : hidden) tensors.push_back({name, {prompt.size(), values.columns}, values.floats});
  tensors.push_back(logits_tensor);
  engine::write_safetensors(config.dump_hidden, tensors);
}

std::string logprob_lines(const engine::Choice& choice, const text::Tokenizer* tokenizer) {
  const auto spelled = [&](std::int32_t id) {
    return tokenizer ? nlohmann::json(tokenizer->bytes_of(id)).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) : "";
  };
  std::string lines;
  for (const engine::TokenLogprob& token : choice.logprobs) {
    lines += fmt::format("{:>8} {:>10.4f} {}", token.token, token.logprob, spelled(token.token));
    for (const auto& [id, logprob] : token.top) lines += fmt::format("  | {} {:.4f} {}", id, logprob, spelled(id));
    lines += '\n';
  }
  return lines;
}

}  // namespace

bool generate(const RunConfig& config, engine::Session& session, const std::function<void(std::string_view)>& write,
              const std::atomic<bool>& stop) {
  const Ids prompt = prompt_of(config, session);
  const std::size_t most = session.engine().limits().max_model_len;
  if (prompt.size() > most) throw UsageError(fmt::format("the prompt has {} tokens; --max-model-len is {}", prompt.size(), most));
  const bool dumps = !config.dump_logits.empty() || !config.dump_hidden.empty();
  if (dumps) dump(config, session, prompt);
  if (dumps && !config.max_tokens) return true;  // the dumps were what was asked for
  if (prompt.size() == most)
    throw UsageError(fmt::format("the prompt has {} tokens and leaves no room for an answer: --max-model-len is {}", prompt.size(), most));

  engine::Request request;
  request.id = 1;
  request.prompt = prompt;
  request.sampling = sampling_of(config, session.model().defaults);
  std::string error;
  session.engine().submit(std::move(request), [&](engine::Completion&& completion) {
    for (const engine::Choice& choice : completion.choices) {
      if (choice.finish_reason == engine::FinishReason::kError) error = choice.error;
      if (completion.choices.size() > 1) write(fmt::format("[{}]\n", choice.index));
      write(config.output_ids ? fmt::format("{}", fmt::join(choice.tokens, ",")) : choice.text);
      write("\n");
      if (config.logprobs >= 0) write(logprob_lines(choice, session.tokenizer_or_null()));
    }
  });
  while (session.engine().step()) {
    if (!stop) continue;
    session.engine().cancel_all();
    return false;
  }
  if (!error.empty()) throw std::runtime_error(error);
  return true;
}

}  // namespace lockstep::launcher
