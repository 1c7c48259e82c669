#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "tests/support/temporary_folder.h"

namespace lockstep::test {

/// A safetensors file in the making, of tensors of any type.
class SafetensorsBuilder {
 public:
  SafetensorsBuilder& add(const std::string& name, std::string_view type, const std::vector<std::size_t>& shape, std::string_view bytes);
  template <class T>
  SafetensorsBuilder& add(const std::string& name, std::string_view type, const std::vector<std::size_t>& shape,
                          const std::vector<T>& values) {
    return add(name, type, shape, std::string_view(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)));
  }
  std::string str() const;

 private:
  std::string header_;
  std::string data_;
};

/// A matrix in groups of columns, as its quantiser had it before packing: w[row][column] = (quant - zero) * scale.
struct GroupedMatrix {
  std::size_t rows = 0;
  std::size_t columns = 0;
  unsigned bits = 4;
  std::vector<std::size_t> group;     // of each column
  std::vector<int> quants;            // [rows][columns]
  std::vector<int> zeros;             // [groups][rows]
  std::vector<std::uint16_t> scales;  // [groups][rows], F16
  std::size_t groups() const { return zeros.size() / rows; }
  /// What it stands for: [rows][columns].
  std::vector<float> values() const;
};

/// Random numbers; the same everywhere. `any_order`: columns belong to groups at random; else group by group. Where `symmetric`, all zero
/// points are 2^(bits - 1).
GroupedMatrix random_grouped(std::size_t rows, std::size_t columns, unsigned bits, std::size_t group_size, bool symmetric, bool any_order,
                             std::uint32_t seed);

/// Adds MODULE.qweight, .qzeros, .scales and .g_idx as AutoGPTQ packs them; zero points less one unless `version_2`.
void add_gptq(SafetensorsBuilder& file, const std::string& module, const GroupedMatrix& matrix, bool version_2 = false);
/// Adds NAME_blocks and NAME_scales, random MXFP4 numbers as the checkpoints of gpt-oss have them, and gives what they stand for: [experts,
/// rows, columns]. The numbers are those that fp32 has; the largest is 0.75.
std::vector<float> add_mxfp4(SafetensorsBuilder& file, const std::string& name, std::size_t experts, std::size_t rows, std::size_t columns,
                             std::uint32_t seed);
/// Adds MODULE.qweight, .qzeros and .scales as AutoAWQ's "gemm" version packs them.
void add_awq(SafetensorsBuilder& file, const std::string& module, const GroupedMatrix& matrix);

/// One model in two folders: as its quantiser packed it, and its numbers as F32.
class TwoFolders {
 public:
  const std::filesystem::path& packed() const { return packed_.path(); }
  const std::filesystem::path& plain() const { return plain_.path(); }

 protected:
  /// A tensor that is F32 in both: numbers from -0.3 to 0.3 around `base`; the same everywhere.
  void add_floats(const std::string& name, const std::vector<std::size_t>& shape, float base = 0.0f);
  void write(const std::string& packed_config, const std::string& plain_config) const;

  SafetensorsBuilder packed_file_, plain_file_;
  std::uint32_t seed_ = 1;  // of the next tensor

 private:
  TemporaryFolder packed_, plain_;
};

}  // namespace lockstep::test
