#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "device/dtype.h"

namespace lockstep::engine {

struct QuantiseOptions {
  std::filesystem::path model;                // as open_model takes it
  std::filesystem::path output;               // a GGUF file
  device::DType type = device::DType::kQ8_0;  // of the matrices: kF16, kQ8_0, kQ4_0, kQ4_K, kQ6_K
  std::size_t threads = 1;                    // the bytes do not depend on it
  bool overwrite = false;
};

/// What became of a tensor.
struct QuantisedTensor {
  std::string name;  // in the new file
  std::string from;  // "BF16", "GPTQ 4-bit"
  device::DType to = device::DType::kF32;
  std::vector<std::size_t> shape;  // outermost first
  std::uint64_t bytes = 0;
  double rms = 0.0;        // of the values
  double rms_error = 0.0;  // of decoded less given
  double max_error = 0.0;  // largest magnitude of it
  std::string reason;      // why it is not of the type that was asked for; empty: it is
};

/// Everything that quantise_model refuses before it writes: an output that must not be touched, a model that can not be stated in GGUF.
/// Reads no weights. @throws std::runtime_error
void check_quantisation(const QuantiseOptions& options);

/// Turns a model into one GGUF file, `tensor` by tensor: memory is a few rows a thread. The file is written under another name beside
/// `output`, checked as far as its header and shapes go, and renamed when it is complete.
/// `report` gets the tensors in the order of the file, as they are done; never two calls at once.
/// @throws std::runtime_error that names file, tensor and what is wrong; `output` is then as it was.
void quantise_model(const QuantiseOptions& options, const std::function<void(const QuantisedTensor&)>& report);

}  // namespace lockstep::engine
