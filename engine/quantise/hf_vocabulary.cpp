#include "engine/quantise/hf_vocabulary.h"

#include <algorithm>
#include <array>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include "engine/text/byte_alphabet.h"
#include "engine/text/sentencepiece_model.h"
#include "engine/text/vocab_files.h"
#include "engine/weights/input_file.h"
#include "engine/weights/json_input.h"
#include "engine/weights/quote.h"

namespace lockstep::engine {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using text::GgufVocabulary;
using text::TokenId;
using text::Tokenizer;

constexpr std::uint64_t kMaxTokenizerBytes = std::uint64_t{256} << 20;
constexpr std::int32_t kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4, kUnused = 5, kByte = 6;

/// Names of tokenizer.ggml.pre, the plainest of those that split alike.
constexpr std::array kSplits{"gpt-2", "llama-bpe", "smaug-bpe", "qwen2", "stablelm2", "smollm", "gpt-4o"};

[[noreturn]] void fail(const GgufVocabulary& vocabulary, const std::string& message) {
  throw std::runtime_error(vocabulary.source + ": " + message + "; it cannot be stated in a GGUF file");
}

void put(GgufVocabulary& vocabulary, std::int64_t id, std::string token, std::int32_t type) {
  constexpr std::int64_t kMaxTokens = std::int64_t{1} << 26;
  if (id < 0 || id >= kMaxTokens) fail(vocabulary, "token " + quote(token) + " has id " + std::to_string(id));
  const auto at = static_cast<std::size_t>(id);
  if (at >= vocabulary.tokens.size()) {
    vocabulary.tokens.resize(at + 1);
    vocabulary.types.resize(at + 1, kUnused);
  }
  vocabulary.tokens[at] = std::move(token);
  vocabulary.types[at] = type;
}

void read_tokens(const json& file, GgufVocabulary& vocabulary) {
  const auto model = file.find("model");
  if (model == file.end() || !model->is_object()) fail(vocabulary, "there is no 'model'");
  const std::string type = model->value("type", "BPE");
  if (type != "BPE") fail(vocabulary, "the tokenizer is no BPE");
  vocabulary.model = model->value("byte_fallback", false) ? "llama" : "gpt2";
  const auto vocab = model->find("vocab");
  if (vocab == model->end() || !vocab->is_object()) fail(vocabulary, "there is no 'model.vocab'");
  for (const auto& [token, id] : vocab->items()) {
    if (!id.is_number_integer()) fail(vocabulary, "token " + quote(token) + " has no id");
    put(vocabulary, id.get<std::int64_t>(), token, vocabulary.model == "llama" && text::fallback_byte(token) >= 0 ? kByte : kNormal);
  }
  if (const auto merges = model->find("merges"); merges != model->end() && merges->is_array()) {
    for (const json& merge : *merges) {
      const bool pair = merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string();
      if (!pair && !merge.is_string()) fail(vocabulary, "'model.merges' has an entry that is no pair of texts");
      vocabulary.merges.push_back(pair ? merge[0].get<std::string>() + " " + merge[1].get<std::string>() : merge.get<std::string>());
    }
  }
  const auto added = file.find("added_tokens");
  if (added == file.end() || !added->is_array()) return;
  for (const json& token : *added) {
    const bool fits = token.is_object() && token.contains("id") && token["id"].is_number_integer() && token.contains("content") &&
                      token["content"].is_string();
    if (!fits) fail(vocabulary, "'added_tokens' has an entry without 'id' and 'content'");
    put(vocabulary, token["id"].get<std::int64_t>(), token["content"].get<std::string>(),
        token.value("special", false) ? kControl : kUserDefined);
  }
}

/// SentencePiece merges by score: those of HF's list of merges are as good as the places of their results in it.
void score_tokens(const json& file, GgufVocabulary& vocabulary) {
  const json unknown = file["model"].value("unk_token", json());
  std::map<std::string, std::size_t, std::less<>> ids;
  for (std::size_t id = 0; id < vocabulary.tokens.size(); ++id) {
    ids.emplace(vocabulary.tokens[id], id);
    if (unknown.is_string() && vocabulary.tokens[id] == unknown.get<std::string>()) vocabulary.types[id] = kUnknown;
  }
  const auto worst = -static_cast<float>(vocabulary.merges.size() + 1);
  vocabulary.scores.assign(vocabulary.tokens.size(), worst);
  for (std::size_t i = 0; i < vocabulary.merges.size(); ++i) {
    std::string result = vocabulary.merges[i];
    const std::size_t space = result.find(' ', 1);
    if (space == std::string::npos) fail(vocabulary, "'model.merges' has an entry that is no pair of texts");
    const auto found = ids.find(result.erase(space, 1));
    if (found != ids.end() && vocabulary.scores[found->second] == worst) vocabulary.scores[found->second] = -static_cast<float>(i);
  }
}

/// The pieces of a tokenizer.model.
void read_pieces(const fs::path& path, GgufVocabulary& vocabulary) {
  const text::SentencePieceModel model = text::read_sentencepiece_model(vocabulary.source, read_text_file(path, kMaxTokenizerBytes));
  if (model.kind != text::SentencePieceModel::Kind::Bpe) fail(vocabulary, "the tokenizer is no BPE");
  vocabulary.model = "llama";
  for (const auto& piece : model.pieces) {
    vocabulary.tokens.push_back(piece.spelling);
    vocabulary.scores.push_back(piece.score);
    vocabulary.types.push_back(static_cast<std::int32_t>(piece.type));
  }
}

/// Ids that stand for nothing need names that no other token has.
void name_gaps(GgufVocabulary& vocabulary) {
  for (std::size_t id = 0; id < vocabulary.tokens.size(); ++id) {
    if (vocabulary.types[id] == kUnused) vocabulary.tokens[id] = "[UNUSED" + std::to_string(id) + "]";
  }
}

/// What the folder's tokenizer puts around a text.
void read_surroundings(const Tokenizer& tokenizer, GgufVocabulary& vocabulary) {
  const std::vector<TokenId> bare = tokenizer.encode("a", false);
  const std::vector<TokenId> whole = tokenizer.encode("a", true);
  vocabulary.bos_id = tokenizer.bos_id();
  vocabulary.eos_id = tokenizer.eos_id();
  const auto at = std::search(whole.begin(), whole.end(), bare.begin(), bare.end());
  const auto before = at - whole.begin();
  const auto behind = static_cast<std::ptrdiff_t>(whole.size()) - before - static_cast<std::ptrdiff_t>(bare.size());
  if (at == whole.end() || before > 1 || behind > 1) fail(vocabulary, "it puts more around a text than one token in front and one behind");
  vocabulary.add_bos = before == 1 ? 1 : 0;
  vocabulary.add_eos = behind == 1 ? 1 : 0;
  if (before == 1) vocabulary.bos_id = whole.front();
  if (behind == 1) vocabulary.eos_id = whole.back();
}

/// Texts that tell ways of splitting apart: fixed ones, and all that the merges and special tokens of this vocabulary can join.
std::vector<std::string> probes(const GgufVocabulary& vocabulary, const Tokenizer& tokenizer) {
  std::vector<std::string> texts{
      "Hello, World! It's 12345 o'clock; I'LL we've don't.",
      "  leading,   inner  and trailing   ",
      "a\n\n\nb \n c\r\n\td\t\te",
      "x1 12 123 1234 12345.678e-9 \xC2\xB2\xC2\xBC",
      "CamelCase HTMLParser snake_case",
      "caf\xC3\xA9 cafe\xCC\x81 na\xC3\xAFve \xE2\x80\x99s \xE4\xB8\xAD\xE6\x96\x87\xE5\xAD\x97 \xED\x95\x9C\xEA\xB8\x80",
      "\xF0\x9F\x98\x80\xF0\x9F\x91\x8D\xF0\x9F\x8F\xBD ... !!! ?? -- // <b>&amp;</b> {\"k\": [1, 2]}",
      "\xC2\xA0nbsp\xE3\x80\x80wide"};
  constexpr std::array kBetween{" ", "", "1", "a", "\n", "'s ", "  ", "!", "\r\n", "Z"};
  std::string line;
  std::size_t turn = 0;
  const auto join = [&](std::string_view left, std::string_view right) {
    line += left;
    line += right;
    line += kBetween[turn++ % kBetween.size()];
    if (line.size() < 400) return;
    texts.push_back(line);
    line.clear();
  };
  for (const std::string& merge : vocabulary.merges) {
    const std::size_t space = merge.find(' ', 1);
    if (space == std::string::npos) continue;
    const TokenId left = tokenizer.id_of(merge.substr(0, space)), right = tokenizer.id_of(merge.substr(space + 1));
    if (left >= 0 && right >= 0) join(tokenizer.bytes_of(left), tokenizer.bytes_of(right));
  }
  for (std::size_t id = 0; id < vocabulary.tokens.size(); ++id) {
    if (vocabulary.types[id] != kControl && vocabulary.types[id] != kUserDefined) continue;
    join("word ", vocabulary.tokens[id]);
    join(vocabulary.tokens[id], " word");
  }
  texts.push_back(line);
  return texts;
}

bool agree(const Tokenizer& expected, const Tokenizer& found, const std::vector<std::string>& texts, const GgufVocabulary& vocabulary) {
  for (std::size_t id = 0; id < vocabulary.tokens.size(); ++id) {
    if (vocabulary.types[id] == kUnknown) continue;  // what it stands for in text is not stated in GGUF files
    const auto token = static_cast<TokenId>(id);
    if (expected.bytes_of(token) != found.bytes_of(token) && !expected.bytes_of(token).empty()) return false;
    if (expected.is_special(token) != found.is_special(token) && !expected.bytes_of(token).empty()) return false;
  }
  return std::all_of(texts.begin(), texts.end(), [&](const std::string& text) {
    const std::vector<TokenId> ids = expected.encode(text, true);
    return ids == found.encode(text, true) && expected.encode(text, false, false) == found.encode(text, false, false) &&
           expected.decode(ids) == found.decode(ids);
  });
}

}  // namespace

std::optional<GgufVocabulary> vocabulary_from_folder(const fs::path& folder, const ModelSpec& spec) {
  std::error_code ignored;
  const auto is_there = [&](const char* name) { return fs::exists(folder / name, ignored); };
  const bool has_json = is_there("tokenizer.json"), has_model = !has_json && is_there("tokenizer.model");
  const auto vocab_files = has_json || has_model ? std::nullopt : text::read_vocab_files(folder);
  if (!has_json && !has_model && !vocab_files) return std::nullopt;
  const fs::path path = folder / (has_json ? "tokenizer.json" : has_model ? "tokenizer.model" : "vocab.json");
  const std::unique_ptr<Tokenizer> expected = text::tokenizer_from_folder(folder);
  GgufVocabulary vocabulary;
  vocabulary.source = path.string();
  try {
    if (!has_model) {
      const json file =
          has_json ? parse_json_object(read_text_file(path, kMaxTokenizerBytes), vocabulary.source) : text::tokenizer_json_of(*vocab_files);
      read_tokens(file, vocabulary);
      if (vocabulary.model == "llama") score_tokens(file, vocabulary);
    } else {
      read_pieces(path, vocabulary);
    }
  } catch (const json::exception&) {
    fail(vocabulary, "a member is of another kind than it should be");
  }
  if (vocabulary.tokens.size() < expected->vocab_size() || vocabulary.tokens.size() > spec.vocab_size) {
    fail(vocabulary, "it has " + std::to_string(vocabulary.tokens.size()) + " tokens, the tokenizer with all files beside it " +
                         std::to_string(expected->vocab_size()) + ", and the model's vocabulary " + std::to_string(spec.vocab_size));
  }
  name_gaps(vocabulary);
  read_surroundings(*expected, vocabulary);
  const std::vector<std::string> texts = probes(vocabulary, *expected);
  const auto fits = [&] { return agree(*expected, *text::tokenizer_from_gguf(vocabulary), texts, vocabulary); };
  if (vocabulary.model == "llama") {
    vocabulary.pre = "default";
    vocabulary.merges.clear();
    for (const int prefix : {1, 0}) {
      vocabulary.add_space_prefix = prefix;
      if (fits()) return vocabulary;
    }
  } else {
    for (const char* split : kSplits) {
      vocabulary.pre = split;
      if (fits()) return vocabulary;
    }
  }
  fail(vocabulary, "what GGUF files know of tokenizers of model " + quote(vocabulary.model) + " gives other tokens than this one");
}

}  // namespace lockstep::engine
