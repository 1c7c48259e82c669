#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::text {

/// SentencePiece's table of what text becomes when it is normalised: a double-array tree (as the Darts library lays it out) of what is
/// replaced, and the replacements, each with a zero byte behind it. Immutable.
class CharsMap {
 public:
  /// `bytes`: the tree's size as 32 bits, little endian, the tree, the replacements. Every place that the tree can name is checked.
  /// @throws std::runtime_error with what is wrong.
  explicit CharsMap(std::string_view bytes);

  /// What the shortest entry that `text` starts with becomes; nothing where there is none.
  std::optional<std::string_view> find(std::string_view text) const;

 private:
  std::vector<std::uint32_t> units_;
  std::string replacements_;
};

}  // namespace lockstep::text
