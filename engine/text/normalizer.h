#pragma once

#include <string>
#include <utility>
#include <variant>
#include <vector>

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
  struct Lowercase {};
  using Step = std::variant<UnicodeForm, Prepend, Replace, Lowercase>;

  Normalizer() = default;
  explicit Normalizer(std::vector<Step> steps) : steps_(std::move(steps)) {}
  bool empty() const { return steps_.empty(); }
  /// `text` is valid UTF-8 and stays so. @throws std::runtime_error where the text would grow beyond 1 GiB.
  std::string apply(std::string text, Expression::Scratch& scratch) const;

 private:
  std::vector<Step> steps_;
};

}  // namespace lockstep::text
