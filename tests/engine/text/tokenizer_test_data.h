#pragma once

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <stdexcept>
#include <string>

#include <nlohmann/json.hpp>

#include "engine/text/tokenizer.h"

namespace lockstep::text {

/// A folder of the test data. With LOCKSTEP_GOLDENS=<folder> in the environment, of the whole set of reference data, where it is there.
inline std::filesystem::path tokenizer_folder(const std::string& name) {
  const char* goldens = std::getenv("LOCKSTEP_GOLDENS");
  const auto whole = std::filesystem::path(goldens ? goldens : "") / "tokenizers" / name;
  return goldens && std::filesystem::exists(whole) ? whole : std::filesystem::path(LOCKSTEP_TEST_DATA) / "tokenizers" / name;
}

inline std::string read_text(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error("cannot open " + path.string());
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

inline nlohmann::json read_json(const std::filesystem::path& path) { return nlohmann::json::parse(read_text(path)); }

/// What `function` throws, in words; "no error" if it does not.
template <typename Function>
std::string error_of(Function function) {
  try {
    function();
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "no error";
}

/// The vocabulary of a tokenizer.json as a GGUF file would have it.
inline GgufVocabulary as_gguf(const std::string& name, const std::string& pre) {
  const nlohmann::json file = read_json(tokenizer_folder(name) / "tokenizer.json");
  GgufVocabulary vocabulary;
  vocabulary.source = name + ".gguf";
  vocabulary.model = "gpt2";
  vocabulary.pre = pre;
  const auto put = [&](std::size_t id, const std::string& token, std::int32_t type) {
    if (id >= vocabulary.tokens.size()) vocabulary.tokens.resize(id + 1);
    vocabulary.types.resize(vocabulary.tokens.size(), 1);
    vocabulary.tokens[id] = token;
    vocabulary.types[id] = type;
  };
  for (const auto& [token, id] : file["model"]["vocab"].items()) put(id, token, 1);
  for (const auto& token : file["added_tokens"]) put(token["id"], token["content"], token["special"].get<bool>() ? 3 : 4);
  for (const auto& merge : file["model"]["merges"]) {
    vocabulary.merges.push_back(merge.is_string() ? merge.get<std::string>()
                                                  : merge[0].get<std::string>() + " " + merge[1].get<std::string>());
  }
  return vocabulary;
}

}  // namespace lockstep::text
