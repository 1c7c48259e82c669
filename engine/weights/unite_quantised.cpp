#include <algorithm>
#include <array>
#include <iterator>
#include <map>
#include <set>
#include <stdexcept>
#include <utility>

#include "engine/weights/packed_matrix.h"
#include "engine/weights/quote.h"

namespace lockstep::engine {
namespace {

using device::DType;
using Method = Quantisation::Method;

constexpr std::string_view kWeight = ".weight";
constexpr std::string_view kQuants = ".qweight";
constexpr std::string_view kBlocks = "_blocks";

std::size_t divided_up(std::size_t value, std::size_t by) { return (value + by - 1) / by; }

/// The tensors of a source by name, and what is made of them.
class Uniter {
 public:
  Uniter(WeightSource::Contents contents, const Quantisation& quantisation) : contents_(std::move(contents)), quantisation_(quantisation) {
    for (const UnsupportedTensor& tensor : contents_.unsupported) by_name_.emplace(tensor.name, PackedPart{tensor});
    for (const StoredTensor& tensor : contents_.tensors) {
      by_name_.emplace(tensor.name, PackedPart{{tensor.name, std::string(device::info(tensor.dtype).name), tensor.file, tensor.shape,
                                                tensor.offset, tensor.bytes},
                                               tensor.dtype});
    }
  }

  std::unique_ptr<WeightSource> unite() {
    for (const UnsupportedTensor& tensor : contents_.unsupported) {
      const bool is_float8 = tensor.type == quote("F8_E4M3") || tensor.type == quote("F8_E5M2");
      if (quantisation_.method == Method::kFloat8 && is_float8 && tensor.name.ends_with(kWeight)) unite_float8(tensor);
      const bool is_grouped = quantisation_.method == Method::kGptq || quantisation_.method == Method::kAwq;
      if (is_grouped && tensor.name.ends_with(kQuants)) unite_grouped(tensor);
      if (quantisation_.method == Method::kMxfp4 && tensor.name.ends_with(kBlocks)) unite_mxfp4(tensor);
    }
    if (made_.empty()) {
      throw std::runtime_error(quantisation_.source + ": quantization_config says " + quote(quantisation_.name) +
                               ", but no tensor is quantised that way");
    }
    const auto is_part = [&](const auto& tensor) { return used_.contains(tensor.name); };
    std::erase_if(contents_.tensors, is_part);
    std::erase_if(contents_.unsupported, is_part);
    std::move(made_.begin(), made_.end(), std::back_inserter(contents_.tensors));
    return std::make_unique<WeightSource>(std::move(contents_.files), std::move(contents_.tensors), std::move(contents_.unsupported));
  }

 private:
  [[noreturn]] void fail(const UnsupportedTensor& tensor, const std::string& message) const {
    throw std::runtime_error(contents_.files.at(tensor.file).path().string() + ": tensor " + quote(tensor.name) + " " + message);
  }

  [[noreturn]] void fail_shape(const UnsupportedTensor& tensor, const std::string& expected) const {
    fail(tensor, "has type " + tensor.type + " and shape " + shape_text(tensor.shape) + ", where " + expected + " is needed");
  }

  const PackedPart* find(const std::string& name) {
    const auto found = by_name_.find(name);
    if (found == by_name_.end()) return nullptr;
    used_.insert(name);
    return &found->second;
  }

  const PackedPart& require(const UnsupportedTensor& needs, const std::string& name) {
    const PackedPart* found = find(name);
    if (found == nullptr)
      fail(needs, "needs " + quote(name) + ", which is missing (" + quantisation_.source + ": " + quantisation_.name + ")");
    return *found;
  }

  void check_words(const PackedPart& part, std::size_t rows, std::size_t columns) const {
    const std::array<std::size_t, 2> shape{rows, columns};
    const bool fits =
        part.tensor.type == quote("I32") && std::equal(shape.begin(), shape.end(), part.tensor.shape.begin(), part.tensor.shape.end());
    if (!fits) fail_shape(part.tensor, "'I32' of " + shape_text(shape));
  }

  void unite_float8(const UnsupportedTensor& weight) {
    const std::string module = weight.name.substr(0, weight.name.size() - kWeight.size());
    if (weight.shape.size() != 2 || weight.shape[0] == 0 || weight.shape[1] == 0) fail_shape(weight, "a matrix");
    const std::string inverse = module + ".weight_scale_inv";
    const std::string plain = module + ".weight_scale";
    if (by_name_.contains(inverse) && by_name_.contains(plain)) fail(weight, "has two scales, " + quote(inverse) + " and " + quote(plain));
    const PackedPart& scale = require(weight, by_name_.contains(inverse) ? inverse : plain);
    used_.insert(weight.name);

    Float8Parts parts{.weight = by_name_.at(weight.name), .scale = scale};
    parts.e5m2 = weight.type == quote("F8_E5M2");
    parts.rows = weight.shape[0];
    parts.columns = weight.shape[1];
    shape_scales(parts);
    StoredTensor made{.name = weight.name, .dtype = DType::kF32, .shape = weight.shape, .file = weight.file};
    made.load_dtype = quantisation_.float_dtype;
    made.format = parts.e5m2 ? "FP8 (e5m2)" : "FP8";
    made.bytes = weight.bytes + scale.tensor.bytes;
    made.packed = make_float8_matrix(std::move(parts));
    made_.push_back(std::move(made));
  }

  /// Finds out from its shape for what a scale holds.
  void shape_scales(Float8Parts& parts) const {
    const UnsupportedTensor& scale = parts.scale.tensor;
    std::vector<std::size_t> shape = scale.shape;
    if (!parts.scale.float_type) fail_shape(scale, "F32, F16 or BF16");
    while (!shape.empty() && shape.back() == 1) shape.pop_back();
    parts.block_rows = parts.rows;
    parts.block_columns = parts.columns;
    parts.scale_columns = 1;
    if (shape.empty()) return;  // one for all
    const bool of_rows = shape.size() == 1 && scale.shape.size() <= 2 && shape[0] == parts.rows;
    if (of_rows && (scale.shape.size() == 1 || quantisation_.block_rows != 1 || parts.columns <= quantisation_.block_columns)) {
      parts.block_rows = 1;
      return;
    }
    const std::string simple = "one, or one for each of " + std::to_string(parts.rows) + " rows";
    if (quantisation_.block_rows == 0) fail_shape(scale, simple);
    parts.block_rows = quantisation_.block_rows;
    parts.block_columns = quantisation_.block_columns;
    parts.scale_columns = divided_up(parts.columns, parts.block_columns);
    const std::array<std::size_t, 2> blocks{divided_up(parts.rows, parts.block_rows), parts.scale_columns};
    if (!std::equal(blocks.begin(), blocks.end(), scale.shape.begin(), scale.shape.end()))
      fail_shape(scale, simple + ", or " + shape_text(blocks));
  }

  void unite_mxfp4(const UnsupportedTensor& blocks) {
    const std::string name = blocks.name.substr(0, blocks.name.size() - kBlocks.size());
    if (by_name_.contains(name)) fail(blocks, "is there beside " + quote(name) + ": one of them is too many");
    std::vector<std::size_t> shape = blocks.shape;
    const bool has_rows = shape.size() >= 3 && std::find(shape.begin(), shape.end(), std::size_t{0}) == shape.end();
    if (blocks.type != quote("U8") || !has_rows || shape.back() != 16) fail_shape(blocks, "'U8' of [..., rows, columns / 32, 16]");
    used_.insert(blocks.name);
    const PackedPart& scales = require(blocks, name + "_scales");
    shape.pop_back();
    if (scales.tensor.type != quote("U8") || scales.tensor.shape != shape) fail_shape(scales.tensor, "'U8' of " + shape_text(shape));
    shape.back() *= 32;
    StoredTensor made{.name = name, .dtype = DType::kMXFP4, .shape = shape, .file = blocks.file};
    made.bytes = blocks.bytes + scales.tensor.bytes;
    made.packed = make_mxfp4_matrix({.blocks = by_name_.at(blocks.name), .scales = scales, .columns = shape.back()});
    made_.push_back(std::move(made));
  }

  void unite_grouped(const UnsupportedTensor& quants) {
    const std::string module = quants.name.substr(0, quants.name.size() - kQuants.size());
    const std::string name = module + std::string(kWeight);
    if (by_name_.contains(name)) fail(quants, "is there beside " + quote(name) + ": one of them is too many");
    const bool awq = quantisation_.method == Method::kAwq;
    const std::size_t per_word = 32 / quantisation_.bits;
    if (quants.type != quote("I32") || quants.shape.size() != 2 || quants.shape[0] == 0 || quants.shape[1] == 0)
      fail_shape(quants, "'I32' of two axes");
    used_.insert(quants.name);
    GroupedParts parts{.source = quantisation_.source,
                       .quants = by_name_.at(quants.name),
                       .zeros = require(quants, module + ".qzeros"),
                       .scales = require(quants, module + ".scales"),
                       .awq = awq,
                       .symmetric = quantisation_.symmetric,
                       .zero_less_one = quantisation_.zero_less_one,
                       .bits = quantisation_.bits,
                       .rows = quants.shape[1] * (awq ? per_word : 1),
                       .columns = quants.shape[0] * (awq ? 1 : per_word)};
    parts.group_size = quantisation_.group_size == 0 ? parts.columns : quantisation_.group_size;
    parts.groups = divided_up(parts.columns, parts.group_size);
    if (parts.rows % per_word != 0) fail_shape(quants, "a number of rows that " + std::to_string(per_word) + " divides");
    check_words(parts.zeros, parts.groups, parts.rows / per_word);
    const std::array<std::size_t, 2> shape{parts.groups, parts.rows};
    const UnsupportedTensor& scales = parts.scales.tensor;
    if (!parts.scales.float_type || !std::equal(shape.begin(), shape.end(), scales.shape.begin(), scales.shape.end()))
      fail_shape(scales, "F16, BF16 or F32 of " + shape_text(shape));
    if (!awq) take_order(quants, module, parts);
    parts.dtype = group_type(parts);
    StoredTensor made{.name = name, .dtype = parts.dtype, .shape = {parts.rows, parts.columns}, .file = quants.file};
    if (parts.dtype == DType::kF32) made.load_dtype = parts.scales.float_type;
    made.format = (awq ? "AWQ " : "GPTQ ") + std::to_string(parts.bits) + "-bit";
    made.bytes = parts.quants.tensor.bytes + parts.zeros.tensor.bytes + scales.bytes + (parts.order ? parts.order->tensor.bytes : 0);
    made.packed = make_grouped_matrix(std::move(parts));
    made_.push_back(std::move(made));
  }

  void take_order(const UnsupportedTensor& quants, const std::string& module, GroupedParts& parts) {
    const std::string name = module + ".g_idx";
    parts.any_order = quantisation_.any_order;
    const PackedPart* order = quantisation_.any_order ? &require(quants, name) : find(name);
    if (order == nullptr) return;
    const bool fits = order->tensor.type == quote("I32") && order->tensor.shape == std::vector<std::size_t>{parts.columns};
    if (!fits) fail_shape(order->tensor, "'I32' of [" + std::to_string(parts.columns) + "]");
    parts.order = *order;
  }

  WeightSource::Contents contents_;
  const Quantisation& quantisation_;
  std::map<std::string, PackedPart, std::less<>> by_name_;
  std::set<std::string, std::less<>> used_;  // parts: they are no tensors of the model
  std::vector<StoredTensor> made_;
};

}  // namespace

std::unique_ptr<WeightSource> unite_quantised(std::unique_ptr<WeightSource> source, const Quantisation& quantisation) {
  return Uniter(std::move(*source).take(), quantisation).unite();
}

}  // namespace lockstep::engine
