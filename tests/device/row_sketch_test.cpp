#include "device/cpu/row_sketch.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include <gtest/gtest.h>

#include "device/cpu/first_candidates.h"
#include "device/cpu/vocabulary_sum.h"
#include "tests/device/reference.h"

namespace lockstep::device {
namespace {

constexpr float kMasked = -std::numeric_limits<float>::infinity();

/// Like a language model's: most of the mass may lie in a few logits, or be spread over all.
std::vector<float> row_of_logits(std::size_t size, std::uint32_t seed, float spread, float lift, float masked_part) {
  std::vector<float> logits = reference::random_floats(size, seed, spread);
  std::mt19937 random(seed);
  for (float& logit : logits) {
    logit += 11.3f;
    if (static_cast<float>(random() % 1000) < 1000.0f * masked_part) logit = kMasked;
  }
  for (std::size_t i = 0; i < size / 50 + 1; ++i) logits[random() % size] = 11.3f + spread + lift * static_cast<float>(random() % 8) / 8.0f;
  return logits;
}

/// What the device makes of a row, part by part.
struct Sketch {
  std::vector<float> maxima;
  SketchedMass mass;
  bool finite = true;
};

Sketch sketch_of(std::span<const float> logits, double scale, Isa isa, std::size_t part = kSketchPart) {
  Sketch sketch;
  sketch.maxima.resize((logits.size() + kSketchGroup - 1) / kSketchGroup);
  for (std::size_t first = 0; first < logits.size(); first += part) {
    const std::span<const float> values = logits.subspan(first, std::min(part, logits.size() - first));
    const SketchedPart found = sketch_part(values, scale, isa, sketch.maxima.data() + first / kSketchGroup);
    sketch.mass.add(found.mass, scale);
    sketch.finite = sketch.finite && found.finite;
  }
  return sketch;
}

TEST(RowSketch, KnowsTheMassWithinItsError) {
  double worst = 0.0;
  for (const Isa isa : supported_isas()) {
    for (const std::size_t size : {1, 5, 255, 256, 257, 4096, 49152, 50001}) {
      for (const float spread : {0.0f, 0.01f, 3.0f, 20.0f, 200.0f}) {
        for (const double temperature : {1e-5, 0.01, 0.3, 0.8, 1.0, 7.0, 100.0}) {
          const std::vector<float> logits = row_of_logits(size, static_cast<std::uint32_t>(size), spread, 10.0f, size > 300 ? 0.3f : 0.0f);
          const float top = maximum(logits, isa);
          ASSERT_TRUE(can_sketch_mass(1.0 / temperature));
          const double exact = sum_of_exponentials(logits, top, 1.0 / temperature, isa);
          for (const std::size_t part : {std::size_t{256}, kSketchPart}) {
            const SketchedMass sketch = sketch_of(logits, 1.0 / temperature, isa, part).mass;
            ASSERT_EQ(sketch.maximum, top);
            worst = std::max(worst, std::abs(sketch.mass - exact) / exact);
            ASSERT_LE(std::abs(sketch.mass - exact), 0.75 * kMassError * exact)
                << isa_name(isa) << ", " << size << " ids, spread " << spread << ", temperature " << temperature << ", parts of " << part;
          }
        }
      }
    }
  }
  RecordProperty("worst", std::to_string(worst));
}

/// Equal logits: each term is 1, whichever power of two it was computed from, so what is off is the polynomial.
TEST(RowSketch, KnowsTheMassWhateverTheFractionOfTheExponent) {
  constexpr std::size_t kSteps = std::size_t{1} << 16, kIds = 256;
  std::vector<float> maxima(kIds / kSketchGroup);
  for (const Isa isa : supported_isas()) {
    double worst = 0.0;
    for (std::size_t step = 0; step < kSteps; ++step) {
      const std::vector<float> logits(kIds, std::log(2.0f) * (1.0f + static_cast<float>(step) / static_cast<float>(kSteps)));
      const double mass = sketch_part(logits, 1.0, isa, maxima.data()).mass.mass;
      worst = std::max(worst, std::abs(mass / static_cast<double>(kIds) - 1.0));
    }
    EXPECT_LE(worst, 3.2e-6) << isa_name(isa);
  }
}

/// The terms whose exponents round worst: far from the maximum, in the part that has it, and so many that they are most of the mass.
TEST(RowSketch, KnowsTheMassOfManyFarLogits) {
  for (const Isa isa : supported_isas()) {
    for (const double temperature : {0.013, 0.8, 1.0 / 3.0, 41.0}) {
      for (const float distance : {5.0f, 8.7f, 11.1f}) {
        for (const float top : {0.0f, 17.3f, -500.1f}) {
          std::vector<float> logits(std::size_t{1} << 18, top - distance * static_cast<float>(temperature));
          logits[77777] = top;
          const double exact = sum_of_exponentials(logits, top, 1.0 / temperature, isa);
          const SketchedMass sketch = sketch_of(logits, 1.0 / temperature, isa).mass;
          ASSERT_LE(std::abs(sketch.relative_to(top, 1.0 / temperature) - exact), 0.75 * kMassError * exact)
              << isa_name(isa) << ", temperature " << temperature << ", distance " << distance << ", top " << top;
        }
      }
    }
  }
}

TEST(RowSketch, KnowsTheMaximumOfEveryGroup) {
  for (const Isa isa : supported_isas()) {
    for (const std::size_t size : {1, 256, 1000, 2048, 5000}) {
      const std::vector<float> logits = row_of_logits(size, 3, 5.0f, 1.0f, 0.1f);
      std::vector<float> expected((size + kSketchGroup - 1) / kSketchGroup, kMasked);
      for (std::size_t id = 0; id < size; ++id) expected[id / kSketchGroup] = std::max(expected[id / kSketchGroup], logits[id]);
      for (const double scale : {0.0, 1.5}) {
        const Sketch sketch = sketch_of(logits, scale, isa);
        EXPECT_EQ(sketch.maxima, expected) << isa_name(isa) << ", " << size << " ids";
        EXPECT_EQ(sketch.mass.maximum, *std::max_element(logits.begin(), logits.end()));
      }
    }
  }
}

TEST(RowSketch, SeesWhatIsNotFinite) {
  const float infinity = std::numeric_limits<float>::infinity();
  for (const Isa isa : supported_isas()) {
    for (const std::size_t size : {7, 256, 5003}) {
      std::vector<float> logits = row_of_logits(size, 5, 5.0f, 1.0f, 0.0f);
      EXPECT_TRUE(sketch_of(logits, 1.25, isa).finite);
      for (const std::size_t place : {std::size_t{0}, size / 2, size - 1}) {
        for (const float value : {infinity, -infinity, std::nanf("")}) {
          const float was = std::exchange(logits[place], value);
          EXPECT_FALSE(sketch_of(logits, 1.25, isa).finite) << isa_name(isa) << ", " << value << " at " << place << " of " << size;
          logits[place] = was;
        }
      }
    }
    const std::vector<float> masked(300, kMasked);
    EXPECT_EQ(sketch_of(masked, 1.0, isa).mass.mass, 0.0);
    EXPECT_EQ(sketch_of(masked, 1.0, isa).mass.relative_to(3.0f, 1.0), 0.0);
  }
}

TEST(FirstCandidates, AreThoseOfTheWholeOrderWithMaximaAndWithout) {
  std::vector<std::uint64_t> keys, all;
  for (const Isa isa : supported_isas()) {
    for (const std::size_t size : {1, 300, 5000, 40000}) {
      for (int kind = 0; kind < 4; ++kind) {
        std::vector<float> logits = row_of_logits(size, static_cast<std::uint32_t>(kind), 6.0f, 3.0f, kind == 2 ? 0.999f : 0.0f);
        for (float& logit : logits) {
          if (kind == 1) logit = std::round(logit - 11.0f);  // ties, zeros of both signs
          if (kind == 3) logit = 2.0f;
        }
        all.clear();
        for (std::size_t id = 0; id < size; ++id) all.push_back(candidate_key(logits[id], static_cast<std::uint32_t>(id)));
        std::sort(all.begin(), all.end());
        const Sketch sketch = sketch_of(logits, 0.0, isa);
        for (const std::size_t count : {1, 8, 64, 100, 1024}) {
          for (const bool with_maxima : {false, true}) {
            first_candidates(logits, count, count, with_maxima ? std::span<const float>(sketch.maxima) : std::span<const float>(), isa,
                             keys);
            std::sort(keys.begin(), keys.end());
            const auto expected = std::span(all).first(std::min(count, size));
            ASSERT_TRUE(std::equal(keys.begin(), keys.end(), expected.begin(), expected.end()))
                << isa_name(isa) << ", " << count << " of " << size << " ids, kind " << kind << (with_maxima ? ", with maxima" : "");
          }
        }
      }
    }
  }
}

TEST(FirstCandidates, ARowOfNaNsIsNoTrouble) {
  std::vector<std::uint64_t> keys;
  for (const Isa isa : supported_isas()) {
    std::vector<float> logits = row_of_logits(30000, 1, 6.0f, 3.0f, 0.0f);
    for (std::size_t id = 0; id < logits.size(); id += 1 + id % 700) logits[id] = std::nanf("");
    const Sketch sketch = sketch_of(logits, 1.0, isa);
    first_candidates(logits, 64, 64, sketch.maxima, isa, keys);
    EXPECT_LE(keys.size(), 64u);
  }
}

}  // namespace
}  // namespace lockstep::device
