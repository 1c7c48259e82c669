#include "engine/score/token_pair.h"

#include <algorithm>
#include <array>

#include "engine/io/request_error.h"

namespace lockstep::engine {
namespace {

/// Unicode's white space beyond ASCII, in UTF-8.
constexpr auto kWideSpaces =
    std::to_array<std::string_view>({"\xc2\x85", "\xc2\xa0", "\xe1\x9a\x80", "\xe2\x80\x80", "\xe2\x80\x81", "\xe2\x80\x82", "\xe2\x80\x83",
                                     "\xe2\x80\x84", "\xe2\x80\x85", "\xe2\x80\x86", "\xe2\x80\x87", "\xe2\x80\x88", "\xe2\x80\x89",
                                     "\xe2\x80\x8a", "\xe2\x80\xa8", "\xe2\x80\xa9", "\xe2\x80\xaf", "\xe2\x81\x9f", "\xe3\x80\x80"});

std::size_t length_without_end_space(std::string_view text) {
  while (!text.empty()) {
    const auto last = static_cast<unsigned char>(text.back());
    if (last == ' ' || (last >= 0x09 && last <= 0x0d) || (last >= 0x1c && last <= 0x1f)) {
      text.remove_suffix(1);
      continue;
    }
    const auto space = std::find_if(kWideSpaces.begin(), kWideSpaces.end(), [&](std::string_view wide) { return text.ends_with(wide); });
    if (space == kWideSpaces.end()) break;
    text.remove_suffix(space->size());
  }
  return text.size();
}

}  // namespace

std::pair<std::string, std::string> move_white_space(std::string_view context, std::string_view continuation) {
  const std::size_t length = length_without_end_space(context);
  return {std::string(context.substr(0, length)), std::string(context.substr(length)).append(continuation)};
}

TokenId prefix_token(const text::Tokenizer& tokenizer) { return tokenizer.bos_id() >= 0 ? tokenizer.bos_id() : tokenizer.eos_id(); }

std::vector<TokenId> encode_open(const text::Tokenizer& tokenizer, std::string_view text, bool add_special) {
  std::vector<TokenId> tokens = tokenizer.encode(text, add_special);
  if (!add_special || tokens.empty() || tokens.back() != tokenizer.eos_id()) return tokens;
  const std::vector<TokenId> plain = tokenizer.encode(text, false);
  if (plain.empty() || plain.back() != tokenizer.eos_id()) tokens.pop_back();
  return tokens;
}

TokenPair pair_tokens(const text::Tokenizer& tokenizer, std::string_view context, std::string_view continuation, bool add_special) {
  const auto [head, tail] = move_white_space(context, continuation);
  TokenPair pair;
  if (head.empty()) {
    const TokenId prefix = prefix_token(tokenizer);
    std::vector<TokenId> tokens = encode_open(tokenizer, tail, false);
    const bool spelled = !tokens.empty() && tokens.front() == prefix;
    if (!spelled && prefix >= 0) pair.tokens.push_back(prefix);
    pair.tokens.insert(pair.tokens.end(), tokens.begin(), tokens.end());
    pair.first_scored = 1;
    if (prefix < 0)
      throw RequestError(400, "empty_context", "context", "context is empty, and the tokenizer has neither BOS nor EOS to begin with");
  } else {
    pair.tokens = encode_open(tokenizer, head + tail, add_special);
    pair.first_scored = std::max<std::size_t>(encode_open(tokenizer, head, add_special).size(), 1);
  }
  if (pair.first_scored >= pair.tokens.size())
    throw RequestError(400, "empty_continuation", "continuation", "continuation is empty: it has no tokens of its own");
  return pair;
}

}  // namespace lockstep::engine
