#include "engine/quantise/block_quantisers.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>

#include "engine/quantise/super_blocks.h"

namespace lockstep::engine {
namespace {

using device::DType;

void put_half(std::uint16_t half, std::byte* to) { std::memcpy(to, &half, sizeof half); }

/// The value of largest magnitude, the first of them.
float extreme(std::span<const float> values) {
  float found = 0.0f;
  for (const float value : values) {
    if (std::fabs(value) > std::fabs(found)) found = value;
  }
  return found;
}

int nearest(float value, float scale, int least, int most) {
  return scale == 0.0f ? 0 : std::clamp(static_cast<int>(nearest_integer(value / scale)), least, most);
}

void quantise_q8_0(std::span<const float, 32> values, std::byte* to) {
  const std::uint16_t half = checked_half(std::fabs(extreme(values)) / 127.0f);
  put_half(half, to);
  const float scale = device::half_to_float(half);
  for (std::size_t i = 0; i < 32; ++i) to[2 + i] = static_cast<std::byte>(nearest(values[i], scale, -127, 127));
}

void quantise_q4_0(std::span<const float, 32> values, std::byte* to) {
  const std::uint16_t half = checked_half(extreme(values) / -8.0f);
  put_half(half, to);
  const float scale = device::half_to_float(half);
  for (std::size_t i = 0; i < 16; ++i) {
    const int low = nearest(values[i], scale, -8, 7) + 8;
    const int high = nearest(values[i + 16], scale, -8, 7) + 8;
    to[2 + i] = static_cast<std::byte>(low | high << 4);
  }
}

template <std::size_t kBlock, class QuantiseBlock>
void each_block(DType dtype, std::span<const float> values, std::span<std::byte> to, const QuantiseBlock& quantise_block) {
  const std::size_t bytes = device::info(dtype).block_bytes;
  for (std::size_t block = 0; block * kBlock < values.size(); ++block)
    quantise_block(values.subspan(block * kBlock).template first<kBlock>(), &to[block * bytes]);
}

void round_to_16_bits(DType dtype, std::span<const float> values, std::span<std::byte> to) {
  for (std::size_t i = 0; i < values.size(); ++i)
    put_half(dtype == DType::kF16 ? checked_half(values[i]) : device::float_to_bfloat16(values[i]), &to[2 * i]);
}

}  // namespace

std::uint16_t checked_half(float value) {
  const std::uint16_t half = device::float_to_half(value);
  if ((half & 0x7C00u) == 0x7C00u)
    throw std::runtime_error("a value is beyond the range of 16-bit floats, 65504: " + std::to_string(value));
  return half;
}

bool can_quantise_to(DType dtype) {
  switch (dtype) {
    case DType::kF32:
    case DType::kF16:
    case DType::kBF16:
    case DType::kQ8_0:
    case DType::kQ4_0:
    case DType::kQ4_K:
    case DType::kQ6_K: return true;
    default: return false;
  }
}

void quantise(DType dtype, std::span<const float> values, std::span<std::byte> to) {
  if (values.size() % device::info(dtype).block_size != 0 || to.size() != device::row_bytes(dtype, values.size()))
    throw std::invalid_argument("quantise: room for whole blocks is needed");
  if (!std::all_of(values.begin(), values.end(), [](float value) { return std::isfinite(value); }))
    throw std::runtime_error("a value is not finite");
  if (dtype != DType::kF32 && dtype != DType::kBF16) checked_half(extreme(values));
  switch (dtype) {
    case DType::kF32: std::memcpy(to.data(), values.data(), values.size_bytes()); return;
    case DType::kF16:
    case DType::kBF16: return round_to_16_bits(dtype, values, to);
    case DType::kQ8_0: return each_block<32>(dtype, values, to, quantise_q8_0);
    case DType::kQ4_0: return each_block<32>(dtype, values, to, quantise_q4_0);
    case DType::kQ4_K: return each_block<256>(dtype, values, to, quantise_q4_k);
    case DType::kQ6_K: return each_block<256>(dtype, values, to, quantise_q6_k);
    default: throw std::invalid_argument("there is no quantiser to " + std::string(device::info(dtype).name));
  }
}

}  // namespace lockstep::engine
