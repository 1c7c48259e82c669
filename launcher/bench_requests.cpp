#include "launcher/bench_requests.h"

#include <cmath>
#include <fstream>
#include <string>

#include <unistd.h>

namespace lockstep::launcher {
namespace {

/// A sequence of pseudo-random numbers in [0, 1) that is the same on every machine (SplitMix64).
class Sequence {
 public:
  double next() {
    std::uint64_t z = (state_ += 0x9E3779B97F4A7C15ull);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return static_cast<double>((z ^ (z >> 31)) >> 11) * 0x1p-53;
  }

 private:
  std::uint64_t state_ = 0;
};

std::size_t draw(Sequence& sequence, std::size_t mean, double ratio) {
  const double low = (1.0 - ratio) * static_cast<double>(mean), width = 2.0 * ratio * static_cast<double>(mean);
  return std::max<std::size_t>(1, static_cast<std::size_t>(std::llround(low + width * sequence.next())));
}

}  // namespace

void BenchRequests::submit(const RequestLengths& lengths) {
  if (engine_.num_in_flight() == 0) generated_ = engine_.counters().generated_tokens;
  engine::Request request;
  request.id = ++last_id_;
  const auto vocab_size = static_cast<std::uint64_t>(job_.session.spec().vocab_size);
  for (std::size_t i = 0; i < lengths.prompt; ++i)
    request.prompt.push_back(static_cast<engine::TokenId>((i * 7919 + last_id_ * 104729) % vocab_size));
  request.sampling.temperature = 0.0f;
  request.sampling.ignore_eos = true;
  request.sampling.max_tokens = static_cast<std::uint32_t>(lengths.output);
  engine_.submit(std::move(request), [](engine::Completion&&) {});
}

std::uint64_t BenchRequests::run_to_first_tokens(std::size_t num_sequences) {
  while (engine_.counters().generated_tokens - generated_ < num_sequences && !stopped() && engine_.step()) {
  }
  return engine_.counters().generated_tokens - generated_;
}

std::uint64_t BenchRequests::run() {
  while (engine_.step()) {
    if (stopped()) engine_.cancel_all();
  }
  return engine_.counters().generated_tokens - generated_;
}

std::vector<RequestLengths> mixed_lengths(std::size_t count, const RequestLengths& mean, double ratio) {
  Sequence sequence;
  std::vector<RequestLengths> lengths;
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t prompt = draw(sequence, mean.prompt, ratio);
    lengths.push_back({prompt, draw(sequence, mean.output, ratio)});
  }
  return lengths;
}

std::size_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  std::size_t all = 0, resident = 0;
  return file >> all >> resident ? resident * static_cast<std::size_t>(sysconf(_SC_PAGESIZE)) : 0;
}

}  // namespace lockstep::launcher
