// A safetensors file and the bytes of its tensors; and the same input as a bare header and as an index of files.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <string>
#include <vector>

#include "engine/weights/safetensors.h"
#include "tests/fuzz/memory_file.h"

using namespace lockstep;

namespace {

void read_all(const std::uint8_t* data, std::size_t size) {
  try {
    const auto source = engine::read_safetensors(fuzz::memory_file(data, size));
    for (const engine::StoredTensor& tensor : source->tensors()) {
      std::vector<std::byte> bytes(tensor.bytes);
      source->read_rows(tensor, 0, tensor.rows(), 0, tensor.columns(), bytes);
    }
  } catch (const std::exception&) {
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  read_all(data, size);
  std::vector<std::uint8_t> framed(8 + size + 64);  // a right length in front, some data behind: the fuzzer gets past the frame
  const std::uint64_t length = size;
  std::memcpy(framed.data(), &length, sizeof length);
  if (size > 0) std::memcpy(framed.data() + 8, data, size);
  read_all(framed.data(), framed.size());
  try {
    engine::files_of_index(std::string(reinterpret_cast<const char*>(data), size), "fuzz");
  } catch (const std::exception&) {
  }
  return 0;
}
