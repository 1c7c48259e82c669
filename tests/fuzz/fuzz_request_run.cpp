// Request lines from their bytes to finished answers, through the coordinator: whatever they ask for, what can not be computed is refused
// before it is submitted, and the loop goes on to the end for all others.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <numeric>
#include <stdexcept>
#include <string_view>

#include "engine/io/prompt_builder.h"
#include "engine/runtime/coordinator.h"
#include "tests/engine/io/fakes.h"
#include "tests/engine/runtime/fakes.h"

using namespace lockstep::engine;

namespace {

constexpr std::size_t kBlocks = 16, kBlockSize = 4, kMaxModelLen = 48, kMostLines = 4, kMostChoices = 8;

void require(bool condition) {
  if (!condition) std::abort();
}

CoordinatorOptions options_of(std::size_t variant, const FakeTokenizer& tokenizer) {
  CoordinatorOptions options;
  options.scheduler.max_num_seqs = 1 + variant % 4;
  options.scheduler.max_num_batched_tokens = 16;
  options.scheduler.num_blocks = kBlocks;
  options.scheduler.block_size = kBlockSize;
  options.scheduler.preempt_every = variant % 3;
  options.max_model_len = kMaxModelLen;
  options.vocab_size = tokenizer.vocab_size();
  options.eos_ids.resize(variant % 2 == 0 ? 1 : 60);
  std::iota(options.eos_ids.begin(), options.eos_ids.end(), 1);
  options.tokenizer = &tokenizer;
  return options;
}

void check_choice(const Choice& choice, const SamplingParams& params) {
  require(choice.tokens.size() <= params.max_tokens);
  require((choice.finish_reason == FinishReason::kError) == !choice.error.empty());
  require(params.logprobs < 0 || params.beams || choice.logprobs.size() == choice.tokens.size());
}

/// Submits what a line asks for, if it can be computed. Returns how many requests that are.
std::size_t submit(std::string_view text, std::uint64_t number, Coordinator& coordinator, const FakeTokenizer& tokenizer,
                   std::size_t& num_done) {
  RequestContext context;
  context.vocab_size = tokenizer.vocab_size();
  const RequestLine line = parse_request_line(text, number, context);
  if (line.error) return 0;
  PreparedRequest prepared;
  try {
    prepared = prepare_request(line.request, number, {tokenizer, fake_template, 0, kMaxModelLen, 1});
    for (const Request& request : prepared.requests) coordinator.check(request);
  } catch (const RequestError&) {
    return 0;
  } catch (const std::invalid_argument&) {
    return 0;
  }
  if (prepared.num_choices() > kMostChoices) return 0;  // they would be as the others, and slow
  for (Request& request : prepared.requests) {
    coordinator.submit(request, [params = request.sampling, &num_done](Completion&& completion) {
      require(completion.choices.size() == params.n);
      for (const Choice& choice : completion.choices) check_choice(choice, params);
      ++num_done;
    });
  }
  return prepared.requests.size();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const FakeTokenizer tokenizer;
  testing::HistoryModel model(kBlocks, kBlockSize, tokenizer.vocab_size());
  Coordinator coordinator(options_of(size, tokenizer), model, nullptr);
  std::string_view text(reinterpret_cast<const char*>(data), size);
  std::size_t num_submitted = 0, num_done = 0;
  for (std::uint64_t number = 1; number <= kMostLines && !text.empty(); ++number) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    num_submitted += submit(text.substr(0, end), number, coordinator, tokenizer, num_done);
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  for (std::size_t steps = 0; coordinator.step(); ++steps) require(steps < 100'000);
  require(num_done == num_submitted && coordinator.num_in_flight() == 0);
  return 0;
}
