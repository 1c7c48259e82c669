#include <bit>
#include <cstring>

#include "device/dtype.h"

// The plain definitions of the stored types. Every product of a scale and an integer below is exact in fp32 (at most 11 + 7 + 5 bits), so
// one rounding at most is left: that of the minimum.

namespace lockstep::device {
namespace {

template <class T>
T load(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

float half_at(const std::byte* from) { return half_to_float(load<std::uint16_t>(from)); }
int byte_at(const std::byte* from) { return std::to_integer<int>(*from); }
int nibble(const std::byte* from, int upper) { return upper ? byte_at(from) >> 4 : byte_at(from) & 15; }

void q8_0(const std::byte* block, float* values) {
  const float scale = half_at(block);
  for (int i = 0; i < 32; ++i) values[i] = scale * static_cast<float>(load<std::int8_t>(block + 2 + i));
}

/// Q4_0, Q4_1, Q5_0, Q5_1.
template <bool kMinimum, bool kFifthBit>
void nibbles_of_32(const std::byte* block, float* values) {
  const float scale = half_at(block), minimum = kMinimum ? half_at(block + 2) : 0.0f;
  const std::byte* at = block + (kMinimum ? 4 : 2);
  const std::uint32_t fifth = kFifthBit ? load<std::uint32_t>(at) : 0;
  at += kFifthBit ? 4 : 0;
  for (int i = 0; i < 32; ++i) {
    const int q = nibble(at + i % 16, i / 16) | static_cast<int>((fifth >> i & 1u) << 4);
    values[i] = kMinimum ? scale * static_cast<float>(q) + minimum : scale * static_cast<float>(q - (kFifthBit ? 16 : 8));
  }
}

void iq4_nl(const std::byte* block, float* values) {
  const float scale = half_at(block);
  for (int i = 0; i < 32; ++i) values[i] = scale * static_cast<float>(kIq4Values[nibble(block + 2 + i % 16, i / 16)]);
}

void mxfp4(const std::byte* block, float* values) {
  const std::uint32_t exponent = load<std::uint8_t>(block);
  const float scale = std::bit_cast<float>(exponent < 2 ? 0x00200000u << exponent : (exponent - 1) << 23);  // 2^(e - 128)
  for (int i = 0; i < 32; ++i) values[i] = scale * static_cast<float>(kMxfp4Values[nibble(block + 1 + i % 16, i / 16)]);
}

void q2_k(const std::byte* block, const SubScales& sub, float* values) {
  const float scale = half_at(block + 80), minimum = half_at(block + 82);
  for (int i = 0; i < 256; ++i) {
    const int q = byte_at(block + 16 + i / 128 * 32 + i % 32) >> (2 * (i / 32 % 4)) & 3;
    values[i] = scale * static_cast<float>(sub.scales[i / 16]) * static_cast<float>(q) - minimum * static_cast<float>(sub.minima[i / 16]);
  }
}

void q3_k(const std::byte* block, const SubScales& sub, float* values) {
  const float scale = half_at(block + 108);
  for (int i = 0; i < 256; ++i) {
    const int low = byte_at(block + 32 + i / 128 * 32 + i % 32) >> (2 * (i / 32 % 4)) & 3;
    const int high = byte_at(block + i % 32) >> (i / 32) & 1;
    values[i] = scale * static_cast<float>(sub.scales[i / 16]) * static_cast<float>(low + 4 * high - 4);
  }
}

template <bool kFifthBit>
void q45_k(const std::byte* block, const SubScales& sub, float* values) {
  const float scale = half_at(block), minimum = half_at(block + 2);
  const std::byte* nibbles = block + 16 + (kFifthBit ? 32 : 0);
  for (int i = 0; i < 256; ++i) {
    int q = nibble(nibbles + i / 64 * 32 + i % 32, i / 32 % 2);
    if (kFifthBit) q |= (byte_at(block + 16 + i % 32) >> (i / 32) & 1) << 4;
    values[i] = scale * static_cast<float>(sub.scales[i / 32]) * static_cast<float>(q) - minimum * static_cast<float>(sub.minima[i / 32]);
  }
}

void q6_k(const std::byte* block, const SubScales& sub, float* values) {
  const float scale = half_at(block + 208);
  for (int i = 0; i < 256; ++i) {
    const int half = i / 128, part = i / 32 % 4;
    const int low = nibble(block + half * 64 + part % 2 * 32 + i % 32, part / 2);
    const int high = byte_at(block + 128 + half * 32 + i % 32) >> (2 * part) & 3;
    values[i] = scale * static_cast<float>(sub.scales[i / 16]) * static_cast<float>((low | high << 4) - 32);
  }
}

void iq4_xs(const std::byte* block, const SubScales& sub, float* values) {
  const float scale = half_at(block);
  for (int i = 0; i < 256; ++i) {
    const int value = kIq4Values[nibble(block + 8 + i / 32 * 16 + i % 16, i / 16 % 2)];
    values[i] = scale * static_cast<float>(sub.scales[i / 32]) * static_cast<float>(value);
  }
}

void dequantise_block(DType dtype, const std::byte* block, float* values) {
  switch (dtype) {
    case DType::kF32: std::memcpy(values, block, 4); return;
    case DType::kF16: *values = half_at(block); return;
    case DType::kBF16: *values = bfloat16_to_float(load<std::uint16_t>(block)); return;
    case DType::kQ8_0: return q8_0(block, values);
    case DType::kQ4_0: return nibbles_of_32<false, false>(block, values);
    case DType::kQ4_1: return nibbles_of_32<true, false>(block, values);
    case DType::kQ5_0: return nibbles_of_32<false, true>(block, values);
    case DType::kQ5_1: return nibbles_of_32<true, true>(block, values);
    case DType::kQ2_K: return q2_k(block, sub_scales(dtype, block), values);
    case DType::kQ3_K: return q3_k(block, sub_scales(dtype, block), values);
    case DType::kQ4_K: return q45_k<false>(block, sub_scales(dtype, block), values);
    case DType::kQ5_K: return q45_k<true>(block, sub_scales(dtype, block), values);
    case DType::kQ6_K: return q6_k(block, sub_scales(dtype, block), values);
    case DType::kIQ4_NL: return iq4_nl(block, values);
    case DType::kIQ4_XS: return iq4_xs(block, sub_scales(dtype, block), values);
    case DType::kMXFP4: return mxfp4(block, values);
  }
}

}  // namespace

SubScales sub_scales(DType dtype, const std::byte* block) {
  SubScales sub;
  const auto put = [&](int i, int scale, int minimum) {
    sub.scales[i] = static_cast<std::int8_t>(scale);
    sub.minima[i] = static_cast<std::int8_t>(minimum);
  };
  if (dtype == DType::kQ2_K) {
    for (int i = 0; i < 16; ++i) put(i, nibble(block + i, 0), nibble(block + i, 1));
  } else if (dtype == DType::kQ3_K) {
    for (int i = 0; i < 16; ++i)
      put(i, (nibble(block + 96 + i % 8, i / 8) | (byte_at(block + 104 + i % 4) >> (2 * (i / 4)) & 3) << 4) - 32, 0);
  } else if (dtype == DType::kQ4_K || dtype == DType::kQ5_K) {
    const std::byte* packed = block + 4;  // 4 bytes each: scales and minima of parts 0 to 3 with two bits of those of 4 to 7; their nibbles
    for (int i = 0; i < 4; ++i) {
      put(i, byte_at(packed + i) & 63, byte_at(packed + 4 + i) & 63);
      put(i + 4, nibble(packed + 8 + i, 0) | byte_at(packed + i) >> 6 << 4, nibble(packed + 8 + i, 1) | byte_at(packed + 4 + i) >> 6 << 4);
    }
  } else if (dtype == DType::kQ6_K) {
    for (int i = 0; i < 16; ++i) put(i, load<std::int8_t>(block + 192 + i), 0);
  } else if (dtype == DType::kIQ4_XS) {
    for (int i = 0; i < 8; ++i) put(i, (nibble(block + 4 + i / 2, i % 2) | (load<std::uint16_t>(block + 2) >> (2 * i) & 3) << 4) - 32, 0);
  }
  return sub;
}

void dequantise(DType dtype, std::span<const std::byte> stored, std::span<float> values) {
  const DTypeInfo& type = info(dtype);
  if (dtype == DType::kF32) {
    if (!values.empty()) std::memcpy(values.data(), stored.data(), values.size_bytes());
    return;
  }
  for (std::size_t block = 0; block * type.block_size < values.size(); ++block)
    dequantise_block(dtype, &stored[block * type.block_bytes], &values[block * type.block_size]);
}

}  // namespace lockstep::device
