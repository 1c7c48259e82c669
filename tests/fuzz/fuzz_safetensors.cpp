// A safetensors file and the bytes of its tensors, also as a quantised checkpoint of each method; and the same input as a bare header and
// as an index of files.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <string>
#include <vector>

#include "engine/weights/quantisation.h"
#include "engine/weights/safetensors.h"
#include "tests/fuzz/memory_file.h"

using namespace lockstep;

namespace {

void read_tensors(const engine::WeightSource& source) {
  for (const engine::StoredTensor& tensor : source.tensors()) {
    std::vector<std::byte> bytes(tensor.rows() * device::row_bytes(tensor.dtype, tensor.columns()));  // a small multiple of the file
    source.read_rows(tensor, 0, tensor.rows(), 0, tensor.columns(), bytes);
  }
}

void read_all(const std::uint8_t* data, std::size_t size) {
  using engine::Quantisation;
  try {
    read_tensors(*engine::read_safetensors(fuzz::memory_file(data, size)));
  } catch (const std::exception&) {
  }
  const Quantisation methods[] = {
      {.method = Quantisation::Method::kGptq, .name = "gptq", .source = "config", .group_size = 32},
      {.method = Quantisation::Method::kGptq, .name = "gptq", .source = "config", .bits = 8, .any_order = true},
      {.method = Quantisation::Method::kAwq, .name = "awq", .source = "config", .group_size = 8},
      {.method = Quantisation::Method::kFloat8, .name = "fp8", .source = "config", .block_rows = 2, .block_columns = 3}};
  for (const Quantisation& method : methods) {
    try {
      read_tensors(*engine::unite_quantised(engine::read_safetensors(fuzz::memory_file(data, size)), method));
    } catch (const std::exception&) {
    }
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
