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
  const std::size_t unit = info(dtype).block_size, units = columns / unit;
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

  std::size_t row_size() const { return row_bytes(spec.dtype, spec.columns); }
  const std::byte* row(std::size_t r) const { return bytes.data() + r * row_size(); }
  ReadRows reader() const {
    return [this](std::size_t first, std::size_t count, std::span<std::byte> to) {
      if (to.size() != count * row_size() || first + count > spec.rows) throw std::logic_error("read out of range");
      std::memcpy(to.data(), row(first), to.size());
    };
  }
};

inline StoredWeight make_weight(DType dtype, std::size_t rows, std::size_t columns, std::vector<Leaf> leaves, std::uint32_t seed) {
  StoredWeight weight{{"test." + std::string(info(dtype).name), dtype, rows, columns, std::move(leaves)}, {}};
  weight.bytes.resize(rows * weight.row_size());
  std::mt19937 generator(seed);
  std::uniform_real_distribution<float> uniform(-1.0f, 1.0f);
  const auto put16 = [&](std::size_t at, std::uint16_t value) { std::memcpy(&weight.bytes[at], &value, 2); };
  const DTypeInfo& type = info(dtype);
  for (std::size_t at = 0; at < weight.bytes.size(); at += type.block_bytes) {
    if (dtype == DType::kF32) {
      const float value = uniform(generator);
      std::memcpy(&weight.bytes[at], &value, 4);
    } else if (!type.block_quantised()) {
      put16(at, dtype == DType::kF16 ? float_to_half(uniform(generator)) : float_to_bfloat16(uniform(generator)));
    } else {
      for (std::size_t i = 0; i < type.block_bytes; ++i) weight.bytes[at + i] = static_cast<std::byte>(generator());
      if (generator() % 4 == 0) {  // extremes: -128 and 127, or 0 and 15
        for (std::size_t i = 4; i < type.block_bytes; ++i) weight.bytes[at + i] = generator() % 2 ? std::byte{0x80} : std::byte{0x7F};
      }
      put16(at, float_to_half(uniform(generator) * 0.1f));
      if (dtype == DType::kQ4_1) put16(at + 2, float_to_half(uniform(generator)));
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

/// Columns [from, to) of one output, by the definition.
inline float leaf_sum(const StoredWeight& w, std::size_t r, const float* x, const Int8Row& quantised, std::size_t from, std::size_t to) {
  float sum = 0.0f;
  if (!info(w.spec.dtype).block_quantised()) {
    std::vector<float> row(w.spec.columns);
    dequantise(w.spec.dtype, std::span(w.row(r), w.row_size()), row);
    for (std::size_t k = from; k < to; ++k) sum = std::fma(x[k], row[k], sum);
    return sum;
  }
  const std::size_t block_bytes = info(w.spec.dtype).block_bytes;
  for (std::size_t block = from / 32; block < to / 32; ++block) {
    const std::byte* stored = w.row(r) + block * block_bytes;
    std::uint16_t scale, minimum;
    std::memcpy(&scale, stored, 2);
    std::memcpy(&minimum, stored + 2, 2);
    int dot = 0;
    for (std::size_t i = 0; i < 32; ++i) {
      int q;
      if (w.spec.dtype == DType::kQ8_0) {
        q = static_cast<std::int8_t>(stored[2 + i]);
      } else {
        const int byte = static_cast<int>(stored[(w.spec.dtype == DType::kQ4_1 ? 4 : 2) + i % 16]);
        q = (i < 16 ? byte & 15 : byte >> 4) - (w.spec.dtype == DType::kQ4_0 ? 8 : 0);
      }
      dot += q * quantised.quants[block * 32 + i];
    }
    const float factor = half_to_float(scale) * quantised.scales[block];
    sum = std::fma(static_cast<float>(dot), factor, sum);
    if (w.spec.dtype == DType::kQ4_1) sum = std::fma(half_to_float(minimum), quantised.scaled_sums[block], sum);
  }
  return sum;
}

/// [roots, tokens, rows].
inline std::vector<float> linear(const StoredWeight& w, const std::vector<float>& x, std::size_t tokens, const float* bias) {
  const std::size_t roots = w.spec.num_roots();
  std::vector<float> out(roots * tokens * w.spec.rows);
  for (std::size_t t = 0; t < tokens; ++t) {
    const float* row = x.data() + t * w.spec.columns;
    const Int8Row quantised = info(w.spec.dtype).block_quantised() ? quantise(row, w.spec.columns) : Int8Row{};
    for (std::size_t r = 0; r < w.spec.rows; ++r) {
      std::vector<float> open;
      std::size_t begin = 0, root = 0;
      for (const Leaf& leaf : w.spec.leaves) {
        open.push_back(leaf_sum(w, r, row, quantised, begin, leaf.end));
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
