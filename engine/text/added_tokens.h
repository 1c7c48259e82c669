#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "engine/text/expression.h"
#include "engine/text/tokenizer.h"

namespace lockstep::text {

/// A token that is found in the text as it stands, before the text is split into words.
struct AddedToken {
  TokenId id = -1;
  std::string content;
  bool special = false;      // only recognised where the caller wants special tokens parsed
  bool single_word = false;  // not next to a word character
  bool strip_left = false;   // takes the white space before it along
  bool strip_right = false;
  bool normalized = false;  // looked for in the normalised text
};

/// A piece of the text: one added token, or text between them (id -1).
struct Section {
  TokenId id;
  Range range;
};

/// Finds added tokens in one pass: leftmost first, of those the longest. Immutable.
class AddedTokenFinder {
 public:
  static constexpr std::size_t kLongestContent = 4096;
  /// `tokens` have no empty content and none beyond kLongestContent.
  explicit AddedTokenFinder(std::vector<AddedToken> tokens);
  bool empty() const { return tokens_.empty(); }
  /// Appends the sections of `text` (valid UTF-8), of which none is empty.
  void split(std::string_view text, bool parse_special, std::vector<Section>& sections) const;

 private:
  const AddedToken* longest_at(std::string_view text) const;

  std::vector<AddedToken> tokens_;
  std::unordered_map<std::uint64_t, std::uint32_t> edges_;  // (node << 8 | byte) -> node
  std::vector<std::int32_t> token_of_node_;                 // -1: no token ends here
  std::vector<bool> starts_;                                // by byte
};

}  // namespace lockstep::text
