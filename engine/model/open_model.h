#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "engine/model/spec.h"
#include "engine/text/tokenizer.h"
#include "engine/weights/source.h"

namespace lockstep::engine {

/// A model whose configuration was read and checked, and whose tensors can be read.
struct OpenedModel {
  ModelSpec spec;
  std::unique_ptr<WeightSource> weights;
  GenerationDefaults defaults;
  std::optional<text::GgufVocabulary> gguf_vocabulary;  // of a GGUF file
  std::filesystem::path folder;                         // of a Hugging Face model, where tokenizer.json is; else empty
  std::string chat_template;                            // empty: none
  /// 32 hex digits: the same model in the same files has the same value on every machine, whatever the path. It tells models apart by
  /// accident, not against malice: a 128-bit FNV-1a over names, types and shapes of all tensors, configuration bytes, file sizes and some
  /// sampled ranges of the weights.
  std::string model_hash;
  std::string description;  // "llama, 3 layers, 9 heads (3 KV) of 8, hidden 72, vocabulary 257, GGUF, 28 tensors (19 Q4_1, 9 F32)"
};

/// Opens a .gguf file (of a split model: any of its parts), a folder with config.json and safetensors, or a folder with exactly one .gguf
/// file, or the parts of one, and no config.json.
/// Reads headers, configuration and a few KB of samples, no weights. @throws std::runtime_error that names the file and what is wrong with
/// it, or not supported.
OpenedModel open_model(const std::filesystem::path& path);

/// The tensor that the language-model head is read from: the embedding where the model ties them (whether or not the file has a head of its
/// own, too), else the head.
/// @throws std::runtime_error that names file and tensor if the model has a head of its own and the tensor is not there.
std::string head_tensor_name(const ModelSpec& spec, const WeightSource& weights);

}  // namespace lockstep::engine
