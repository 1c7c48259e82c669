#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "engine/text/word_encoder.h"

namespace lockstep::text {

/// A Unigram model: of all ways to write a word as pieces, the one with the largest sum of scores. Immutable after construction.
class UnigramEncoder final : public WordEncoder {
 public:
  struct Piece {
    std::string spelling;
    double score;  // a log-probability
  };
  /// The id of a piece is its place. `unknown_id`: for what no pieces make up, neighbouring characters together; -1: that is left out.
  /// `byte_fallback`: such text becomes the tokens <0x..> of its bytes, where all are there.
  UnigramEncoder(const std::vector<Piece>& pieces, TokenId unknown_id, bool byte_fallback);

  /// O(length of the word times length of the longest piece that matches).
  void encode(std::string_view word, std::vector<TokenId>& ids) const override;

 private:
  // Pieces as a tree of bytes: the children of a node lie one after the other, in the order of their bytes.
  struct Node {
    std::uint32_t first_child = 0;
    std::uint16_t children = 0;
    unsigned char byte = 0;
    TokenId id = -1;  // the piece that ends here
  };
  const Node* child(const Node& node, unsigned char byte) const;
  void append_unknown(std::string_view text, std::vector<TokenId>& ids) const;

  std::vector<Node> nodes_;
  std::vector<double> scores_;
  double unknown_score_;
  TokenId unknown_id_;
  bool byte_fallback_;
  std::array<TokenId, 256> byte_ids_;  // of <0x..>; -1: none
};

}  // namespace lockstep::text
