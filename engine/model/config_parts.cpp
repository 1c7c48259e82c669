#include "engine/model/config_parts.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "engine/model/limits.h"
#include "engine/model/rope.h"
#include "engine/weights/quote.h"

namespace lockstep::engine {
namespace {

using device::Nonlinearity;

struct NamedFunction {
  std::string_view name;
  Nonlinearity function;
};
constexpr std::array<NamedFunction, 9> kFunctions{{{"silu", Nonlinearity::kSilu},
                                                   {"swish", Nonlinearity::kSilu},
                                                   {"gelu", Nonlinearity::kGelu},
                                                   {"gelu_python", Nonlinearity::kGelu},
                                                   {"gelu_new", Nonlinearity::kGeluTanh},
                                                   {"gelu_pytorch_tanh", Nonlinearity::kGeluTanh},
                                                   {"gelu_fast", Nonlinearity::kGeluTanh},
                                                   {"quick_gelu", Nonlinearity::kGeluQuick},
                                                   {"relu", Nonlinearity::kRelu}}};

}  // namespace

void read_activation(const JsonFields& fields, const char* key, ModelSpec& spec) {
  const auto stated = fields.text(key);
  if (!stated) return;
  const auto found = std::find_if(kFunctions.begin(), kFunctions.end(), [&](const NamedFunction& known) { return known.name == *stated; });
  if (found == kFunctions.end()) {
    fields.fail(key,
                quote(*stated) + " is not supported; supported: 'silu', 'gelu', 'gelu_new', 'gelu_pytorch_tanh', 'quick_gelu', 'relu'");
  }
  spec.activation = found->function;
}

void read_attention_bias(const JsonFields& fields, bool absent, bool of_output, ModelSpec& spec) {
  spec.attention_bias = fields.flag_or("attention_bias", absent);
  spec.attention_output_bias = of_output && spec.attention_bias;
}

void read_windows(const JsonFields& fields, bool (*slides)(const JsonFields& fields, std::size_t layer), ModelSpec& spec) {
  const auto window = static_cast<std::uint32_t>(fields.integer_or("sliding_window", 0, SpecLimits::kPositions, 0));
  const nlohmann::json* types = fields.find("layer_types");
  if (types != nullptr && (!types->is_array() || types->size() != spec.num_layers))
    fields.fail("layer_types", "a list of " + std::to_string(spec.num_layers) + " names is needed, one for each layer");
  std::vector<std::uint32_t> windows;
  for (std::size_t layer = 0; layer < spec.num_layers; ++layer) {
    bool slid = false;
    if (types != nullptr) {
      const nlohmann::json& type = (*types)[layer];
      const std::string name = type.is_string() ? type.get<std::string>() : "";
      if (name != "full_attention" && name != "sliding_attention")
        fields.fail("layer_types", "has an entry " + quote(name) + "; supported: 'full_attention', 'sliding_attention'");
      slid = name == "sliding_attention";
      if (slid && window == 0) fields.fail("layer_types", "names sliding layers, but there is no sliding_window");
    } else {
      slid = slides(fields, layer);
    }
    windows.push_back(slid ? window : 0);
  }
  if (std::any_of(windows.begin(), windows.end(), [](std::uint32_t each) { return each != 0; })) spec.windows = std::move(windows);
}

bool every_layer_slides(const JsonFields&, std::size_t) { return true; }

std::vector<std::size_t> layer_list(const JsonFields& fields, const char* key) {
  std::vector<std::size_t> values;
  const nlohmann::json* list = fields.find(key);
  if (list == nullptr) return values;
  if (!list->is_array() || list->size() > SpecLimits::kLayers) fields.fail(key, "a list of whole numbers is needed");
  for (const nlohmann::json& entry : *list) {
    if (!entry.is_number_unsigned() || entry.get<std::uint64_t>() > SpecLimits::kLayers) fields.fail(key, "has an entry that is no layer");
    values.push_back(entry.get<std::size_t>());
  }
  return values;
}

void default_rotary_part(const JsonFields& fields, double part, ModelSpec& spec) {
  const auto parameters = fields.object("rope_parameters");
  if (fields.find("partial_rotary_factor") != nullptr || (parameters && parameters->find("partial_rotary_factor") != nullptr)) return;
  spec.rope.rotary_dim = rotary_dim_of(fields, spec.head_dim, part);
}

float read_scale(const JsonFields& fields, const char* key, double absent) {
  return static_cast<float>(fields.number(key, 1e-9, 1e9).value_or(absent));
}

void refuse_flag(const JsonFields& fields, const char* key) {
  if (fields.flag_or(key, false)) fields.fail(key, "is not supported in this family");
}

}  // namespace lockstep::engine
