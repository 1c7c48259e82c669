#pragma once

#include "device/cpu/kv_cache.h"
#include "tests/device/reference.h"

/// What a KV cache of 8 bits is tested with: hard vectors, and how one of them stands in the cache of the CPU device.
namespace lockstep::device::reference {

/// A vector of the cache: codes and scale.
struct EightBitVector {
  std::vector<std::uint8_t> codes;
  float scale = 0.0f;
};

/// The definition (docs/numerics.md, N7), element by element.
inline EightBitVector in_eight_bits(KvQuantisation quantised, std::span<const float> vector) {
  const float limit = quantised == KvQuantisation::kInt8 ? 127.0f : 448.0f;
  float largest = 0;
  bool finite = true;
  for (const float x : vector) {
    largest = std::max(largest, std::fabs(x));
    finite = finite && std::isfinite(x);
  }
  EightBitVector stored{std::vector<std::uint8_t>(vector.size(), 0), finite ? largest / limit : std::nanf("")};
  if (!finite || largest == 0 || std::isinf(limit / largest)) return stored;
  for (std::size_t i = 0; i < vector.size(); ++i) {
    const float x = vector[i] * (limit / largest);
    stored.codes[i] = static_cast<std::uint8_t>(quantised == KvQuantisation::kInt8 ? static_cast<int>(std::nearbyint(x))
                                                                                   : static_cast<int>(float8_code(x)));
  }
  return stored;
}

/// An element as it is read.
inline float read_element(KvQuantisation quantised, const EightBitVector& vector, std::size_t i) {
  const std::uint8_t code = vector.codes[i];
  return vector.scale * (quantised == KvQuantisation::kInt8 ? static_cast<float>(static_cast<std::int8_t>(code)) : float8_of(code));
}

/// Vectors of every size from 2^-149 to 2^127, ties, zeros of both signs, and some that are not finite.
inline std::vector<std::vector<float>> hard_vectors(std::size_t count) {
  std::vector<std::vector<float>> vectors;
  const auto add = [&](float size, auto element) {
    vectors.emplace_back();
    for (std::size_t i = 0; i < count; ++i) vectors.back().push_back(size * element(i));
  };
  const std::vector<float> random = random_floats(count, 7);
  for (const float size : {1.0f, 3.7f, 0x1p-70f, 0x1p-118f, 0x1p-121f, 0x1p-126f, 0x1p-149f, 0x1p60f, 0x1p127f}) {
    add(size, [&](std::size_t i) { return random[i]; });
    add(size, [&](std::size_t i) { return i == 0 ? 1.0f : random[i] * std::ldexp(1.0f, -static_cast<int>(i % 24)); });
  }
  add(1.0f, [](std::size_t i) { return i % 2 == 0 ? 0.0f : -0.0f; });
  // Halves of a unit: the maximum is that of the type, so that x * inverse is x.
  add(1.0f, [](std::size_t i) { return i == 0 ? 127.0f : static_cast<float>(i % 127) - 63.5f; });
  for (const float shift : {0.0f, 0.25f, 0.5f, 0.75f}) {
    add(1.0f, [shift](std::size_t i) {
      const unsigned code = static_cast<unsigned>(i * 37 % 126);
      return i == 0 ? 448.0f : (i % 2 == 0 ? 1.0f : -1.0f) * (float8_of(code) + shift * (float8_of(code + 1) - float8_of(code)));
    });
  }
  for (const float bad : {std::nanf(""), HUGE_VALF, -HUGE_VALF}) add(1.0f, [&](std::size_t i) { return i + 1 == count ? bad : random[i]; });
  return vectors;
}

/// The key, or value, of a token in a layer of the CPU device's cache.
inline EightBitVector vector_in_cache(const cpu::CacheView& view, std::size_t block, std::size_t head, std::size_t offset, bool is_value) {
  const std::byte* at = view.cache + block * view.block_bytes + head * view.head_bytes + (is_value ? view.value_offset : 0);
  EightBitVector vector;
  for (std::size_t d = 0; d < view.head_dim; ++d) {
    const std::size_t place = is_value ? offset * view.head_dim + d : (offset / 16 * view.head_dim + d) * 16 + offset % 16;
    vector.codes.push_back(static_cast<std::uint8_t>(at[place]));
  }
  std::memcpy(&vector.scale, at + view.scale_offset + offset * sizeof(float), sizeof(float));
  return vector;
}

}  // namespace lockstep::device::reference
