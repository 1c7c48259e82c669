#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include "engine/text/tokenizer.h"

namespace lockstep::text {

/// The texts of a folder's tokenizer files as older ones have them; empty where a file is absent.
struct VocabFiles {
  std::filesystem::path folder;    // for messages
  std::string vocab;               // vocab.json: {"token": id}
  std::string merges;              // merges.txt: "left right" a line, best first
  std::string config;              // tokenizer_config.json
  std::string special_tokens_map;  // special_tokens_map.json
  std::string added_tokens;        // added_tokens.json, read where the configuration has no added_tokens_decoder
};

/// What bos_token, eos_token and unk_token are where nothing names them.
inline constexpr std::string_view kEndOfText = "<|endoftext|>";

/// The tokenizer.json that they stand for: GPT-2's byte-level BPE. Special are the tokens that the configuration or the map names. A
/// tokenizer_class that splits text in another way is refused.
/// @throws std::runtime_error that names the file and the place in it: a line, or a JSON pointer.
nlohmann::json tokenizer_json_of(const VocabFiles& files);

/// Nothing where vocab.json or merges.txt is absent. @throws std::runtime_error that names the file.
std::optional<VocabFiles> read_vocab_files(const std::filesystem::path& folder);

std::unique_ptr<Tokenizer> tokenizer_from_vocab_files(const VocabFiles& files);

}  // namespace lockstep::text
