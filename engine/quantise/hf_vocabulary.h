#pragma once

#include <filesystem>
#include <optional>

#include "engine/model/spec.h"
#include "engine/text/tokenizer.h"

namespace lockstep::engine {

/// The tokenizer of a Hugging Face folder (tokenizer.json, else tokenizer.model, else vocab.json and merges.txt) as a GGUF file states one;
/// nullopt if the folder has none: model "gpt2" for byte-level BPE, "llama" for BPE with byte fallback. Which way text is split
/// (tokenizer.ggml.pre) is found by trial: the tokenizer that the metadata give must agree with the folder's own, token for token, on texts
/// made of every merge and every special token, and so must the bytes of every token.
/// @throws std::runtime_error that names the file, if it is no BPE or no metadata agree.
std::optional<text::GgufVocabulary> vocabulary_from_folder(const std::filesystem::path& folder, const ModelSpec& spec);

}  // namespace lockstep::engine
