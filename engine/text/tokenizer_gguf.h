#pragma once

#include <memory>
#include <string>

#include "engine/text/sentencepiece_model.h"
#include "engine/text/tokenizer.h"
#include "engine/text/tokenizer_parts.h"

namespace lockstep::text {

// What the readers of the kinds of GGUF vocabularies share.

/// @throws std::runtime_error "FILE: message".
[[noreturn]] void fail(const GgufVocabulary& vocabulary, const std::string& message);
/// Without types, the tokens that the file names are control tokens.
TokenType type_of(const GgufVocabulary& vocabulary, std::size_t id);

/// Vocabulary and encoder of a checked vocabulary of kind "gpt2" or "llama": byte-level BPE, or SentencePiece's BPE.
TokenizerParts byte_level_parts(const GgufVocabulary& vocabulary);
TokenizerParts sentencepiece_parts(const GgufVocabulary& vocabulary);

}  // namespace lockstep::text
