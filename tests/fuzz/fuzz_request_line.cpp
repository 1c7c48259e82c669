// A request line from its bytes to its answer: whatever they are, it is parsed or refused, and the answer is one line of JSON that says
// whose it is.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include "engine/io/prompt_builder.h"
#include "engine/io/response.h"
#include "tests/engine/io/fakes.h"

using namespace lockstep::engine;

namespace {

void require(bool condition) {
  if (!condition) std::abort();
}

void check_answer(const Answer& answer, const AnswerKey& key) {
  require(answer.line.find('\n') == std::string::npos);
  require(answer_key(answer.line) == key);
  require(answer_status(answer.line) == answer.ok);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const FakeTokenizer tokenizer;
  static const RenderChat render = fake_template;
  RequestContext context;
  context.vocab_size = tokenizer.vocab_size();
  if (size % 2 == 1) context.served_model_name = "m";
  const AnswerKey key{7, 99};
  const RequestLine line = parse_request_line(std::string_view(reinterpret_cast<const char*>(data), size), key.line_number, context);
  require(!line.custom_id.empty());
  try {
    if (line.error) throw *line.error;
    const PreparedRequest prepared = prepare_request(line.request, key.line_number, {tokenizer, render, 0, 256, 1});
    require(!prepared.requests.empty());
    AnswerRequest request{key,
                          line.custom_id,
                          line.request.endpoint,
                          line.request.model,
                          line.request.seed,
                          {},
                          line.request.sampling.n,
                          true,
                          prepared.echoes,
                          line.request.sampling.beams.has_value()};
    std::vector<Completion> completions;
    for (const Request& one : prepared.requests) {
      const bool only_scored = one.first_scored != 0 && one.sampling.max_tokens == 0;
      require(!one.prompt.empty() && one.prompt.size() < (only_scored ? 258u : 256u));
      require(only_scored || one.sampling.max_tokens + one.prompt.size() <= 256);
      require(one.sampling.max_tokens > 0 || line.request.echo);
      require(!one.sampling.beams || (one.sampling.beams->num_beams >= one.sampling.n && one.first_scored == 0));
      require(one.sampling.temperature >= 0 && one.sampling.top_p >= 0 && one.sampling.n >= 1);
      for (const TokenId id : one.prompt) require(id >= 0 && static_cast<std::size_t>(id) < tokenizer.vocab_size());
      request.seeds.push_back(one.sampling.seed);
      Choice choice;
      choice.tokens = one.prompt;
      for (const TokenId id : one.prompt) choice.logprobs.push_back({id, -1.0f, {{id, -1.0f}}});
      completions.push_back({0, {choice}, one.prompt.size(), 0, {}});
      if (one.first_scored != 0) completions.back().prompt_logprobs = choice.logprobs;
    }
    check_answer(completed_answer(request, completions, {tokenizer, 0, "m", "f"}), key);
  } catch (const RequestError& error) {
    require(error.status() == 400 || error.status() == 404);
    check_answer(refused_answer(key, line.custom_id, error), key);
  }
  return 0;
}
