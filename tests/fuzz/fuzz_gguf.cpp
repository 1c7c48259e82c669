// A GGUF file, its metadata as a configuration (with the graph and what it asks of the tensors) and a tokenizer, and the bytes of its
// tensors; and the same input as the two parts of a split model, the second of which begins at the second magic number.
#include <cstddef>
#include <cstdint>
#include <exception>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/model/gguf_config.h"
#include "engine/model/registry.h"
#include "engine/weights/gguf.h"
#include "engine/weights/loader.h"
#include "tests/fuzz/memory_file.h"

using namespace lockstep;

namespace {

void read_all(std::vector<engine::InputFile> parts) {
  try {
    const engine::GgufFile file = engine::read_gguf(std::move(parts));
    for (const engine::StoredTensor& tensor : file.tensors->tensors()) {
      std::vector<std::byte> bytes(tensor.bytes);  // within the file, so small here
      file.tensors->read_rows(tensor, 0, tensor.rows(), 0, tensor.columns(), bytes);
    }
    try {
      if (auto vocabulary = engine::vocabulary_from_gguf(file.metadata)) text::tokenizer_from_gguf(std::move(*vocabulary));
    } catch (const std::exception&) {
    }
    const engine::ModelSpec spec = engine::spec_from_gguf(file);
    if (spec.num_layers > 8) return;
    parallel::Graph graph = engine::family_of(spec.architecture).build(spec);
    engine::bind_tensors(graph, spec, *file.tensors, std::nullopt);
  } catch (const std::exception&) {
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::vector<engine::InputFile> whole;
  whole.push_back(fuzz::memory_file(data, size));
  read_all(std::move(whole));
  const std::size_t second = std::string_view(reinterpret_cast<const char*>(data), size).find("GGUF", 4);
  if (second == std::string_view::npos) return 0;
  std::vector<engine::InputFile> parts;
  parts.push_back(fuzz::memory_file(data, second));
  parts.push_back(fuzz::memory_file(data + second, size - second));
  read_all(std::move(parts));
  return 0;
}
