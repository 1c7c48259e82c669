#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/model/open_model.h"
#include "engine/quantise/gguf_writer.h"

namespace lockstep::engine {

/// A tensor of a model on its way into a GGUF file.
struct SourceTensor {
  const StoredTensor* stored = nullptr;
  std::string name;                 // in the GGUF file
  std::size_t rotary_head_dim = 0;  // its rows change places within heads of so many; 0: they stay where they are
  // A tensor that stands in no file, and its values: `stored` is `made` then.
  std::shared_ptr<const StoredTensor> made{};
  std::vector<float> values{};
};

/// The metadata of a Hugging Face folder as a GGUF file states them: sizes, rotary base and scaling, special tokens, vocabulary, chat
/// template.
/// @throws std::runtime_error for an architecture, a rotary scaling, a number of EOS ids or a tokenizer that cannot be stated that way.
GgufMetadataBuilder metadata_from_folder(const OpenedModel& model);

/// The tensors that the model's graph reads, under their GGUF names, and what GGUF states as a tensor: the divisors of rotary frequencies.
/// @throws std::runtime_error that names what is missing or misshapen.
std::vector<SourceTensor> tensors_from_folder(const OpenedModel& model);

/// Brings whole heads of rows (or of elements of a vector) from Hugging Face's order, pairs (i, i + r / 2), into the order of Llama GGUF
/// files, pairs (2i, 2i + 1). `rows` holds `num_rows` rows as stored.
void order_rotary_rows(const ModelSpec& spec, const SourceTensor& tensor, std::size_t num_rows, std::span<std::byte> rows);

/// That what was written says the same as what was read. @throws std::runtime_error that names the first difference.
void check_same_model(const ModelSpec& read, const ModelSpec& written);

}  // namespace lockstep::engine
