#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/weights/source.h"

namespace lockstep::engine {

/// The tensors of one .safetensors file. Every length and offset of the header is checked against the file.
/// @throws std::runtime_error that names the file, the tensor and what is wrong with it.
std::unique_ptr<WeightSource> read_safetensors(InputFile file);
std::unique_ptr<WeightSource> read_safetensors(const std::filesystem::path& path);

/// The tensors of a Hugging Face folder: model.safetensors, or the files that model.safetensors.index.json names. Of an indexed model, a
/// tensor counts in the file that the index names for it, and nowhere else.
/// @throws std::runtime_error as above, and where there is neither, a file is missing or outside the folder, or a tensor is not where the
/// index says.
std::unique_ptr<WeightSource> read_safetensors_folder(const std::filesystem::path& folder);

/// The file names of an index, ascending, each once. `source`: for messages. @throws std::runtime_error for an index that is malformed or
/// names a file elsewhere.
std::vector<std::string> files_of_index(std::string_view index_json, const std::string& source);

/// A tensor to write. The values are not copied: they must live until write_safetensors returns.
struct FloatTensor {
  std::string name;
  std::vector<std::size_t> shape;
  std::span<const float> values;  // row-major
};

/// Writes the tensors as F32, in this order. An existing file is replaced. @throws std::runtime_error that names the path, and
/// std::invalid_argument for a tensor whose number of values is not that of its shape.
void write_safetensors(const std::filesystem::path& path, std::span<const FloatTensor> tensors);

}  // namespace lockstep::engine
