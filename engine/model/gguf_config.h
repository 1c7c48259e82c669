#pragma once

#include <optional>
#include <string>

#include "engine/model/spec.h"
#include "engine/text/tokenizer.h"
#include "engine/weights/gguf.h"

namespace lockstep::engine {

/// The metadata of a GGUF file as a specification. Biases and the tie of head and embedding follow from which tensors there are.
/// @throws std::runtime_error that names file, key and value: missing, of the wrong kind, out of range, or not supported.
ModelSpec spec_from_gguf(const GgufFile& file);

/// The vocabulary in the metadata; nullopt if there is none. Errors as above.
std::optional<text::GgufVocabulary> vocabulary_from_gguf(const GgufMetadata& metadata);

}  // namespace lockstep::engine
