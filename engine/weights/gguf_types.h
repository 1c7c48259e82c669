#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "device/dtype.h"

namespace lockstep::engine {

/// A tensor type of the GGUF format.
struct GgufTensorType {
  std::string name;              // "Q4_K"; "type 99" for a number that we do not know
  std::uint64_t block_size = 0;  // elements; 0: not known
  std::uint64_t block_bytes = 0;
  std::optional<device::DType> dtype;  // where it can be read
};

GgufTensorType gguf_tensor_type(std::uint32_t number);
/// The other way round.
std::uint32_t gguf_type_number(device::DType dtype);

}  // namespace lockstep::engine
