#pragma once

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/io/stable_hash.h"
#include "engine/runtime/engine.h"
#include "engine/text/chat_template.h"
#include "engine/text/tokenizer.h"

namespace lockstep::engine {

/// One token a byte: 0 <s>, 1 </s>, 2 <unk>, byte b is b + 3; 260 is "Hi!".
class FakeTokenizer : public text::Tokenizer {
 public:
  explicit FakeTokenizer(bool adds_bos = true) : adds_bos_(adds_bos) {
    for (int i = 0; i < 256; ++i) bytes_[i] = static_cast<char>(i);
  }
  std::vector<TokenId> encode(std::string_view text, bool add_special, bool) const override {
    std::vector<TokenId> ids;
    const bool spelled = text.starts_with("<s>");
    if (spelled || (add_special && adds_bos_)) ids.push_back(0);
    if (spelled) text.remove_prefix(3);
    for (const char c : text) ids.push_back(static_cast<unsigned char>(c) + 3);
    return ids;
  }
  std::string_view bytes_of(TokenId id, bool include_special) const override {
    static constexpr std::string_view kSpecial[] = {"<s>", "</s>", "<unk>"};
    if (id >= 0 && id < 3) return include_special ? kSpecial[id] : std::string_view();
    if (id == 260) return "Hi!";
    return id < 259 ? std::string_view(bytes_ + (id - 3), 1) : std::string_view();
  }
  std::size_t vocab_size() const override { return 261; }
  bool is_special(TokenId id) const override { return id < 3; }
  TokenId bos_id() const override { return 0; }
  TokenId eos_id() const override { return 1; }
  TokenId id_of(std::string_view) const override { return -1; }

 private:
  bool adds_bos_;
  char bytes_[256];
};

/// Answers that are a function of the request alone, finished in an order that is not.
class FakeEngine : public Engine {
 public:
  explicit FakeEngine(std::uint32_t order_seed = 1) : random_(order_seed) {}

  /// As the coordinator: a tokenizer may have more tokens than the model, and a search more beams than can be ranked.
  void check(const Request& request) const override {
    for (const TokenId id : request.prompt) {
      if (static_cast<std::size_t>(id) >= limits_.vocab_size) throw std::invalid_argument("token " + std::to_string(id) + " of the prompt");
    }
    if (request.sampling.beams && request.sampling.beams->num_beams > 48) throw std::invalid_argument("too many beams");
  }
  void submit(Request request, OnCompletion done) override {
    check(request);
    const bool only_scored = request.first_scored != 0 && request.sampling.max_tokens == 0;
    if (request.prompt.empty() || request.prompt.size() >= limits_.max_model_len + (only_scored ? 2 : 0))
      throw std::logic_error("the caller must not submit this");
    if (!only_scored && request.sampling.max_tokens + request.prompt.size() > limits_.max_model_len)
      throw std::logic_error("max_tokens is not clipped");
    if (remember) submitted.push_back(request);
    waiting_.emplace_back(std::move(request), std::move(done));
    most_in_flight = std::max(most_in_flight, waiting_.size());
  }
  bool step() override {
    if (waiting_.empty()) return false;
    if (steps_before_failure >= 0 && steps_before_failure-- == 0) throw std::runtime_error("rank 1 is gone");
    std::shuffle(waiting_.begin(), waiting_.end(), random_);
    for (std::size_t count = 1 + random_() % max_per_step; count > 0 && !waiting_.empty(); --count) {
      auto [request, done] = std::move(waiting_.back());
      waiting_.pop_back();
      ++counters_.finished_requests;
      done(complete(request));
    }
    return true;
  }
  std::size_t num_in_flight() const override { return waiting_.size(); }
  void cancel_all() override {
    cancelled += waiting_.size();
    waiting_.clear();
  }
  Limits limits() const override { return limits_; }
  Counters counters() const override { return counters_; }

  std::vector<Request> submitted;
  bool remember = true;
  std::size_t most_in_flight = 0;
  std::size_t cancelled = 0;
  std::uint32_t max_per_step = 3;  // requests that finish in one step, at most
  int steps_before_failure = -1;
  Limits limits_{64, 261};

  /// -(token) / 8 - 1 / 16 a token before it; a letter is what greedy sampling would take.
  static TokenLogprob fake_score(const Request& request, std::size_t at) {
    const TokenId token = request.prompt[at];
    TokenLogprob score{token, static_cast<float>(token) / -8.0f - static_cast<float>(at) / 16.0f, {}};
    for (std::int32_t t = 0; t < request.sampling.logprobs; ++t) score.top.emplace_back(100 + t, -0.1f * static_cast<float>(t + 1));
    score.is_greedy = token >= 'a' + 3 && token <= 'z' + 3;
    return score;
  }

 private:
  Completion complete(const Request& request) {
    Completion completion;
    completion.id = request.id;
    completion.prompt_tokens = request.prompt.size();
    for (std::size_t at = std::max<std::size_t>(request.first_scored, 1); request.first_scored != 0 && at < request.prompt.size(); ++at)
      completion.prompt_logprobs.push_back(fake_score(request, at));
    for (std::uint32_t index = 0; index < request.sampling.n; ++index) {
      Choice choice;
      choice.index = index;
      std::uint64_t state = mix_bits(request.sampling.seed ^ mix_bits(index));
      for (const TokenId id : request.prompt) state = mix_bits(state ^ static_cast<std::uint64_t>(id));
      for (std::uint32_t i = 0; i < std::min(request.sampling.max_tokens, 5u); ++i) {
        const char letter = static_cast<char>('a' + (state = mix_bits(state)) % 26);
        choice.tokens.push_back(letter + 3);
        choice.text += letter;
        TokenLogprob logprob{letter + 3, -0.25f - static_cast<float>(i), {}};
        for (std::int32_t t = 0; t < request.sampling.logprobs; ++t) logprob.top.emplace_back(100 + t, -0.1f * static_cast<float>(t + 1));
        if (request.sampling.logprobs >= 0) choice.logprobs.push_back(std::move(logprob));
      }
      if (request.prompt.back() == '!' + 3) {
        choice.finish_reason = FinishReason::kError;
        choice.error = "the logits are not finite at position 3";
      }
      counters_.generated_tokens += choice.tokens.size();
      completion.choices.push_back(std::move(choice));
    }
    return completion;
  }

  std::mt19937 random_;
  std::vector<std::pair<Request, OnCompletion>> waiting_;
  Counters counters_;
};

/// "<s>[role]content" for each message; refuses system messages as some templates do.
inline std::string fake_template(const nlohmann::ordered_json& variables, std::int64_t) {
  std::string text = variables.at("bos_token").get<std::string>();
  for (const auto& message : variables.at("messages")) {
    if (message.at("role") == "system") throw text::TemplateError("TemplateError", "System role not supported");
    text.append("[").append(message.at("role").get<std::string>()).append("]");
    if (message.contains("content") && message["content"].is_string()) text += message["content"].get<std::string>();
  }
  return text + (variables.at("add_generation_prompt").get<bool>() ? "[assistant]" : "");
}

inline std::string read_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error(path.string() + " is not there");
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

inline void write_file(const std::filesystem::path& path, std::string_view content) { std::ofstream(path, std::ios::binary) << content; }

inline std::vector<std::string> split_lines(const std::string& text) {
  std::vector<std::string> lines;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    lines.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return lines;
}

}  // namespace lockstep::engine
