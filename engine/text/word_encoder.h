#pragma once

#include <string_view>
#include <unordered_map>
#include <vector>

#include "engine/text/tokenizer.h"

namespace lockstep::text {

/// A tokenizer's model: what turns one word of the text, normalised and cut, into tokens. Immutable after construction.
class WordEncoder {
 public:
  virtual ~WordEncoder() = default;
  /// Appends the tokens of `word`.
  virtual void encode(std::string_view word, std::vector<TokenId>& ids) const = 0;
};

/// A map from text that is looked up by views.
struct TextHash {
  using is_transparent = void;
  std::size_t operator()(std::string_view text) const { return std::hash<std::string_view>{}(text); }
};
template <typename Value>
using TextMap = std::unordered_map<std::string, Value, TextHash, std::equal_to<>>;

}  // namespace lockstep::text
