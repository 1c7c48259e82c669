// A GGUF file, its metadata as a configuration and a tokenizer, and the bytes of its first tensors.
#include <cstddef>
#include <cstdint>
#include <exception>
#include <utility>
#include <vector>

#include "engine/model/gguf_config.h"
#include "engine/weights/gguf.h"
#include "tests/fuzz/memory_file.h"

using namespace lockstep;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    const engine::GgufFile file = engine::read_gguf(fuzz::memory_file(data, size));
    for (const engine::StoredTensor& tensor : file.tensors->tensors()) {
      std::vector<std::byte> bytes(tensor.bytes);  // within the file, so small here
      file.tensors->read_rows(tensor, 0, tensor.rows(), 0, tensor.columns(), bytes);
    }
    try {
      if (auto vocabulary = engine::vocabulary_from_gguf(file.metadata)) text::tokenizer_from_gguf(std::move(*vocabulary));
    } catch (const std::exception&) {
    }
    engine::spec_from_gguf(file);
  } catch (const std::exception&) {
  }
  return 0;
}
