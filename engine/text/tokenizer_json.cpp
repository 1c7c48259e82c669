#include <algorithm>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <unordered_map>

#include "engine/text/bpe_tokenizer.h"
#include "engine/text/json_place.h"
#include "engine/text/tokenizer_json_rules.h"

namespace lockstep::text {

namespace {

using nlohmann::json;
using Ids = std::unordered_map<std::string, TokenId>;

// Ids may have gaps (a vocabulary that is padded for speed), but a file cannot ask for a table much larger than itself.
constexpr std::size_t kLargestGap = 65536;
constexpr std::uintmax_t kLargestFile = std::uintmax_t{128} << 20;

std::size_t largest_vocabulary(std::size_t entries) { return 2 * entries + kLargestGap; }

TokenId checked_id(const JsonPlace& place, std::size_t limit) {
  const std::int64_t id = place.integer();
  if (id < 0 || id >= static_cast<std::int64_t>(limit)) {
    place.fail("the id " + std::to_string(id) + " is out of range (a file with so many tokens may have ids below " + std::to_string(limit) +
               ")");
  }
  return static_cast<TokenId>(id);
}

void put_token(BpeTokenizerParts& parts, TokenId id, const std::string& spelling, const JsonPlace& place) {
  const auto index = static_cast<std::size_t>(id);
  if (index >= parts.tokens.size()) parts.tokens.resize(index + 1);
  auto& token = parts.tokens[index];
  if (token.present && token.spelling != spelling) {
    place.fail("the id " + std::to_string(id) + " of " + in_quotes(spelling) + " is already that of " + in_quotes(token.spelling));
  }
  token.spelling = spelling;
  token.present = true;
}

Ids read_vocabulary(const JsonPlace& place, std::size_t limit, BpeTokenizerParts& parts) {
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
Ids read_model(const JsonPlace& model, bool byte_level, std::size_t limit, BpeTokenizerParts& parts) {
  if (const auto type = model.find("type")) {
    if (type->string() != "BPE") type->fail("the model " + in_quotes(type->string()) + " is not supported (supported: BPE)");
  } else if (!model.find("merges")) {
    model.fail("has neither a type nor merges; only BPE is supported");
  }
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

void read_added_tokens(const std::optional<JsonPlace>& list, const Ids& ids, std::size_t limit, BpeTokenizerParts& parts) {
  if (!list) return;
  for (std::size_t i = 0; i < list->size(); ++i) {
    const JsonPlace item = list->element(i);
    AddedToken token;
    token.id = checked_id(item.at("id"), limit);
    token.content = item.at("content").string();
    if (token.content.size() > AddedTokenFinder::kLongestContent) item.at("content").fail("has more than 4096 bytes");
    if (const auto known = ids.find(token.content); known != ids.end() && known->second != token.id) {
      item.at("id").fail("is " + std::to_string(token.id) + ", but /model/vocab gives " + in_quotes(token.content) + " the id " +
                         std::to_string(known->second));
    }
    token.special = item.boolean_or("special", false);
    token.single_word = item.boolean_or("single_word", false);
    token.strip_left = item.boolean_or("lstrip", false);
    token.strip_right = item.boolean_or("rstrip", false);
    token.normalized = item.boolean_or("normalized", !token.special);
    put_token(parts, token.id, token.content, item);
    parts.tokens[static_cast<std::size_t>(token.id)].special = token.special;
    parts.added.push_back(std::move(token));
  }
}

/// The token that tokenizer_config.json or special_tokens_map.json calls `key`: a string, or an object with the string as "content".
TokenId read_named_token(const JsonPlace& config, const char* key, const BpeTokenizerParts& parts) {
  auto place = config.find(key);
  if (!place) return -1;
  if (place->value().is_object()) place = place->at("content");
  const std::string& spelling = place->string();
  const auto is_it = [&](const auto& token) { return token.present && token.spelling == spelling; };
  const auto added =
      std::find_if(parts.added.begin(), parts.added.end(), [&](const AddedToken& token) { return token.content == spelling; });
  if (added != parts.added.end()) return added->id;
  const auto found = std::find_if(parts.tokens.begin(), parts.tokens.end(), is_it);
  if (found == parts.tokens.end()) place->fail("the token " + in_quotes(spelling) + " is not in tokenizer.json");
  return static_cast<TokenId>(found - parts.tokens.begin());
}

void read_config(const JsonPlace& config, const JsonPlace& special_tokens_map, BpeTokenizerParts& parts) {
  const auto named = [&](const char* key) {
    const TokenId id = read_named_token(config, key, parts);
    return id >= 0 ? id : read_named_token(special_tokens_map, key, parts);
  };
  parts.bos_id = named("bos_token");
  parts.eos_id = named("eos_token");
  if (!parts.prefix.empty() || !parts.suffix.empty()) return;
  const auto add = [&](const char* key, TokenId id, std::vector<TokenId>& side) {
    if (!config.boolean_or(key, false)) return;
    if (id < 0) config.at(key).fail("is set, but no such token is named");
    side.push_back(id);
  };
  add("add_bos_token", parts.bos_id, parts.prefix);
  add("add_eos_token", parts.eos_id, parts.suffix);
}

void check_post_processor(const JsonPlace& root, const BpeTokenizerParts& parts) {
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

}  // namespace

std::unique_ptr<Tokenizer> tokenizer_from_json(const std::string& source_name, std::string_view json_text, std::string_view config_text,
                                               std::string_view special_tokens_map_text) {
  const std::filesystem::path folder = std::filesystem::path(source_name).parent_path();
  const std::string config_name = (folder / "tokenizer_config.json").string();
  const std::string map_name = (folder / "special_tokens_map.json").string();
  const json document = parse_hostile_json(source_name, json_text);
  const json config = config_text.empty() ? json::object() : parse_hostile_json(config_name, config_text);
  const json special_tokens_map = special_tokens_map_text.empty() ? json::object() : parse_hostile_json(map_name, special_tokens_map_text);

  const JsonPlace root(document, source_name);
  const JsonPlace model = root.at("model");
  const auto added = root.find("added_tokens");
  const std::size_t limit = largest_vocabulary(model.at("vocab").value().size() + (added ? added->size() : 0));
  if (!root.find("decoder")) root.fail("has no decoder; only ByteLevel and byte-fallback decoders are supported");

  BpeTokenizerParts parts;
  parts.normalizer = read_normalizer(root.find("normalizer"));
  PreTokenizerRules pre_tokenizer = read_pre_tokenizer(root.find("pre_tokenizer"));
  parts.splitter = std::move(pre_tokenizer.splitter);
  const Ids ids = read_model(model, pre_tokenizer.byte_level, limit, parts);
  read_added_tokens(added, ids, limit, parts);
  const DecoderRules decoder = read_decoder(root.find("decoder"));
  const ByteAlphabet alphabet;
  for (auto& token : parts.tokens) token.bytes = decoded(decoder, alphabet, token.spelling);
  parts.text_rules = decoder.text_rules;
  PostProcessorRules post_processor = read_post_processor(root.find("post_processor"));
  parts.prefix = std::move(post_processor.prefix);
  parts.suffix = std::move(post_processor.suffix);
  check_post_processor(root, parts);
  read_config(JsonPlace(config, config_name), JsonPlace(special_tokens_map, map_name), parts);
  return make_bpe_tokenizer(std::move(parts));
}

std::unique_ptr<Tokenizer> tokenizer_from_folder(const std::filesystem::path& folder) {
  const auto path = folder / "tokenizer.json";
  if (!std::filesystem::exists(path)) {
    const bool sentence_piece = std::filesystem::exists(folder / "tokenizer.model");
    throw std::runtime_error(folder.string() + ": has no tokenizer.json" +
                             (sentence_piece ? "; its tokenizer.model (SentencePiece) is not supported" : "") +
                             "; prompts of token ids still work");
  }
  const auto read_optional = [&](const char* name) {
    return std::filesystem::exists(folder / name) ? read_file(folder / name) : std::string();
  };
  return tokenizer_from_json(path.string(), read_file(path), read_optional("tokenizer_config.json"),
                             read_optional("special_tokens_map.json"));
}

}  // namespace lockstep::text
