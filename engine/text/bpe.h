#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "engine/text/word_encoder.h"

namespace lockstep::text {

/// Byte pair encoding of one word. Immutable after construction.
class BytePairEncoder final : public WordEncoder {
 public:
  struct Merge {
    TokenId left, right, result;
    std::int32_t rank = -1;  // the lowest goes first, of equal ones the leftmost; -1: its place in the list
  };
  struct Rules {
    bool symbols_are_bytes = true;   // a word starts as its bytes, else as its UTF-8 characters
    bool byte_fallback = false;      // a character without a token becomes the tokens <0x..> of its bytes
    bool whole_words_first = false;  // "ignore_merges": a word that is a token is that token, whatever the merges say
    TokenId unknown_id = -1;         // for a symbol without a token; -1: the symbol is left out, and its neighbours may merge
    bool fuse_unknown = false;       // neighbouring unknown symbols are one token
  };
  /// `words`: what a word must read (as bytes or UTF-8) to be the token. `merges`: best first; of two equal pairs the later one counts.
  BytePairEncoder(std::unordered_map<std::string, TokenId> words, const std::vector<Merge>& merges, const Rules& rules);

  /// O(n log n). @throws std::runtime_error for a word of 1 GiB or more.
  void encode(std::string_view word, std::vector<TokenId>& ids) const override;

 private:
  struct Pair {
    std::uint64_t key = kNoPair;
    std::int32_t rank = 0;
    TokenId result = 0;
  };
  struct Word {
    TokenId id;
    bool stable;  // the merges alone bring the word to this one token
  };
  static constexpr std::uint64_t kNoPair = ~std::uint64_t{0};

  const Pair* find(TokenId left, TokenId right) const;
  bool can_cut_at_markers(const std::vector<Merge>& merges) const;
  void encode_whole(std::string_view word, std::vector<TokenId>& ids) const;
  void append_symbols(std::string_view word, std::vector<TokenId>& symbols) const;
  void append_character(std::string_view character, bool& unknown_waits, std::vector<TokenId>& symbols) const;
  // These merge in place and return how many symbols are left.
  std::size_t merge(std::span<TokenId> symbols) const;
  std::size_t merge_short(std::span<TokenId> symbols) const;
  std::size_t merge_long(std::span<TokenId> symbols) const;

  Rules rules_;
  std::vector<Pair> pairs_;  // open addressing, at most half full
  TextMap<Word> words_;
  std::array<TokenId, 256> byte_ids_;  // symbols_are_bytes: the token of each byte; else of <0x..>; -1: none
  bool cuts_at_markers_ = false;       // no merge joins what ends without a U+2581 to what starts with one
};

}  // namespace lockstep::text
