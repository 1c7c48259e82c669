#pragma once

#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "engine/text/chars_map.h"
#include "engine/text/expression.h"

namespace lockstep::text {

enum class UnicodeForm { Nfc, Nfd, Nfkc, Nfkd };

/// What is done to text before it is split. A list of steps, in order; immutable.
class Normalizer {
 public:
  struct Prepend {
    std::string prefix;  // not to an empty text
  };
  struct Replace {
    Expression what;
    std::string with;
  };
  struct Strip {  // of white space
    bool left, right;
  };
  struct Precompiled {  // grapheme by grapheme where one is in the table and has up to 5 bytes, else character by character
    CharsMap table;
  };
  enum class Letters {
    Lowercase,
    StripAccents,  // drops combining marks
    Nmt,           // drops control characters, and what is like a space or separates lines becomes one
    ByteLevel,     // each byte becomes its character in the byte alphabet
  };
  using Step = std::variant<UnicodeForm, Prepend, Replace, Strip, Precompiled, Letters>;

  Normalizer() = default;
  explicit Normalizer(std::vector<Step> steps) : steps_(std::move(steps)) {}
  bool empty() const { return steps_.empty(); }
  /// `text` is valid UTF-8 and stays so. @throws std::runtime_error where the text would grow beyond 1 GiB.
  std::string apply(std::string text, Expression::Scratch& scratch) const;

 private:
  std::vector<Step> steps_;
};

/// `text`, valid UTF-8, with the matches replaced. @throws std::runtime_error where it would grow beyond 1 GiB.
std::string replace_matches(const std::string& text, const Normalizer::Replace& rule, Expression::Scratch& scratch);

}  // namespace lockstep::text
