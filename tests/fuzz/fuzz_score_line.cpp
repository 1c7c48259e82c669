// A line of a score file from its bytes to its answer: whatever they are, it is refused, or becomes windows that the engine takes.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include "engine/score/score_request.h"
#include "tests/engine/io/fakes.h"

using namespace lockstep::engine;

namespace {

constexpr std::size_t kMaxModelLen = 16;

void require(bool condition) {
  if (!condition) std::abort();
}

void check_line(const std::string& line, const char* key) {
  require(line.find('\n') == std::string::npos);
  require(nlohmann::json::parse(line).contains(key));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const FakeTokenizer tokenizer;
  const ScoreContext context{size % 3 == 0 ? nullptr : &tokenizer, tokenizer.vocab_size(), kMaxModelLen, size % 2 == 0};
  const ScoreRequest request = parse_score_line(std::string_view(reinterpret_cast<const char*>(data), size), 7, context);
  if (request.error) {
    require(request.error->status() == 400);
    check_line(score_error_line(request, *request.error), "error");
    return 0;
  }
  require(!request.windows.empty());
  std::vector<std::vector<TokenLogprob>> scores;
  for (const ScoreWindow& window : request.windows) {
    require(window.begin < window.first_scored && window.first_scored < window.end && window.end <= request.tokens.size());
    require(window.end - window.begin <= kMaxModelLen + 1);
    scores.emplace_back(window.end - window.first_scored, TokenLogprob{5, -1.0f, {}});
  }
  require(request.windows.back().end == request.tokens.size());
  for (const TokenId id : request.tokens) require(id >= 0 && static_cast<std::size_t>(id) < tokenizer.vocab_size());
  check_line(score_line(request, scores), "loglikelihood");
  return 0;
}
