// Source of the format: ggml's docs/gguf.md.
#include "engine/quantise/gguf_writer.h"

#include <cstring>
#include <utility>

#include "engine/weights/gguf_types.h"

namespace lockstep::engine {
namespace {

class Encoder {
 public:
  template <class T>
  void number(T value) {
    char bytes[sizeof value];
    std::memcpy(bytes, &value, sizeof value);
    text_.append(bytes, sizeof bytes);
  }
  void string(std::string_view value) {
    number(std::uint64_t{value.size()});
    text_ += value;
  }
  void raw(std::string_view bytes) { text_ += bytes; }
  void pad_to(std::uint64_t alignment) {
    text_.resize(static_cast<std::size_t>((text_.size() + alignment - 1) / alignment * alignment), '\0');
  }
  std::size_t size() const { return text_.size(); }
  std::string take() { return std::move(text_); }

 private:
  std::string text_;
};

void encode(Encoder& out, const GgufArray& array) {
  out.number(static_cast<std::uint32_t>(array.element));
  out.number(array.count);
  if (array.element == GgufKind::kString) {
    for (const std::string& text : array.strings) out.string(text);
  } else {
    out.raw({reinterpret_cast<const char*>(array.numbers.data()), array.numbers.size()});
  }
}

void encode(Encoder& out, const GgufValue& value) {
  out.number(static_cast<std::uint32_t>(value.kind));
  switch (value.kind) {
    case GgufKind::kUint8: return out.number(static_cast<std::uint8_t>(std::get<std::uint64_t>(value.value)));
    case GgufKind::kUint16: return out.number(static_cast<std::uint16_t>(std::get<std::uint64_t>(value.value)));
    case GgufKind::kUint32: return out.number(static_cast<std::uint32_t>(std::get<std::uint64_t>(value.value)));
    case GgufKind::kUint64: return out.number(std::get<std::uint64_t>(value.value));
    case GgufKind::kInt8: return out.number(static_cast<std::int8_t>(std::get<std::int64_t>(value.value)));
    case GgufKind::kInt16: return out.number(static_cast<std::int16_t>(std::get<std::int64_t>(value.value)));
    case GgufKind::kInt32: return out.number(static_cast<std::int32_t>(std::get<std::int64_t>(value.value)));
    case GgufKind::kInt64: return out.number(std::get<std::int64_t>(value.value));
    case GgufKind::kFloat32: return out.number(static_cast<float>(std::get<double>(value.value)));
    case GgufKind::kFloat64: return out.number(std::get<double>(value.value));
    case GgufKind::kBool: return out.number(std::uint8_t{std::get<bool>(value.value)});
    case GgufKind::kString: return out.string(std::get<std::string>(value.value));
    case GgufKind::kArray: return encode(out, std::get<GgufArray>(value.value));
  }
}

template <class T>
GgufValue array_of(GgufKind kind, std::span<const T> values) {
  GgufArray array{kind, values.size(), {}, {}};
  const auto bytes = std::as_bytes(values);
  array.numbers.assign(bytes.begin(), bytes.end());
  return {GgufKind::kArray, std::move(array)};
}

std::uint64_t alignment_of(const GgufMetadataBuilder& metadata) {
  const auto found = metadata.values().find("general.alignment");
  return found == metadata.values().end() ? 32 : std::get<std::uint64_t>(found->second.value);
}

}  // namespace

void GgufMetadataBuilder::set_texts(const std::string& key, std::vector<std::string> values) {
  const std::uint64_t count = values.size();
  values_[key] = {GgufKind::kArray, GgufArray{GgufKind::kString, count, {}, std::move(values)}};
}

void GgufMetadataBuilder::set_int32s(const std::string& key, std::span<const std::int32_t> values) {
  values_[key] = array_of(GgufKind::kInt32, values);
}

void GgufMetadataBuilder::set_float32s(const std::string& key, std::span<const float> values) {
  values_[key] = array_of(GgufKind::kFloat32, values);
}

void GgufMetadataBuilder::set_flags(const std::string& key, const std::vector<bool>& values) {
  const std::vector<std::uint8_t> bytes(values.begin(), values.end());
  values_[key] = array_of(GgufKind::kBool, std::span(bytes));
}

void GgufMetadataBuilder::erase_prefix(std::string_view prefix) {
  std::erase_if(values_, [&](const auto& entry) { return entry.first.starts_with(prefix); });
}

GgufLayout layout_gguf(const GgufMetadataBuilder& metadata, std::span<const GgufTensorEntry> tensors) {
  const std::uint64_t alignment = alignment_of(metadata);
  const auto padded = [&](std::uint64_t bytes) { return (bytes + alignment - 1) / alignment * alignment; };
  Encoder out;
  out.raw("GGUF");
  out.number(std::uint32_t{3});
  out.number(std::uint64_t{tensors.size()});
  out.number(std::uint64_t{metadata.values().size()});
  for (const auto& [key, value] : metadata.values()) {
    out.string(key);
    encode(out, value);
  }
  GgufLayout layout;
  std::uint64_t offset = 0;
  for (const GgufTensorEntry& tensor : tensors) {
    out.string(tensor.name);
    out.number(static_cast<std::uint32_t>(tensor.shape.size()));
    std::uint64_t rows = 1;
    for (auto axis = tensor.shape.rbegin(); axis != tensor.shape.rend(); ++axis) {  // the fastest one first
      out.number(std::uint64_t{*axis});
      if (axis != tensor.shape.rbegin()) rows *= *axis;
    }
    out.number(gguf_type_number(tensor.dtype));
    out.number(offset);
    layout.offsets.push_back(offset);
    offset += padded(rows * device::row_bytes(tensor.dtype, tensor.shape.empty() ? 1 : tensor.shape.back()));
  }
  out.pad_to(alignment);
  for (std::uint64_t& place : layout.offsets) place += out.size();
  layout.file_size = out.size() + offset;
  layout.header = out.take();
  return layout;
}

}  // namespace lockstep::engine
