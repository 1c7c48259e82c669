#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "device/dtype.h"
#include "engine/weights/gguf.h"

namespace lockstep::engine {

/// The metadata of a GGUF file in the making: keys ascending, so that the same values are the same bytes.
class GgufMetadataBuilder {
 public:
  GgufMetadataBuilder() = default;
  explicit GgufMetadataBuilder(std::map<std::string, GgufValue, std::less<>> values) : values_(std::move(values)) {}

  void set_uint32(const std::string& key, std::uint64_t value) { values_[key] = {GgufKind::kUint32, value}; }
  void set_float32(const std::string& key, float value) { values_[key] = {GgufKind::kFloat32, double{value}}; }
  void set_flag(const std::string& key, bool value) { values_[key] = {GgufKind::kBool, value}; }
  void set_text(const std::string& key, std::string value) { values_[key] = {GgufKind::kString, std::move(value)}; }
  void set_texts(const std::string& key, std::vector<std::string> values);
  void set_int32s(const std::string& key, std::span<const std::int32_t> values);
  void set_float32s(const std::string& key, std::span<const float> values);
  void set_flags(const std::string& key, const std::vector<bool>& values);
  void erase_prefix(std::string_view prefix);  // every key that begins with it

  const std::map<std::string, GgufValue, std::less<>>& values() const { return values_; }

 private:
  std::map<std::string, GgufValue, std::less<>> values_;
};

/// A tensor of a file that is to be written.
struct GgufTensorEntry {
  std::string name;
  device::DType dtype = device::DType::kF32;
  std::vector<std::size_t> shape;  // outermost first
};

/// Everything in front of the tensors' bytes, and where those go.
struct GgufLayout {
  std::string header;                  // padded
  std::vector<std::uint64_t> offsets;  // in the file, one a tensor
  std::uint64_t file_size = 0;         // the last tensor padded, too
};

/// GGUF version 3, little-endian; tensors in the given order, aligned to `general.alignment` (else 32).
GgufLayout layout_gguf(const GgufMetadataBuilder& metadata, std::span<const GgufTensorEntry> tensors);

}  // namespace lockstep::engine
