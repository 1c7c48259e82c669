#include "engine/sampling/sampler.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "device/cpu/vocabulary_sum.h"
#include "device/portable_math.h"

namespace lockstep::engine {
namespace {

std::vector<float> random_logits(std::size_t size, unsigned seed, float deviation = 3.0f) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0f, deviation);
  std::vector<float> logits(size);
  for (float& logit : logits) logit = normal(random);
  return logits;
}

/// A range of n splits after the largest power of two below n.
double tree_sum(std::span<const double> terms) {
  if (terms.size() == 1) return terms[0];
  const std::size_t middle = std::bit_floor(terms.size() - 1);
  return tree_sum(terms.first(middle)) + tree_sum(terms.subspan(middle));
}

SamplingParams params_with(float temperature, std::int32_t top_k = 0, float top_p = 1.0f, float min_p = 0.0f) {
  SamplingParams params;
  params.temperature = temperature;
  params.top_k = top_k;
  params.top_p = top_p;
  params.min_p = min_p;
  return params;
}

std::vector<std::int32_t> kept_ids(Sampler& sampler, const std::vector<float>& logits, const SamplingParams& params) {
  std::vector<std::int32_t> ids;
  for (const auto& [id, probability] : sampler.distribution(logits, params, {})) ids.push_back(id);
  return ids;
}

TEST(CandidateOrder, IsDescendingLogitThenAscendingIdHoweverFarItIsRead) {
  for (const std::size_t size : {1u, 2u, 127u, 128u, 129u, 1000u, 5000u}) {
    std::vector<float> logits = random_logits(size, 3);
    for (float& logit : logits) logit = std::round(logit);  // many ties, zeros of both signs among them
    std::vector<std::uint32_t> expected(size);
    std::iota(expected.begin(), expected.end(), 0u);
    std::stable_sort(expected.begin(), expected.end(), [&](std::uint32_t a, std::uint32_t b) { return logits[a] > logits[b]; });
    CandidateOrder order;
    for (const std::size_t first_read : {std::size_t{0}, size / 2, size - 1}) {
      order.reset(logits);
      EXPECT_EQ(order[first_read], expected[first_read]);
      for (std::size_t i = 0; i < size; ++i) ASSERT_EQ(order[i], expected[i]) << size << " at " << i << ", read first at " << first_read;
    }
  }
}

TEST(VocabularySum, IsTheFixedTreeOverAllIds) {
  for (const std::size_t size : {1u, 3u, 15u, 16u, 17u, 97u, 128u, 160u, 257u, 1000u, 5003u}) {
    const std::vector<float> logits = random_logits(size, 5);
    const float top = *std::max_element(logits.begin(), logits.end());
    std::vector<double> weights(size);
    for (std::size_t id = 0; id < size; ++id) weights[id] = device::weight_of(logits[id], top, 0.7);
    // Segments of 16 with pads of 0 are subtrees of this one: it splits after powers of two as well.
    const double expected = tree_sum(weights);
    for (const device::Isa isa : device::supported_isas()) {
      EXPECT_EQ(device::maximum(logits, isa), top) << size << ", " << device::isa_name(isa);
      EXPECT_EQ(device::sum_of_exponentials(logits, top, 0.7, isa), expected) << size << ", " << device::isa_name(isa);
    }

    std::vector<std::pair<std::uint32_t, double>> some;
    std::vector<double> masked(size, 0.0);
    for (std::size_t id = 0; id < size; id += 1 + id % 40) {
      some.emplace_back(static_cast<std::uint32_t>(id), weights[id]);
      masked[id] = weights[id];
    }
    const double expected_masked = tree_sum(masked);
    EXPECT_EQ(device::sum_of_weights(some, size), expected_masked) << size;
  }
}

TEST(VocabularySum, WeightsAreExponentials) {
  std::mt19937 random(8);
  double worst = 0.0;
  for (int i = 0; i < 200'000; ++i) {
    const float logit = -708.0f * std::ldexp(static_cast<float>(random()), -32) * (i % 2 == 0 ? 1.0f : 0.01f);
    const double expected = device::portable::exp(double{logit});
    worst = std::max(worst, std::abs(device::weight_of(logit, 0.0f, 1.0) - expected) / expected);
  }
  EXPECT_LE(worst, 3 * 0x1p-52);
  EXPECT_EQ(device::weight_of(0.0f, 0.0f, 1.0), 1.0);
  EXPECT_EQ(device::weight_of(-3e38f, 3e38f, 1e44), 0.0);
  EXPECT_EQ(device::weight_of(-std::numeric_limits<float>::infinity(), 3e38f, 1.0), 0.0);
}

TEST(Sampler, TemperatureZeroAndTopKOneTakeTheLowestIdOfTheBest) {
  std::vector<float> logits = random_logits(257, 1);
  logits[40] = logits[41] = logits[200] = 50.0f;
  Sampler sampler;
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    for (SamplingParams params : {params_with(0.0f), params_with(1.5f, 1), params_with(1.5f, 1, 0.5f, 0.1f)}) {
      params.seed = seed;
      EXPECT_EQ(sampler.sample(logits, params, {}).token, 40);
    }
  }
}

TEST(Sampler, TopKKeepsTies) {
  Sampler sampler;
  EXPECT_EQ(kept_ids(sampler, {1.0f, 3.0f, 2.0f, 2.0f, 2.0f, 0.0f}, params_with(1.0f, 2)), (std::vector<std::int32_t>{1, 2, 3, 4}));
  EXPECT_EQ(kept_ids(sampler, std::vector<float>(300, 1.0f), params_with(1.0f, 2)).size(), 300u);
  EXPECT_EQ(kept_ids(sampler, {1.0f, 2.0f}, params_with(1.0f, 50)).size(), 2u);
  EXPECT_EQ(kept_ids(sampler, {1.0f, 2.0f}, params_with(1.0f, -1)).size(), 2u);
}

TEST(Sampler, TopPKeepsACandidateWhileTheMassBeforeItIsBelowP) {
  Sampler sampler;
  const std::vector<float> logits = {std::log(0.5f), std::log(0.3f), std::log(0.15f), std::log(0.05f)};
  EXPECT_EQ(kept_ids(sampler, logits, params_with(1.0f, 0, 0.0f)).size(), 1u);
  EXPECT_EQ(kept_ids(sampler, logits, params_with(1.0f, 0, 0.49f)).size(), 1u);
  EXPECT_EQ(kept_ids(sampler, logits, params_with(1.0f, 0, 0.51f)).size(), 2u);
  EXPECT_EQ(kept_ids(sampler, logits, params_with(1.0f, 0, 0.79f)).size(), 2u);
  EXPECT_EQ(kept_ids(sampler, logits, params_with(1.0f, 0, 0.81f)).size(), 3u);
  EXPECT_EQ(kept_ids(sampler, logits, params_with(1.0f, 0, 1.0f)).size(), 4u);
  // After top_k, the mass is that of what is left: 0.5 / 0.8 = 0.625.
  EXPECT_EQ(kept_ids(sampler, logits, params_with(1.0f, 2, 0.62f)).size(), 1u);
  EXPECT_EQ(kept_ids(sampler, logits, params_with(1.0f, 2, 0.63f)).size(), 2u);
}

/// What rank 0 would know of a row whose mass is `part` of the exact one.
struct NearlyKnownRow {
  SelectedRow row;
  std::vector<FirstCandidates::Candidate> candidates;
  NearlyKnownRow(const std::vector<float>& logits, const SamplingParams& params, double part, double error) {
    CandidateOrder order;
    order.reset(logits);
    for (std::size_t place = 0; place < 64; ++place) candidates.push_back({logits[order[place]], logits[order[place]], order[place]});
    row.vocab_size = logits.size();
    std::reverse(candidates.begin(), candidates.end());  // whatever order they come in
    row.candidates = FirstCandidates(candidates);
    row.mass =
        part * device::sum_of_exponentials(logits, logits[order[0]], 1.0 / static_cast<double>(params.temperature), device::Isa::kPortable);
    row.mass_error = error;
  }
};

TEST(Sampler, AMassThatIsNearlyKnownGivesTheTokenOfTheExactOneOrNone) {
  constexpr double kError = 0x1p-6;  // large, so that it matters now and then
  Sampler sampler;
  std::mt19937 random(4);
  std::size_t yes = 0, unclear = 0, wrong_without = 0;
  for (unsigned seed = 0; seed < 2000; ++seed) {
    const std::vector<float> logits = random_logits(600, seed, 4.0f);
    SamplingParams params = params_with(0.7f, 0, seed % 3 == 0 ? 1.0f : 0.8f, seed % 3 == 2 ? 0.01f : 0.0f);
    if (seed % 5 == 0 && params.top_p < 1.0f) params.typical_p = 0.6f;
    SamplingContext context;
    context.position = seed;
    const double part = 1.0 + 0.98 * kError * (2.0 * static_cast<double>(random() % 1001) / 1000.0 - 1.0);
    const Sample exact = sampler.sample(logits, params, context);
    Sample found;
    const NearlyKnownRow nearly(logits, params, part, kError);
    switch (sampler.select(nearly.row, params, context, found)) {
      case Sampler::Selected::kYes:
        ++yes;
        ASSERT_EQ(found.token, exact.token) << seed;
        break;
      case Sampler::Selected::kUnclear: ++unclear; break;
      case Sampler::Selected::kTooFew: break;
    }
    const NearlyKnownRow taken_for_exact(logits, params, part, 0.0);
    if (sampler.select(taken_for_exact.row, params, context, found) == Sampler::Selected::kYes && found.token != exact.token)
      ++wrong_without;
  }
  EXPECT_GT(yes, 1500u);
  EXPECT_GT(unclear, 20u);
  EXPECT_GT(wrong_without, 5u) << "else this shows nothing";
}

TEST(Sampler, MinPIsRelativeToTheBest) {
  Sampler sampler;
  const std::vector<float> logits = {std::log(0.5f), std::log(0.3f), std::log(0.15f), std::log(0.05f)};
  EXPECT_EQ(kept_ids(sampler, logits, params_with(1.0f, 0, 1.0f, 0.59f)).size(), 2u);
  EXPECT_EQ(kept_ids(sampler, logits, params_with(1.0f, 0, 1.0f, 0.61f)).size(), 1u);
  EXPECT_EQ(kept_ids(sampler, logits, params_with(1.0f, 0, 1.0f, 1.0f)).size(), 1u);
}

TEST(Sampler, FrequenciesOfDrawsFollowTheDistribution) {
  const std::vector<float> logits = random_logits(300, 9, 2.0f);
  Sampler sampler;
  for (const SamplingParams& params :
       {params_with(1.0f), params_with(0.7f, 40), params_with(1.3f, 0, 0.9f), params_with(1.0f, 0, 1.0f, 0.05f)}) {
    std::vector<int> counts(logits.size(), 0);
    constexpr int kDraws = 20000;
    for (int draw = 0; draw < kDraws; ++draw) {
      SamplingContext context;
      context.position = static_cast<std::uint64_t>(draw);
      ++counts[static_cast<std::size_t>(sampler.sample(logits, params, context).token)];
    }
    int drawn = 0;
    for (const auto& [id, probability] : sampler.distribution(logits, params, {})) {
      const double deviation = std::sqrt(kDraws * probability * (1.0 - probability));
      EXPECT_NEAR(counts[static_cast<std::size_t>(id)], kDraws * probability, 5.0 * deviation + 1.0) << "token " << id;
      drawn += counts[static_cast<std::size_t>(id)];
    }
    EXPECT_EQ(drawn, kDraws) << "something that was removed was drawn";
  }
}

TEST(Sampler, IsAPureFunctionWhateverWasSampledBefore) {
  const std::vector<float> logits = random_logits(500, 21);
  const std::vector<std::int32_t> prompt = {3, 3, 7};
  const std::vector<std::int32_t> generated = {9, 9, 3};
  SamplingParams params = params_with(0.9f, 50, 0.95f);
  params.repetition_penalty = 1.3f;
  params.presence_penalty = 0.2f;
  params.frequency_penalty = 0.1f;
  params.logprobs = 5;
  params.seed = 77;
  Sampler fresh;
  const Sample expected = fresh.sample(logits, params, {prompt, generated, 2, 10});
  Sampler used;
  for (unsigned i = 0; i < 50; ++i) {
    SamplingParams other = params;
    other.seed = i;
    other.top_k = static_cast<std::int32_t>(i);
    used.sample(random_logits(100 + 37 * i, i), other, {generated, prompt, i, i});
    const Sample again = used.sample(logits, params, {prompt, generated, 2, 10});
    ASSERT_EQ(again.token, expected.token);
    ASSERT_EQ(again.logprob, expected.logprob);
    ASSERT_EQ(again.top, expected.top);
  }
}

TEST(Sampler, LogprobsAreThoseOfTheUnprocessedLogits) {
  SamplingParams params = params_with(0.5f, 0, 0.9f);
  params.logprobs = 3;
  params.repetition_penalty = 2.0f;
  const std::vector<std::int32_t> prompt = {0};
  const std::vector<float> logits = {1.0f, 0.0f, -1.0f, -2.0f};
  Sampler sampler;
  const Sample sample = sampler.sample(logits, params, {prompt, {}, 0, 1});
  ASSERT_EQ(sample.top.size(), 3u);
  EXPECT_EQ(sample.top[0].first, 0);
  EXPECT_NEAR(sample.top[0].second, -0.4402f, 5e-5f);
  EXPECT_NEAR(sample.top[1].second, -1.4402f, 5e-5f);
  EXPECT_NEAR(sample.logprob, logits[static_cast<std::size_t>(sample.token)] - 1.4402f, 5e-5f);
  params.logprobs = 0;
  EXPECT_TRUE(sampler.sample(logits, params, {prompt, {}, 0, 1}).top.empty());
}

TEST(Sampler, PenaltiesApplyToTheirOwnHistories) {
  Sampler sampler;
  SamplingParams params = params_with(0.0f);
  const std::vector<float> logits = {2.0f, 1.9f, -1.0f, 1.8f};
  params.repetition_penalty = 1.1f;
  const std::vector<std::int32_t> prompt = {0, 0};
  EXPECT_EQ(sampler.sample(logits, params, {prompt, {}, 0, 0}).token, 1) << "2 / 1.1 < 1.9, once although it occurs twice";
  params.repetition_penalty = 1.0f;
  params.frequency_penalty = 0.06f;
  EXPECT_EQ(sampler.sample(logits, params, {prompt, {}, 0, 0}).token, 0) << "the prompt does not count";
  EXPECT_EQ(sampler.sample(logits, params, {{}, prompt, 0, 0}).token, 1) << "twice 0.06";
  params.frequency_penalty = 0.0f;
  params.presence_penalty = 0.06f;
  EXPECT_EQ(sampler.sample(logits, params, {{}, prompt, 0, 0}).token, 0) << "once 0.06";
}

TEST(Sampler, ARowThatIsNotFiniteIsAnErrorOfThatRow) {
  Sampler sampler;
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity()}) {
    for (const std::size_t place : {0u, 7u, 8u, 255u, 256u}) {
      std::vector<float> logits = random_logits(257, 2);
      logits[place] = bad;
      for (const SamplingParams& params : {params_with(0.0f), params_with(1.0f)}) {
        const Sample sample = sampler.sample(logits, params, {});
        EXPECT_EQ(sample.token, -1);
        EXPECT_EQ(sample.error, non_finite_error());
      }
    }
  }
  SamplingParams params = params_with(1.0f);
  params.repetition_penalty = 1e-38f;
  const std::vector<std::int32_t> prompt = {0};
  EXPECT_THAT(sampler.sample(std::vector<float>{1e10f, 0.0f}, params, {prompt, {}, 0, 0}).error.find("penalties"),
              ::testing::Ne(std::string::npos));
}

TEST(Sampler, ExtremeParametersStillGiveAToken) {
  Sampler sampler;
  const std::vector<float> logits = random_logits(1000, 4, 1e30f);
  const auto best = static_cast<std::int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
  EXPECT_EQ(sampler.sample(logits, params_with(1e-45f), {}).token, best);
  EXPECT_EQ(sampler.sample(logits, params_with(1.0f, 0, 1e-30f), {}).token, best);
  const std::int32_t any = sampler.sample(logits, params_with(3e38f, 1000000, 0.999999f, 1e-30f), {}).token;
  EXPECT_TRUE(any >= 0 && any < 1000);
}

}  // namespace
}  // namespace lockstep::engine
