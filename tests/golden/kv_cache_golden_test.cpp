// What a KV cache of 8 bits does to the logits of whole models, against keys and values in fp32: the bound that docs/numerics.md publishes.
// LOCKSTEP_GOLDENS names a folder with more models.

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/support/session_run.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
using Rows = std::vector<std::vector<float>>;

/// Largest change of a logit, as a share of what lies between the least and the largest logit of its row.
constexpr float kInt8Bound = 1.0f / 32, kFloat8Bound = 1.0f / 6;

struct Model {
  std::string name;
  fs::path folder;
};

void PrintTo(const Model& model, std::ostream* out) { *out << model.name; }

/// Mixtures are left out: a rounding that tips a router to another expert is not bounded by what it does elsewhere.
std::vector<Model> models() {
  const char* wider = std::getenv("LOCKSTEP_GOLDENS");
  std::vector<Model> found;
  for (const auto& entry : fs::directory_iterator((wider != nullptr ? fs::path(wider) : fs::path(LOCKSTEP_TEST_DATA)) / "models")) {
    const std::string name = entry.path().filename().string();
    const bool is_mixture = name == "mixtral" || name == "gpt-oss" || name.ends_with("-moe");
    if (fs::exists(entry.path() / "golden_logits.safetensors") && !is_mixture) found.push_back({name, entry.path()});
  }
  std::sort(found.begin(), found.end(), [](const Model& a, const Model& b) { return a.name < b.name; });
  return found;
}

Rows logits_of(const Model& model, device::KvQuantisation quantised, const std::vector<std::int32_t>& prompt) {
  test::RunSetup setup = test::exact_setup(model.folder, 1);
  setup.session.kv_quantised = quantised;
  Rows rows;
  test::with_session(setup, [&](engine::Session& session) { rows = test::prompt_logits(session, prompt); });
  return rows;
}

float largest_share(const Rows& found, const Rows& exact) {
  float largest = 0;
  for (std::size_t t = 0; t < exact.size(); ++t) {
    const auto [low, high] = std::minmax_element(exact[t].begin(), exact[t].end());
    for (std::size_t i = 0; i < exact[t].size(); ++i) {
      const float share = std::fabs(found.at(t).at(i) - exact[t][i]) / (*high - *low);
      if (!(share <= largest)) largest = share;  // NaN counts
    }
  }
  return largest;
}

class KvCacheOf8Bits : public testing::TestWithParam<Model> {};

TEST_P(KvCacheOf8Bits, ChangesLogitsByNoMoreThanThePublishedBound) {
  const auto golden = nlohmann::json::parse(std::ifstream(GetParam().folder / "golden.json"));
  const auto prompt = golden.at("prompts").at("p33").at("tokens").get<std::vector<std::int32_t>>();
  const Rows exact = logits_of(GetParam(), device::KvQuantisation::kNone, prompt);
  const float int8 = largest_share(logits_of(GetParam(), device::KvQuantisation::kInt8, prompt), exact);
  const float float8 = largest_share(logits_of(GetParam(), device::KvQuantisation::kFloat8, prompt), exact);
  std::printf("%s: int8 %.3g, fp8 %.3g of the range of the logits\n", GetParam().name.c_str(), static_cast<double>(int8),
              static_cast<double>(float8));
  EXPECT_GT(int8, 0.0f);  // it does something
  EXPECT_LE(int8, kInt8Bound);
  EXPECT_GT(float8, 0.0f);
  EXPECT_LE(float8, kFloat8Bound);
}

INSTANTIATE_TEST_SUITE_P(Models, KvCacheOf8Bits, testing::ValuesIn(models()), [](const testing::TestParamInfo<Model>& tested) {
  std::string name = tested.param.name;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

}  // namespace
}  // namespace lockstep
