#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::text {

struct Range {
  std::size_t begin, end;  // bytes
  std::size_t size() const { return end - begin; }
};

/// A regular expression in the dialect of tokenizer files (Oniguruma with Unicode classes), run by PCRE2 within fixed limits. Immutable:
/// one object serves all threads.
class Expression {
 public:
  /// Buffers of the matcher, one for each thread that matches; for any number of expressions.
  class Scratch {
   public:
    Scratch();
    ~Scratch();
    Scratch(const Scratch&) = delete;
    Scratch& operator=(const Scratch&) = delete;

   private:
    friend class Expression;
    struct Buffers;
    std::unique_ptr<Buffers> buffers_;
  };

  /// @throws std::runtime_error with the reason and the place in the pattern.
  explicit Expression(const std::string& pattern);
  /// Matches exactly `text`.
  static Expression literal(std::string_view text);
  ~Expression();
  Expression(Expression&&) noexcept;
  Expression& operator=(Expression&&) noexcept;

  /// Appends the matches from left to right to `matches`; they do not overlap. An empty match directly after another one does not count.
  /// `text` must be valid UTF-8. @throws std::runtime_error where a match would need too many steps.
  void find_all(std::string_view text, Scratch& scratch, std::vector<Range>& matches) const;
  const std::string& pattern() const { return pattern_; }

 private:
  struct Code;
  std::string pattern_;
  std::unique_ptr<Code> code_;
};

}  // namespace lockstep::text
