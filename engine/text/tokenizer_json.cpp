#include <algorithm>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <unordered_map>

#include "engine/text/bpe.h"
#include "engine/text/json_place.h"
#include "engine/text/tokenizer_config.h"
#include "engine/text/tokenizer_json_rules.h"
#include "engine/text/tokenizer_parts.h"
#include "engine/text/unigram.h"
#include "engine/text/vocab_files.h"

namespace lockstep::text {

namespace {

using nlohmann::json;
using Ids = std::unordered_map<std::string, TokenId>;

constexpr std::uintmax_t kLargestFile = std::uintmax_t{128} << 20;

Ids read_vocabulary(const JsonPlace& place, std::size_t limit, TokenizerParts& parts) {
  place.require_object();
  Ids ids;
  ids.reserve(place.value().size());
  for (const auto& [spelling, value] : place.value().items()) {
    if (!value.is_number_integer()) place.at(spelling).fail(std::string("must be an integer, not ") + value.type_name());
    const std::int64_t id = value.get<std::int64_t>();
    if (id < 0 || id >= static_cast<std::int64_t>(limit)) checked_id(place.at(spelling), limit);
    put_token(parts, static_cast<TokenId>(id), spelling, place);
    ids.emplace(spelling, static_cast<TokenId>(id));
  }
  return ids;
}

std::pair<std::string, std::string> read_merge(const JsonPlace& list, std::size_t index) {
  const json& value = list.value()[index];
  if (value.is_array() && value.size() == 2 && value[0].is_string() && value[1].is_string()) {
    return {value[0].get_ref<const std::string&>(), value[1].get_ref<const std::string&>()};
  }
  if (value.is_string()) {
    const auto& text = value.get_ref<const std::string&>();
    const std::size_t space = text.find(' ');
    if (space != std::string::npos && text.find(' ', space + 1) == std::string::npos)
      return {text.substr(0, space), text.substr(space + 1)};
  }
  list.element(index).fail("must be two tokens: \"left right\" or [\"left\", \"right\"]");
}

std::vector<BytePairEncoder::Merge> read_merges(const JsonPlace& list, const Ids& ids) {
  std::vector<BytePairEncoder::Merge> merges;
  merges.reserve(list.size());
  for (std::size_t i = 0; i < list.size(); ++i) {
    const auto [left, right] = read_merge(list, i);
    const auto id_of = [&](const std::string& token) {
      const auto found = ids.find(token);
      if (found == ids.end()) list.element(i).fail("the token " + in_quotes(token) + " is not in /model/vocab");
      return found->second;
    };
    merges.push_back({id_of(left), id_of(right), id_of(left + right)});
  }
  return merges;
}

void refuse_rare_options(const JsonPlace& model) {
  if (const auto dropout = model.find("dropout"); dropout && dropout->value() != 0.0) dropout->fail("dropout is not supported");
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    if (const auto affix = model.find(key); affix && !affix->string().empty()) affix->fail(std::string(key) + " is not supported");
  }
}

/// Returns the ids of the vocabulary.
Ids read_bpe(const JsonPlace& model, bool byte_level, std::size_t limit, TokenizerParts& parts) {
  refuse_rare_options(model);
  Ids ids = read_vocabulary(model.at("vocab"), limit, parts);
  if (ids.empty()) model.at("vocab").fail("is empty");
  BytePairEncoder::Rules rules;
  rules.symbols_are_bytes = byte_level;
  rules.byte_fallback = model.boolean_or("byte_fallback", false);
  rules.whole_words_first = model.boolean_or("ignore_merges", false);
  rules.fuse_unknown = model.boolean_or("fuse_unk", false);
  if (const auto unknown = model.find("unk_token")) {
    const auto found = ids.find(unknown->string());
    if (found == ids.end()) unknown->fail("the token " + in_quotes(unknown->string()) + " is not in /model/vocab");
    rules.unknown_id = found->second;
  }
  if (byte_level && rules.byte_fallback) model.at("byte_fallback").fail("byte_fallback with a ByteLevel pre-tokenizer is not supported");
  const auto merges = read_merges(model.at("merges"), ids);
  if (!byte_level) {
    parts.encoder = std::make_unique<BytePairEncoder>(ids, merges, rules);
    return ids;
  }
  const ByteAlphabet alphabet;
  Ids words;
  words.reserve(ids.size());
  for (const auto& [spelling, id] : ids) {
    if (const auto bytes = alphabet.to_bytes(spelling)) words.emplace(*bytes, id);
  }
  parts.encoder = std::make_unique<BytePairEncoder>(std::move(words), merges, rules);
  return ids;
}

Ids read_unigram(const JsonPlace& model, TokenizerParts& parts) {
  const JsonPlace list = model.at("vocab");
  Ids ids;
  std::vector<UnigramEncoder::Piece> pieces;
  for (std::size_t i = 0; i < list.size(); ++i) {
    const json& value = list.value()[i];
    if (!value.is_array() || value.size() != 2 || !value[0].is_string() || !value[1].is_number())
      list.element(i).fail("must be a piece and its score: [\"piece\", score]");
    pieces.push_back({value[0].get<std::string>(), value[1].get<double>()});
    parts.tokens.push_back({.spelling = pieces.back().spelling, .present = true});
    ids.insert_or_assign(pieces.back().spelling, static_cast<TokenId>(i));
  }
  if (pieces.empty()) list.fail("is empty");
  TokenId unknown_id = -1;
  if (const auto unknown = model.find("unk_id")) unknown_id = checked_id(*unknown, pieces.size());
  parts.encoder = std::make_unique<UnigramEncoder>(pieces, unknown_id, model.boolean_or("byte_fallback", false));
  return ids;
}

Ids read_model(const JsonPlace& model, bool byte_level, std::size_t limit, TokenizerParts& parts) {
  const auto type = model.find("type");
  if (!type && !model.find("merges")) model.fail("has neither a type nor merges; only BPE and Unigram are supported");
  if (!type || type->string() == "BPE") return read_bpe(model, byte_level, limit, parts);
  if (type->string() != "Unigram") type->fail("the model " + in_quotes(type->string()) + " is not supported (supported: BPE, Unigram)");
  if (byte_level) type->fail("Unigram with a ByteLevel pre-tokenizer is not supported");
  return read_unigram(model, parts);
}

void read_added_tokens(const std::optional<JsonPlace>& list, const Ids& ids, std::size_t limit, TokenizerParts& parts) {
  if (!list) return;
  for (std::size_t i = 0; i < list->size(); ++i) {
    const JsonPlace item = list->element(i);
    const TokenId id = checked_id(item.at("id"), limit);
    AddedToken token = read_added_token(item, id);
    if (const auto known = ids.find(token.content); known != ids.end() && known->second != id) {
      item.at("id").fail("is " + std::to_string(id) + ", but /model/vocab gives " + in_quotes(token.content) + " the id " +
                         std::to_string(known->second));
    }
    put_token(parts, id, token.content, item);
    parts.tokens[static_cast<std::size_t>(id)].special = token.special;
    parts.added.push_back(std::move(token));
  }
}

void check_post_processor(const JsonPlace& root, const TokenizerParts& parts) {
  for (const auto* side : {&parts.prefix, &parts.suffix}) {
    for (const TokenId id : *side) {
      const auto index = static_cast<std::size_t>(id);
      if (index >= parts.tokens.size() || !parts.tokens[index].present) {
        root.at("post_processor").fail("adds the id " + std::to_string(id) + ", which no token has");
      }
    }
  }
}

std::string read_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error(path.string() + ": cannot be opened");
  std::error_code error;
  const std::uintmax_t size = std::filesystem::file_size(path, error);
  if (error) throw std::runtime_error(path.string() + ": cannot be read: " + error.message());
  if (size > kLargestFile) throw std::runtime_error(path.string() + ": has " + std::to_string(size) + " bytes; the limit is 128 MiB");
  std::string text(static_cast<std::size_t>(size), '\0');
  file.read(text.data(), static_cast<std::streamsize>(size));
  if (file.gcount() != static_cast<std::streamsize>(size)) throw std::runtime_error(path.string() + ": ends early");
  return text;
}

std::unique_ptr<Tokenizer> tokenizer_from_document(const std::string& source_name, const json& document, std::string_view config_text,
                                                   std::string_view special_tokens_map_text, TokenId (*default_id)(const Ids& ids)) {
  const std::filesystem::path folder = std::filesystem::path(source_name).parent_path();
  const std::string config_name = (folder / "tokenizer_config.json").string();
  const std::string map_name = (folder / "special_tokens_map.json").string();
  const json config = config_text.empty() ? json::object() : parse_hostile_json(config_name, config_text);
  const json special_tokens_map = special_tokens_map_text.empty() ? json::object() : parse_hostile_json(map_name, special_tokens_map_text);

  const JsonPlace root(document, source_name);
  const JsonPlace model = root.at("model");
  const auto added = root.find("added_tokens");
  const std::size_t limit = largest_vocabulary(model.at("vocab").value().size() + (added ? added->size() : 0));
  if (!root.find("decoder")) root.fail("has no decoder, which is not supported");

  TokenizerParts parts;
  parts.normalizer = read_normalizer(root.find("normalizer"));
  PreTokenizerRules pre_tokenizer = read_pre_tokenizer(root.find("pre_tokenizer"));
  parts.splitter = std::move(pre_tokenizer.splitter);
  const Ids ids = read_model(model, pre_tokenizer.byte_level, limit, parts);
  read_added_tokens(added, ids, limit, parts);
  const DecoderRules decoder = read_decoder(root.find("decoder"));
  const ByteAlphabet alphabet;
  Expression::Scratch scratch;
  for (auto& token : parts.tokens) token.bytes = decoded(decoder, alphabet, token.spelling, scratch);
  parts.text_rules = decoder.text_rules;
  PostProcessorRules post_processor = read_post_processor(root.find("post_processor"));
  parts.prefix = std::move(post_processor.prefix);
  parts.suffix = std::move(post_processor.suffix);
  check_post_processor(root, parts);
  const TokenId otherwise = default_id == nullptr ? -1 : default_id(ids);
  read_config(JsonPlace(config, config_name), JsonPlace(special_tokens_map, map_name), {.bos_id = otherwise, .eos_id = otherwise}, parts);
  return make_tokenizer(std::move(parts));
}

}  // namespace

std::unique_ptr<Tokenizer> tokenizer_from_json(const std::string& source_name, std::string_view json_text, std::string_view config_text,
                                               std::string_view special_tokens_map_text) {
  return tokenizer_from_document(source_name, parse_hostile_json(source_name, json_text), config_text, special_tokens_map_text, nullptr);
}

std::unique_ptr<Tokenizer> tokenizer_from_vocab_files(const VocabFiles& files) {
  const auto end_of_text = [](const Ids& ids) {
    const auto found = ids.find(std::string(kEndOfText));
    return found == ids.end() ? -1 : found->second;
  };
  return tokenizer_from_document((files.folder / "vocab.json").string(), tokenizer_json_of(files), files.config, files.special_tokens_map,
                                 end_of_text);
}

std::optional<VocabFiles> read_vocab_files(const std::filesystem::path& folder) {
  if (!std::filesystem::exists(folder / "vocab.json") || !std::filesystem::exists(folder / "merges.txt")) return std::nullopt;
  const auto read = [&](const char* name) { return std::filesystem::exists(folder / name) ? read_file(folder / name) : std::string(); };
  return VocabFiles{.folder = folder,
                    .vocab = read("vocab.json"),
                    .merges = read("merges.txt"),
                    .config = read("tokenizer_config.json"),
                    .special_tokens_map = read("special_tokens_map.json"),
                    .added_tokens = read("added_tokens.json")};
}

std::unique_ptr<Tokenizer> tokenizer_from_folder(const std::filesystem::path& folder) {
  const auto read_optional = [&](const char* name) {
    return std::filesystem::exists(folder / name) ? read_file(folder / name) : std::string();
  };
  const auto json_path = folder / "tokenizer.json", model_path = folder / "tokenizer.model";
  if (std::filesystem::exists(json_path)) {
    return tokenizer_from_json(json_path.string(), read_file(json_path), read_optional("tokenizer_config.json"),
                               read_optional("special_tokens_map.json"));
  }
  if (std::filesystem::exists(model_path)) {
    return tokenizer_from_sentencepiece(model_path.string(), read_file(model_path), read_optional("tokenizer_config.json"),
                                        read_optional("special_tokens_map.json"), read_optional("added_tokens.json"));
  }
  if (const auto files = read_vocab_files(folder)) return tokenizer_from_vocab_files(*files);
  throw std::runtime_error(
      folder.string() +
      ": has neither tokenizer.json nor tokenizer.model, nor vocab.json and merges.txt; score of token ids and bench work without one");
}

}  // namespace lockstep::text
