#pragma once

#include <vector>

#include "engine/model/open_model.h"
#include "engine/quantise/gguf_writer.h"
#include "engine/quantise/source_tensor.h"

namespace lockstep::engine {

/// A Hugging Face folder as a GGUF file states it. Metadata: what the family's GGUF form says (engine/model/gguf_keys.h), special tokens,
/// vocabulary, chat template. Tensors: those that the model's graph reads, where the graph of the GGUF form looks for them.
/// @throws std::runtime_error for an architecture, a number of EOS ids or a tokenizer that cannot be stated that way; for a tensor that is
/// missing or misshapen.
struct FolderAsGguf {
  GgufMetadataBuilder metadata;
  std::vector<SourceTensor> tensors;
};
FolderAsGguf folder_as_gguf(const OpenedModel& model);

/// That the new file says the same model. @throws std::runtime_error that names what in `read` it cannot say.
void check_same_model(const ModelSpec& read, const ModelSpec& written);

}  // namespace lockstep::engine
