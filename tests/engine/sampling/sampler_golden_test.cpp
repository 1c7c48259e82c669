#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <set>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "engine/sampling/sampler.h"

namespace lockstep::engine {
namespace {

using nlohmann::json;

/// The fp32 tensors of tests/data/sampling/golden.safetensors: eight bytes of header length, a JSON header, the data.
class Tensors {
 public:
  explicit Tensors(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    std::uint64_t length = 0;
    file.read(reinterpret_cast<char*>(&length), 8);
    std::string header(length, ' ');
    file.read(header.data(), static_cast<std::streamsize>(length));
    header_ = json::parse(header);
    data_.assign(std::istreambuf_iterator<char>(file), {});
  }
  std::vector<float> read(const std::string& name) const {
    const auto offsets = header_.at(name).at("data_offsets").get<std::vector<std::size_t>>();
    std::vector<float> values((offsets.at(1) - offsets.at(0)) / sizeof(float));
    std::memcpy(values.data(), data_.data() + offsets[0], offsets[1] - offsets[0]);
    return values;
  }

 private:
  json header_;
  std::vector<char> data_;
};

const std::set<std::string> kSupported = {"temperature",
                                          "top_k",
                                          "top_p",
                                          "min_p",
                                          "repetition_penalty",
                                          "presence_penalty",
                                          "frequency_penalty",
                                          "typical_p",
                                          "no_repeat_ngram_size",
                                          "logit_bias",
                                          "min_new_tokens",
                                          "eos_token_id"};

bool is_supported(const json& params) {
  return std::all_of(params.items().begin(), params.items().end(), [](const auto& item) { return kSupported.contains(item.key()); });
}

SamplingParams params_of(const json& values) {
  SamplingParams params;
  params.temperature = values.value("temperature", 1.0f);
  params.top_k = values.value("top_k", 0);
  params.top_p = values.value("top_p", 1.0f);
  params.min_p = values.value("min_p", 0.0f);
  params.repetition_penalty = values.value("repetition_penalty", 1.0f);
  params.presence_penalty = values.value("presence_penalty", 0.0f);
  params.frequency_penalty = values.value("frequency_penalty", 0.0f);
  params.typical_p = values.value("typical_p", 1.0f);
  params.no_repeat_ngram_size = values.value("no_repeat_ngram_size", 0u);
  params.min_tokens = values.value("min_new_tokens", 0u);
  const json biases = values.value("logit_bias", json::object());
  for (const auto& [id, bias] : biases.items()) params.logit_bias.emplace_back(std::stoi(id), bias.get<float>());
  return params;
}

/// Where the reference's own outcome rests on a tie or on the last bit of a sum, another outcome is right too if it differs among equals or
/// by one at the boundary.
bool is_allowed_difference(const std::set<std::int32_t>& ours, const std::set<std::int32_t>& theirs, const std::vector<float>& logits) {
  std::vector<std::int32_t> differing;
  std::set_symmetric_difference(ours.begin(), ours.end(), theirs.begin(), theirs.end(), std::back_inserter(differing));
  if (differing.size() <= 1) return true;
  const auto logit = [&](std::int32_t id) { return logits[static_cast<std::size_t>(id)]; };
  return std::all_of(differing.begin(), differing.end(), [&](std::int32_t id) { return logit(id) == logit(differing.front()); });
}

TEST(SamplerGolden, KeepsWhatTheReferenceKeepsWithItsProbabilities) {
  const std::string folder = std::string(LOCKSTEP_TEST_DATA) + "/sampling/";
  std::ifstream file(folder + "golden.json");
  const json golden = json::parse(file);
  const Tensors tensors(folder + "golden.safetensors");
  Sampler sampler;
  int checked = 0;
  int sensitive = 0;
  for (const json& entry : golden.at("cases")) {
    if (!is_supported(entry.at("params"))) continue;
    const std::string id = entry.at("id");
    SCOPED_TRACE(id + ": " + entry.at("params").dump() + " on " + entry.at("logits").get<std::string>());
    const std::vector<float> logits = tensors.read("logits." + entry.at("logits").get<std::string>());
    const std::vector<float> expected = tensors.read("probs." + id);
    const auto prompt = entry.at("prompt").get<std::vector<std::int32_t>>();
    const auto generated = entry.at("generated").get<std::vector<std::int32_t>>();
    const auto kept = entry.at("kept").get<std::set<std::int32_t>>();

    std::vector<std::int32_t> end_ids;
    if (entry.at("params").contains("eos_token_id")) end_ids.push_back(entry.at("params").at("eos_token_id"));
    const auto distribution = sampler.distribution(logits, params_of(entry.at("params")), {prompt, generated, 0, 0, end_ids});
    std::set<std::int32_t> ours;
    for (const auto& [token, probability] : distribution) ours.insert(token);
    ++checked;
    if (params_of(entry.at("params")).top_k == 1) {  // the one agreed difference: greedy, so of those that tie the lowest id alone
      EXPECT_EQ(ours, std::set<std::int32_t>{*kept.begin()});
      continue;
    }
    if (ours != kept) {
      ++sensitive;
      EXPECT_TRUE(entry.at("sensitive").get<bool>() && is_allowed_difference(ours, kept, logits))
          << ours.size() << " kept instead of " << kept.size();
      continue;
    }
    for (const auto& [token, probability] : distribution) {
      EXPECT_NEAR(probability, expected[static_cast<std::size_t>(token)], entry.at("tolerance").get<double>()) << "token " << token;
    }
  }
  EXPECT_GE(checked, 270);
  EXPECT_LE(sensitive, checked / 10);
  RecordProperty("checked", checked);
  RecordProperty("sensitive_and_different", sensitive);
}

}  // namespace
}  // namespace lockstep::engine
