#pragma once

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "device/cpu/cpu_device.h"
#include "device/device.h"

/// Plain scalar definitions of what the device computes, and helpers that put numbers into it and get them back.
namespace lockstep::device::reference {

inline std::uint32_t bits(float x) {
  std::uint32_t b;
  std::memcpy(&b, &x, 4);
  return b;
}

/// Equal bits; any NaN equals any NaN.
inline bool same(float a, float b) { return bits(a) == bits(b) || (std::isnan(a) && std::isnan(b)); }

inline std::size_t count_different(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size()) return SIZE_MAX;
  std::size_t count = 0;
  for (std::size_t i = 0; i < a.size(); ++i) count += !same(a[i], b[i]);
  return count;
}

inline std::vector<float> random_floats(std::size_t count, std::uint32_t seed, float size = 1.0f) {
  std::mt19937 generator(seed);
  std::uniform_real_distribution<float> uniform(-size, size);
  std::vector<float> values(count);
  for (float& value : values) value = uniform(generator);
  return values;
}

/// The value of an e4m3 code.
inline float float8_of(unsigned code) {
  const int exponent = static_cast<int>(code / 8 % 16), mantissa = static_cast<int>(code % 8);
  const float magnitude =
      exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -9) : std::ldexp(static_cast<float>(8 + mantissa), exponent - 10);
  return std::copysign(magnitude, code >= 128 ? -1.0f : 1.0f);
}

/// The e4m3 code that is nearest to x; of two, the even one.
inline unsigned float8_code(float x) {
  unsigned best = 0;
  for (unsigned code = 1; code < 127; ++code) {
    const float now = std::fabs(float8_of(code) - std::fabs(x)), before = std::fabs(float8_of(best) - std::fabs(x));
    if (now < before || (now == before && code % 2 == 0)) best = code;
  }
  return best + (std::signbit(x) ? 128 : 0);
}

/// A vector as it comes out of a KV cache of 8 bits, straight from the definition (docs/numerics.md, N7).
inline void pass_through_eight_bits(KvQuantisation quantised, std::span<float> vector) {
  float largest = 0;
  for (const float x : vector) largest = std::max(largest, std::fabs(x));
  if (largest == 0) return;
  for (float& x : vector) {
    if (quantised == KvQuantisation::kInt8) {
      x = std::nearbyint(x * (127.0f / largest)) * (largest / 127.0f);
    } else {
      x = float8_of(float8_code(x * (448.0f / largest))) * (largest / 448.0f);
    }
  }
}

/// One leaf, or `count` leaves over units of the type's block, in the tree of N2 (a range splits after the largest power of two below its
/// size), as one root or as the roots of the shares [0, cut) and [cut, count).
inline void push_tree(std::vector<Leaf>& leaves, const std::vector<std::uint32_t>& ends, std::size_t begin, std::size_t end) {
  if (end - begin == 1) {
    leaves.push_back({ends[begin], 0, false});
    return;
  }
  std::size_t left = 1;
  while (left * 2 < end - begin) left *= 2;
  push_tree(leaves, ends, begin, begin + left);
  push_tree(leaves, ends, begin + left, end);
  ++leaves.back().merges;
}

inline std::vector<Leaf> make_leaves(DType dtype, std::size_t columns, std::size_t count, bool one_root_each = false) {
  const std::size_t unit = info(dtype).cut_size(), units = columns / unit;
  count = std::min(count, units);
  std::vector<std::uint32_t> ends;
  for (std::size_t i = 1; i <= count; ++i) ends.push_back(static_cast<std::uint32_t>(i * units / count * unit));
  std::vector<Leaf> leaves;
  if (one_root_each) {
    for (const std::uint32_t end : ends) leaves.push_back({end, 0, true});
    return leaves;
  }
  push_tree(leaves, ends, 0, count);
  leaves.back().ends_root = true;
  return leaves;
}

struct StoredWeight {
  WeightSpec spec;
  std::vector<std::byte> bytes;

  std::size_t row_size() const { return spec.stored_row_bytes(); }
  const std::byte* row(std::size_t r) const { return bytes.data() + r * row_size(); }
  ReadRows reader() const {
    return [this](std::size_t first, std::size_t count, std::span<std::byte> to) {
      if (to.size() != count * row_size() || first + count > spec.rows) throw std::logic_error("read out of range");
      std::memcpy(to.data(), row(first), to.size());
    };
  }
};

/// Where the f16 scale and minimum of a block stand; -1: it has none.
struct ScalePlaces {
  int scale, minimum;
};
inline ScalePlaces scale_places(DType dtype) {
  switch (dtype) {
    case DType::kQ4_1:
    case DType::kQ5_1:
    case DType::kQ4_K:
    case DType::kQ5_K: return {0, 2};
    case DType::kQ2_K: return {80, 82};
    case DType::kQ3_K: return {108, -1};
    case DType::kQ6_K: return {208, -1};
    case DType::kMXFP4: return {-1, -1};
    default: return {0, -1};
  }
}

/// @param first_column where the shard begins in its first super-block
inline StoredWeight make_weight(DType dtype, std::size_t rows, std::size_t columns, std::vector<Leaf> leaves, std::uint32_t seed,
                                std::size_t first_column = 0) {
  StoredWeight weight{{"test." + std::string(info(dtype).name), dtype, rows, columns, std::move(leaves), first_column}, {}};
  weight.bytes.resize(rows * weight.row_size());
  std::mt19937 generator(seed);
  std::uniform_real_distribution<float> uniform(-1.0f, 1.0f);
  const auto put16 = [&](std::size_t at, std::uint16_t value) { std::memcpy(&weight.bytes[at], &value, 2); };
  const DTypeInfo& type = info(dtype);
  const ScalePlaces places = scale_places(dtype);
  for (std::size_t at = 0; at < weight.bytes.size(); at += type.block_bytes) {
    if (dtype == DType::kF32) {
      const float value = uniform(generator);
      std::memcpy(&weight.bytes[at], &value, 4);
    } else if (!type.block_quantised()) {
      put16(at, dtype == DType::kF16 ? float_to_half(uniform(generator)) : float_to_bfloat16(uniform(generator)));
    } else {
      for (std::size_t i = 0; i < type.block_bytes; ++i) weight.bytes[at + i] = static_cast<std::byte>(generator());
      if (generator() % 4 == 0) {  // extremes: -128 and 127, or all bits and none
        const std::byte low = dtype == DType::kQ8_0 ? std::byte{0x7F} : std::byte{0};
        const std::byte high = dtype == DType::kQ8_0 ? std::byte{0x80} : std::byte{0xFF};
        const bool mixed = generator() % 2 == 0;
        for (std::size_t i = 0; i < type.block_bytes; ++i) weight.bytes[at + i] = !mixed || generator() % 2 ? high : low;
      }
      if (dtype == DType::kMXFP4) weight.bytes[at] = static_cast<std::byte>(120 + generator() % 10);
      if (places.scale >= 0) put16(at + static_cast<std::size_t>(places.scale), float_to_half(uniform(generator) * 0.1f));
      if (places.minimum >= 0) put16(at + static_cast<std::size_t>(places.minimum), float_to_half(uniform(generator)));
    }
  }
  return weight;
}

struct Int8Row {
  std::vector<int> quants;
  std::vector<float> scales, scaled_sums;
  std::vector<int> sums;
};

inline Int8Row quantise(const float* x, std::size_t columns) {
  Int8Row row;
  for (std::size_t block = 0; block < columns / 32; ++block) {
    float amax = 0;
    bool finite = true;
    for (std::size_t i = 0; i < 32; ++i) {
      finite = finite && std::isfinite(x[block * 32 + i]);
      amax = std::max(amax, std::fabs(x[block * 32 + i]));
    }
    float inverse = amax > 0 ? 127.0f / amax : 0.0f;
    if (!std::isfinite(inverse)) inverse = 0.0f;
    int sum = 0;
    for (std::size_t i = 0; i < 32; ++i) {
      row.quants.push_back(finite ? static_cast<int>(std::nearbyint(x[block * 32 + i] * inverse)) : 0);
      sum += row.quants.back();
    }
    row.sums.push_back(sum);
    row.scales.push_back(finite ? amax / 127.0f : std::nanf(""));
    row.scaled_sums.push_back(row.scales.back() * static_cast<float>(sum));
  }
  return row;
}

/// One row of a weight with its numbers apart: values where it is of a float type, else integers, and for each 32 columns factors of the
/// whole and of its halves.
struct WeightRow {
  struct Block {
    float scale = 0, minimum = 0;
    int halves[2] = {1, 1}, minimum_halves[2] = {1, 1};
  };
  std::vector<float> values;
  std::vector<Block> blocks;
  std::vector<int> quants;
};

inline bool has_halves(DType dtype) { return dtype == DType::kQ2_K || dtype == DType::kQ3_K || dtype == DType::kQ6_K; }
inline bool has_minimum(DType dtype) { return scale_places(dtype).minimum >= 0; }

/// The same block with all scales 1 and no minimum: it dequantises to the integers.
inline std::vector<std::byte> unscaled(DType dtype, const std::byte* stored) {
  std::vector<std::byte> block(stored, stored + info(dtype).block_bytes);
  const auto fill = [&](std::size_t at, std::size_t count, int byte) {
    std::fill_n(block.begin() + static_cast<std::ptrdiff_t>(at), count, std::byte(byte));
  };
  const ScalePlaces places = scale_places(dtype);
  if (places.minimum >= 0) fill(static_cast<std::size_t>(places.minimum), 2, 0);
  if (places.scale >= 0) {
    fill(static_cast<std::size_t>(places.scale), 1, 0x00);
    fill(static_cast<std::size_t>(places.scale) + 1, 1, 0x3C);
  }
  switch (dtype) {
    case DType::kMXFP4: fill(0, 1, 128); break;
    case DType::kQ2_K: fill(0, 16, 1); break;
    case DType::kQ3_K: fill(96, 8, 0x11), fill(104, 4, 0xAA); break;
    case DType::kQ4_K:
    case DType::kQ5_K: fill(4, 4, 1), fill(8, 4, 0), fill(12, 4, 1); break;
    case DType::kQ6_K: fill(192, 16, 1); break;
    case DType::kIQ4_XS: fill(2, 2, 0xAA), fill(4, 4, 0x11); break;
    default: break;
  }
  return block;
}

inline WeightRow weight_row(const StoredWeight& w, std::size_t r) {
  WeightRow row;
  const DType dtype = w.spec.dtype;
  if (!info(dtype).block_quantised()) {
    row.values.resize(w.spec.columns);
    dequantise(dtype, std::span(w.row(r), w.row_size()), row.values);
    return row;
  }
  const std::size_t size = info(dtype).block_size;
  const ScalePlaces places = scale_places(dtype);
  std::vector<float> integers(size), values(size);
  for (std::size_t column = w.spec.first_column; column < w.spec.first_column + w.spec.columns; column += 32) {
    const std::byte* stored = w.row(r) + column / size * info(dtype).block_bytes;
    const std::size_t part = column % size / 32;
    dequantise(dtype, unscaled(dtype, stored), integers);
    for (std::size_t i = 0; i < 32; ++i) row.quants.push_back(static_cast<int>(integers[part * 32 + i]));
    const auto half_at = [&](int place) {
      std::uint16_t half;
      std::memcpy(&half, stored + place, 2);
      return half_to_float(half);
    };
    WeightRow::Block block;
    block.scale = places.scale >= 0 ? half_at(places.scale) : std::ldexp(1.0f, std::to_integer<int>(*stored) - 128);
    block.minimum = places.minimum >= 0 ? half_at(places.minimum) : 0.0f;
    if (size == 256) {
      const SubScales sub = sub_scales(dtype, stored);
      for (std::size_t half = 0; half < 2; ++half) {
        const std::size_t i = has_halves(dtype) ? 2 * part + half : part;
        block.halves[half] = sub.scales[i];
        block.minimum_halves[half] = -sub.minima[i];
      }
    }
    row.blocks.push_back(block);
  }
  return row;
}

/// Columns [from, to) of one output, by the definition.
inline float leaf_sum(DType dtype, const WeightRow& w, const float* x, const Int8Row& quantised, std::size_t from, std::size_t to) {
  float sum = 0.0f;
  if (!info(dtype).block_quantised()) {
    for (std::size_t k = from; k < to; ++k) sum = std::fma(x[k], w.values[k], sum);
    return sum;
  }
  for (std::size_t block = from / 32; block < to / 32; ++block) {
    const WeightRow::Block& b = w.blocks[block];
    const float scale = quantised.scales[block];
    int dots[2] = {0, 0}, sums[2] = {0, 0};
    for (std::size_t i = 0; i < 32; ++i) {
      dots[i / 16] += w.quants[block * 32 + i] * quantised.quants[block * 32 + i];
      sums[i / 16] += quantised.quants[block * 32 + i];
    }
    if (has_halves(dtype)) {
      sum = std::fma(static_cast<float>(b.halves[0] * dots[0] + b.halves[1] * dots[1]), b.scale * scale, sum);
      if (has_minimum(dtype))
        sum = std::fma(static_cast<float>(b.minimum_halves[0] * sums[0] + b.minimum_halves[1] * sums[1]), b.minimum * scale, sum);
      continue;
    }
    sum = std::fma(static_cast<float>(dots[0] + dots[1]), b.scale * static_cast<float>(b.halves[0]) * scale, sum);
    if (has_minimum(dtype)) sum = std::fma(b.minimum * static_cast<float>(b.minimum_halves[0]), quantised.scaled_sums[block], sum);
  }
  return sum;
}

/// As with float activations: the weights expanded.
inline WeightRow expanded_row(const StoredWeight& w, std::size_t r) {
  const std::size_t size = info(w.spec.dtype).block_size;
  std::vector<float> whole(w.row_size() / info(w.spec.dtype).block_bytes * size);
  dequantise(w.spec.dtype, std::span(w.row(r), w.row_size()), whole);
  const auto first = whole.begin() + static_cast<std::ptrdiff_t>(w.spec.first_column % size);
  return {.values = std::vector<float>(first, first + static_cast<std::ptrdiff_t>(w.spec.columns)), .blocks = {}, .quants = {}};
}

/// [roots, tokens, rows]. @param activation kFloat32 expands the weights
inline std::vector<float> linear(const StoredWeight& w, const std::vector<float>& x, std::size_t tokens, const float* bias,
                                 Activation activation = Activation::kInt8Blocks) {
  const bool expands = activation == Activation::kFloat32 && info(w.spec.dtype).block_quantised();
  const DType dtype = expands ? DType::kF32 : w.spec.dtype;
  std::vector<float> out(w.spec.num_roots() * tokens * w.spec.rows);
  std::vector<Int8Row> quantised(tokens);
  for (std::size_t t = 0; t < tokens && info(dtype).block_quantised(); ++t) quantised[t] = quantise(&x[t * w.spec.columns], w.spec.columns);
  for (std::size_t r = 0; r < w.spec.rows; ++r) {
    const WeightRow row = expands ? expanded_row(w, r) : weight_row(w, r);
    for (std::size_t t = 0; t < tokens; ++t) {
      std::vector<float> open;
      std::size_t begin = 0, root = 0;
      for (const Leaf& leaf : w.spec.leaves) {
        open.push_back(leaf_sum(dtype, row, &x[t * w.spec.columns], quantised[t], begin, leaf.end));
        begin = leaf.end;
        for (std::uint32_t i = 0; i < leaf.merges; ++i) {
          const float above = open.back();
          open.pop_back();
          open.back() = open.back() + above;
        }
        if (!leaf.ends_root) continue;
        out[(root++ * tokens + t) * w.spec.rows + r] = bias ? open.back() + bias[r] : open.back();
        open.clear();
      }
    }
  }
  return out;
}

/// A matrix with memory of its own.
struct OwnedMatrix {
  std::unique_ptr<Buffer> buffer;
  Matrix matrix;
};

inline OwnedMatrix make_matrix(Device& device, Activation type, std::size_t rows, std::size_t columns) {
  OwnedMatrix owned;
  owned.buffer = device.allocate(device.matrix_bytes(type, rows, columns));
  owned.matrix = {owned.buffer->data(), columns, rows, type};
  return owned;
}

inline OwnedMatrix upload(Device& device, const std::vector<float>& values, std::size_t columns, Activation type = Activation::kFloat32) {
  const std::size_t rows = values.size() / columns;
  OwnedMatrix floats = make_matrix(device, Activation::kFloat32, rows, columns);
  device.write_floats(values, floats.matrix.data);
  if (type == Activation::kFloat32) return floats;
  OwnedMatrix blocks = make_matrix(device, type, rows, columns);
  device.convert(floats.matrix, rows, blocks.matrix);
  return blocks;
}

inline std::vector<float> download(Device& device, const Matrix& matrix, std::size_t rows) {
  std::vector<float> values(rows * matrix.columns);
  device.synchronize();
  device.read_floats(matrix, 0, rows, values);
  return values;
}

/// Every instruction set of this machine with 1, 2 and 3 threads.
inline std::vector<CpuOptions> all_options() {
  std::vector<CpuOptions> all;
  for (const Isa isa : supported_isas()) {
    for (const std::size_t threads : {1, 2, 3}) all.push_back({threads, isa});
  }
  return all;
}

}  // namespace lockstep::device::reference
