#include "engine/model/gguf_keys.h"

#include <algorithm>
#include <array>

#include "engine/model/limits.h"
#include "engine/model/registry.h"
#include "engine/model/rope.h"
#include "engine/weights/quote.h"

namespace lockstep::engine {
namespace {

constexpr double kLargest = 1e9;

void describe_heads(GgufKeys& keys, ModelSpec& spec) {
  keys.size("attention.head_count", spec.num_heads, {1, SpecLimits::kHeads});
  keys.size("attention.head_count_kv", spec.num_kv_heads, {1, SpecLimits::kHeads}, spec.num_heads);
  const bool shared = spec.hidden_size % spec.num_heads == 0;
  keys.size("attention.key_length", spec.head_dim, {2, SpecLimits::kHeadDim}, shared ? spec.hidden_size / spec.num_heads : 0);
  if (spec.head_dim < 2 || spec.head_dim > SpecLimits::kHeadDim) {
    keys.fail("embedding_length", "is " + std::to_string(spec.hidden_size) + ", which " + std::to_string(spec.num_heads) +
                                      " heads cannot share evenly, and there is no attention.key_length");
  }
  std::size_t value_length = spec.head_dim;
  keys.size("attention.value_length", value_length, {1, SpecLimits::kHeadDim}, spec.head_dim);
  if (value_length != spec.head_dim) {
    keys.fail("attention.value_length", "is " + std::to_string(value_length) + ", not the dimension of keys, " +
                                            std::to_string(spec.head_dim) + ", which is not supported");
  }
}

struct ScalingName {
  RopeScaling scaling;
  const char* name;
};
constexpr std::array<ScalingName, 5> kScalings{{{RopeScaling::kNone, ""},
                                                {RopeScaling::kNone, "none"},
                                                {RopeScaling::kLinear, "linear"},
                                                {RopeScaling::kYarn, "yarn"},
                                                {RopeScaling::kLongrope, "longrope"}}};

/// The scaling of llama3 is a tensor of divisors, rope_freqs; that which grows with the length has no form.
void describe_scaling(GgufKeys& keys, ModelSpec& spec) {
  RopeSpec& rope = spec.rope;
  const auto known =
      std::find_if(kScalings.begin(), kScalings.end(), [&](const ScalingName& each) { return each.scaling == rope.scaling; });
  std::string name = known == kScalings.end() ? "" : known->name;
  double factor = rope.scaling == RopeScaling::kLinear || rope.scaling == RopeScaling::kYarn ? rope.factor : 1.0;
  double older_factor = 1.0;  // a key of old files
  keys.text("rope.scaling.type", name, "");
  keys.number("rope.scaling.factor", factor, {0.0, kLargest}, 1.0);
  keys.number("rope.scale_linear", older_factor, {0.0, kLargest}, 1.0);
  factor = std::max(factor == 0.0 ? 1.0 : factor, older_factor == 0.0 ? 1.0 : older_factor);
  if (name.empty() && factor != 1.0) name = "linear";
  const auto stated = std::find_if(kScalings.begin(), kScalings.end(), [&](const ScalingName& each) { return each.name == name; });
  if (stated == kScalings.end())
    keys.fail("rope.scaling.type", "is " + quote(name) + ", which is not supported; supported: 'none', 'linear', 'yarn', 'longrope'");
  if (!keys.writing()) rope.scaling = stated->scaling == RopeScaling::kLinear && factor == 1.0 ? RopeScaling::kNone : stated->scaling;
  if (rope.scaling == RopeScaling::kLinear || rope.scaling == RopeScaling::kYarn) rope.factor = factor;
  if (rope.scaling == RopeScaling::kYarn || rope.scaling == RopeScaling::kLongrope)
    keys.size("rope.scaling.original_context_length", rope.original_positions, {1, SpecLimits::kPositions}, spec.max_position_embeddings);
  if (rope.scaling == RopeScaling::kYarn) {
    keys.number("rope.scaling.yarn_beta_fast", rope.beta_fast, {1e-6, kLargest}, 32.0);
    keys.number("rope.scaling.yarn_beta_slow", rope.beta_slow, {1e-6, kLargest}, 1.0);
  }
  if (rope.scaling == RopeScaling::kLongrope) {
    rope.factor = static_cast<double>(spec.max_position_embeddings) / static_cast<double>(rope.original_positions);
    double of_angles = keys.writing() ? static_cast<double>(rotary_of(rope).factor) : 0.0;
    keys.number("rope.scaling.attn_factor", of_angles, {0.0, kLargest}, 0.0);
    if (of_angles != 0.0) rope.attention_factor = of_angles;
  }
}

void describe_rope(GgufKeys& keys, ModelSpec& spec) {
  RopeSpec& rope = spec.rope;
  keys.size("rope.dimension_count", rope.rotary_dim, {2, SpecLimits::kHeadDim}, spec.head_dim);
  keys.number("rope.freq_base", rope.theta, {1.0, SpecLimits::kRopeTheta}, 10000.0);
  describe_scaling(keys, spec);
  if (rope.rotary_dim % 2 != 0 || rope.rotary_dim > spec.head_dim) return;  // check_consistency says so
  const std::size_t pairs = rope.rotary_dim / 2;
  if (keys.writing() && rope.scaling == RopeScaling::kLlama3) rope.divisors = llama3_divisors(rope), rope.scaling = RopeScaling::kNone;
  keys.tensor("rope_freqs.weight", rope.divisors, pairs);
  if (rope.scaling != RopeScaling::kLongrope) return;
  for (auto& [name, factors] :
       {std::pair("rope_factors_short.weight", &rope.short_factors), {"rope_factors_long.weight", &rope.long_factors}}) {
    std::vector<float> values(factors->begin(), factors->end());
    keys.tensor(name, values, pairs);
    if (values.empty()) keys.fail("rope.scaling.type", "is 'longrope', but the tensor " + quote(name) + " is missing");
    factors->assign(values.begin(), values.end());
  }
}

void describe_windows(GgufKeys& keys, const GgufForm& form, ModelSpec& spec) {
  std::size_t window = 0;
  for (const std::uint32_t each : spec.windows) window = std::max<std::size_t>(window, each);
  keys.size("attention.sliding_window", window, {0, SpecLimits::kPositions}, form.window);
  std::vector<bool> usual, slides;
  for (std::size_t layer = 0; layer < spec.num_layers; ++layer) {
    usual.push_back(form.window_period == 0 || layer % form.window_period != form.window_period - 1);
    slides.push_back(spec.window_of(layer) != 0);
  }
  if (window != 0) keys.layers("attention.sliding_window_pattern", slides, usual);
  spec.windows.clear();
  if (window == 0) return;
  for (const bool each : slides) spec.windows.push_back(each ? static_cast<std::uint32_t>(window) : 0);
}

void describe_experts(GgufKeys& keys, ModelSpec& spec) {
  ExpertSpec& experts = spec.experts;
  keys.size("expert_count", experts.count, {1, SpecLimits::kExperts});
  keys.size("expert_used_count", experts.per_token, {1, static_cast<double>(experts.count)});
  keys.size("expert_feed_forward_length", experts.intermediate_size, {1, SpecLimits::kIntermediateSize}, spec.intermediate_size);
  const std::vector<bool> before = std::move(experts.layers);
  experts.layers.clear();
  for (std::size_t layer = 0; layer < spec.num_layers; ++layer)
    experts.layers.push_back(keys.has_tensor("blk." + std::to_string(layer) + ".ffn_gate_inp.weight", before.empty() || before.at(layer)));
}

/// Whether all of these tensors are there in every layer. @throws if only some are.
bool in_every_layer(GgufKeys& keys, const ModelSpec& spec, const std::vector<std::string>& names, bool value) {
  std::size_t found = 0;
  std::string missing;
  for (std::size_t layer = 0; layer < spec.num_layers; ++layer) {
    for (const std::string& name : names) {
      const std::string full = "blk." + std::to_string(layer) + "." + name;
      if (keys.has_tensor(full, value)) {
        ++found;
      } else if (missing.empty()) {
        missing = full;
      }
    }
  }
  if (found != 0 && !missing.empty())
    keys.fail("", "tensor " + quote(missing) + " is missing, while other layers or projections have such a bias");
  return found != 0;
}

void describe_tensors(GgufKeys& keys, ModelSpec& spec) {
  const bool joined = keys.has_tensor("blk.0.attn_qkv.weight", false);
  if (!keys.writing()) spec.joined_qkv = joined;
  const std::vector<std::string> attention =
      joined ? std::vector<std::string>{"attn_qkv.bias"} : std::vector<std::string>{"attn_q.bias", "attn_k.bias", "attn_v.bias"};
  spec.attention_bias = in_every_layer(keys, spec, attention, spec.attention_bias);
  spec.attention_output_bias = in_every_layer(keys, spec, {"attn_output.bias"}, spec.attention_output_bias);
  if (spec.experts.count == 0) {
    std::vector<std::string> inner{"ffn_up.bias", "ffn_down.bias"};
    if (keys.has_tensor("blk.0.ffn_gate.weight", false)) inner.push_back("ffn_gate.bias");
    spec.mlp_bias = in_every_layer(keys, spec, inner, spec.mlp_bias);
  }
  spec.head_bias = keys.has_tensor("output.bias", spec.head_bias);
  spec.norm.has_bias = keys.has_tensor("output_norm.bias", spec.norm.has_bias);
  spec.tie_word_embeddings = !keys.has_tensor("output.weight", !spec.tie_word_embeddings);
}

}  // namespace

void describe_gguf(GgufKeys& keys, const Family& family, ModelSpec& spec) {
  spec.naming = NamingScheme::kGguf;
  spec.absent_prefix.clear();
  spec.rotary_pairs_interleaved = family.gguf.pairs_interleaved;
  spec.norm.kind = family.keys.norm;
  spec.norm.weight_offset = 0.0f;  // files have the sum
  spec.activation = family.keys.default_activation;
  keys.size("embedding_length", spec.hidden_size, {1, SpecLimits::kHiddenSize});
  keys.size("block_count", spec.num_layers, {1, SpecLimits::kLayers});
  describe_heads(keys, spec);
  keys.size("feed_forward_length", spec.intermediate_size, {1, SpecLimits::kIntermediateSize});
  keys.size("context_length", spec.max_position_embeddings, {1, SpecLimits::kPositions});
  const bool is_rms = spec.norm.kind == device::Norm::Kind::kRms;
  keys.number(is_rms ? "attention.layer_norm_rms_epsilon" : "attention.layer_norm_epsilon", spec.norm.eps, {1e-30, 1.0});
  if (family.gguf.rotary) describe_rope(keys, spec);
  describe_windows(keys, family.gguf, spec);
  if (family.gguf.has_experts) describe_experts(keys, spec);
  describe_tensors(keys, spec);
  if (family.gguf.describe != nullptr) family.gguf.describe(keys, spec);
}

}  // namespace lockstep::engine
