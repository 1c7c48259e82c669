#include <algorithm>
#include <array>
#include <cctype>

#include "engine/model/json_fields.h"
#include "engine/weights/json_input.h"
#include "engine/weights/quantisation.h"
#include "engine/weights/quote.h"

namespace lockstep::engine {
namespace {

using nlohmann::json;
using Method = Quantisation::Method;

void require_text(const JsonFields& fields, const char* key, std::string_view wanted) {
  const auto stated = fields.text(key);
  if (stated && *stated != wanted) fields.fail(key, quote(*stated) + " is not supported; supported: " + quote(wanted));
}

/// -1, or none, is one group for all columns.
std::size_t group_size(const JsonFields& fields, const char* key) {
  const json* found = fields.find(key);
  if (found == nullptr || (found->is_number_integer() && *found == -1)) return 0;
  return fields.integer(key, 1, 1u << 24);
}

void read_gptq(const JsonFields& fields, Quantisation& result) {
  result.bits = static_cast<unsigned>(fields.integer("bits", 1, 32));
  if (result.bits != 4 && result.bits != 8) fields.fail("bits", std::to_string(result.bits) + " is not supported; supported: 4, 8");
  result.group_size = group_size(fields, "group_size");
  result.symmetric = fields.flag_or("sym", true);
  result.any_order = fields.flag_or("desc_act", false);
  const std::string format = fields.text("checkpoint_format").value_or("gptq");
  if (format != "gptq" && format != "gptq_v2")
    fields.fail("checkpoint_format", quote(format) + " is not supported; supported: 'gptq', 'gptq_v2'");
  result.zero_less_one = format == "gptq";
  if (fields.flag_or("is_marlin_format", false)) fields.fail("is_marlin_format", "is not supported");
  require_text(fields, "pack_dtype", "int32");
  const json* dynamic = fields.find("dynamic");
  if (dynamic != nullptr && !dynamic->empty()) fields.fail("dynamic", "settings of single modules are not supported");
}

void read_awq(const JsonFields& fields, Quantisation& result) {
  const char* bits = fields.find("bits") == nullptr ? "w_bit" : "bits";
  if (fields.integer(bits, 1, 32) != 4) fields.fail(bits, std::to_string(fields.integer(bits, 1, 32)) + " is not supported; supported: 4");
  result.group_size = group_size(fields, fields.find("group_size") == nullptr ? "q_group_size" : "group_size");
  std::string version = fields.text("version").value_or("gemm");
  std::transform(version.begin(), version.end(), version.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  if (version != "gemm") fields.fail("version", quote(version) + " is not supported; supported: 'gemm'");
  result.zero_less_one = false;
}

void read_block(const JsonFields& fields, const char* key, Quantisation& result) {
  const json* block = fields.find(key);
  if (block == nullptr) return;
  const auto is_size = [](const json& size) { return size.is_number_unsigned() && size >= 1 && size <= (1u << 24); };
  if (!block->is_array() || block->size() != 2 || !is_size((*block)[0]) || !is_size((*block)[1]))
    fields.fail(key, "a list of two sizes, rows and columns, is needed");
  result.block_rows = (*block)[0].get<std::size_t>();
  result.block_columns = (*block)[1].get<std::size_t>();
}

/// The weights of every group must be fp8 numbers with scales that do not depend on the input.
void read_compressed_tensors(const JsonFields& fields, Quantisation& result) {
  require_text(fields, "format", "float-quantized");
  const auto groups = fields.object("config_groups");
  if (!groups) fields.fail("config_groups", "is missing");
  for (const auto& [name, value] : fields.find("config_groups")->items()) {
    const auto group = groups->object(name.c_str());
    const auto weights = group ? group->object("weights") : std::nullopt;
    if (!weights) groups->fail(name, "has no 'weights'");
    require_text(*weights, "type", "float");
    if (weights->integer_or("num_bits", 1, 32, 8) != 8) weights->fail("num_bits", "is not supported; supported: 8");
    if (weights->flag_or("dynamic", false)) weights->fail("dynamic", "is not supported for weights");
    const std::string strategy = weights->text("strategy").value_or("tensor");
    constexpr std::array<std::string_view, 3> kStrategies{"tensor", "channel", "block"};
    if (std::find(kStrategies.begin(), kStrategies.end(), strategy) == kStrategies.end())
      weights->fail("strategy", quote(strategy) + " is not supported; supported: 'tensor', 'channel', 'block'");
    if (strategy == "block") read_block(*weights, "block_structure", result);
  }
}

void read_float8(const JsonFields& fields, Quantisation& result) {
  if (fields.find("fmt") != nullptr) {
    const std::string format = *fields.text("fmt");
    if (format != "e4m3" && format != "e5m2") fields.fail("fmt", quote(format) + " is not supported; supported: 'e4m3', 'e5m2'");
  }
  read_block(fields, "weight_block_size", result);
}

/// The format has no variants.
void read_mxfp4(const JsonFields&, Quantisation&) {}

}  // namespace

std::optional<Quantisation> quantisation_from_config(std::string_view config_json, const std::string& source) {
  const json config = parse_json_object(config_json, source);
  const JsonFields top(config, source);
  const auto found = top.object("quantization_config");
  if (!found) return std::nullopt;
  const JsonFields& fields = *found;
  struct Reader {
    std::string_view name;
    Method method;
    void (*read)(const JsonFields&, Quantisation&);
  };
  constexpr std::array kReaders{Reader{"gptq", Method::kGptq, read_gptq},
                                Reader{"awq", Method::kAwq, read_awq},
                                Reader{"fp8", Method::kFloat8, read_float8},
                                Reader{"fbgemm_fp8", Method::kFloat8, read_float8},
                                Reader{"compressed-tensors", Method::kFloat8, read_compressed_tensors},
                                Reader{"mxfp4", Method::kMxfp4, read_mxfp4}};
  Quantisation result;
  result.source = source;
  result.name = fields.text("quant_method").value_or("of no name");
  const auto reader = std::find_if(kReaders.begin(), kReaders.end(), [&](const Reader& known) { return known.name == result.name; });
  if (reader == kReaders.end()) {
    std::string known;
    for (const Reader& each : kReaders) known += (known.empty() ? "" : ", ") + quote(each.name);
    fields.fail("quant_method", quote(result.name) + " is not supported; supported: " + known);
  }
  result.method = reader->method;
  reader->read(fields, result);
  const char* key = top.find("dtype") == nullptr ? "torch_dtype" : "dtype";
  const auto dtype = device::dtype_from_name(top.text(key).value_or("bfloat16"));
  if (dtype && device::info(*dtype).block_size == 1) result.float_dtype = *dtype;
  return result;
}

}  // namespace lockstep::engine
