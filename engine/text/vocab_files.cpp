#include "engine/text/vocab_files.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <stdexcept>

#include "engine/text/json_place.h"
#include "engine/text/tokenizer_config.h"

namespace lockstep::text {
namespace {

using nlohmann::json;

constexpr std::array kNamed{"bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token"};

struct Document {
  Document(const VocabFiles& files, const char* file, const std::string& text)
      : name((files.folder / file).string()), value(text.empty() ? json::object() : parse_hostile_json(name, text)) {}
  JsonPlace root() const { return {value, name}; }

  std::string name;
  json value;
};

void check_vocabulary(const JsonPlace& vocabulary) {
  vocabulary.require_object();
  if (vocabulary.value().empty()) vocabulary.fail("is empty");
  const std::size_t limit = largest_vocabulary(vocabulary.value().size());
  std::map<TokenId, const std::string*> spellings;
  for (const auto& [spelling, value] : vocabulary.value().items()) {
    const TokenId id = checked_id(vocabulary.at(spelling), limit);
    const auto [other, fresh] = spellings.emplace(id, &spelling);
    if (!fresh) vocabulary.at(spelling).fail("the id " + std::to_string(id) + " has another token, too");
  }
}

json read_merges(const std::string& name, std::string_view text, const json& vocabulary) {
  json merges = json::array();
  for (std::size_t line_number = 1; !text.empty(); ++line_number) {
    std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty() || line.starts_with("#version")) continue;
    const auto fail = [&](const std::string& message) {
      std::string place = name;
      place.append(": line ").append(std::to_string(line_number)).append(": ");
      throw std::runtime_error(place + message);
    };
    const std::size_t space = line.find(' ');
    if (space == std::string_view::npos || space == 0 || space + 1 == line.size() || line.find(' ', space + 1) != std::string_view::npos)
      fail(in_quotes(line) + " is not two tokens with a space between them");
    const std::string left(line.substr(0, space)), right(line.substr(space + 1));
    for (const std::string& token : {left, right, left + right})
      if (!vocabulary.contains(token)) fail("the token " + in_quotes(token) + " is not in vocab.json");
    merges.push_back({left, right});
  }
  return merges;
}

/// The tokenizer.json's added_tokens.
class AddedTokens {
 public:
  explicit AddedTokens(const json& vocabulary) : vocabulary_(vocabulary) {}

  /// "added_tokens_decoder": {"50256": {"content": "<|endoftext|>", "special": true}}
  void read_decoder(const JsonPlace& list) {
    list.require_object();
    const std::size_t limit = largest_vocabulary(vocabulary_.size() + list.value().size());
    for (const auto& [key, value] : list.value().items()) {
      std::uint32_t id = 0;
      const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
      if (error != std::errc() || end != key.data() + key.size() || id >= limit)
        list.fail("the id " + in_quotes(key) + " is no number below " + std::to_string(limit));
      add(list.at(key), read_added_token(list.at(key), static_cast<TokenId>(id)));
    }
  }

  /// added_tokens.json: {"<|im_end|>": 50257}
  void read_ids(const JsonPlace& list) {
    list.require_object();
    const std::size_t limit = largest_vocabulary(vocabulary_.size() + list.value().size());
    for (const auto& [content, value] : list.value().items()) {
      if (content.size() > AddedTokenFinder::kLongestContent) list.at(content).fail("has more than 4096 bytes");
      add(list.at(content), {.id = checked_id(list.at(content), limit), .content = content, .normalized = true});
    }
  }

  /// What "bos_token" and so on name.
  void read_special(const JsonPlace& place) {
    const JsonPlace content = place.value().is_object() ? place.at("content") : place;
    const std::string& spelling = content.string();
    const auto added = std::find_if(tokens_.begin(), tokens_.end(), [&](const auto& each) { return each.second.content == spelling; });
    if (added != tokens_.end()) {
      added->second.special = true;
      return;
    }
    const auto known = vocabulary_.find(spelling);
    if (known == vocabulary_.end()) content.fail("the token " + in_quotes(spelling) + " is not in vocab.json");
    if (spelling.size() > AddedTokenFinder::kLongestContent) content.fail("has more than 4096 bytes");
    add(content, {.id = known->get<TokenId>(), .content = spelling, .special = true});
  }

  void add_special_if_known(std::string_view spelling) {
    const auto known = vocabulary_.find(spelling);
    if (known != vocabulary_.end())
      tokens_.emplace(known->get<TokenId>(), AddedToken{.id = known->get<TokenId>(), .content = std::string(spelling), .special = true});
  }

  json list() const {
    json list = json::array();
    for (const auto& [id, token] : tokens_) {
      list.push_back({{"id", id},
                      {"content", token.content},
                      {"special", token.special},
                      {"single_word", token.single_word},
                      {"lstrip", token.strip_left},
                      {"rstrip", token.strip_right},
                      {"normalized", token.normalized}});
    }
    return list;
  }

 private:
  void add(const JsonPlace& place, AddedToken token) {
    const auto known = vocabulary_.find(token.content);
    if (known != vocabulary_.end() && known->get<TokenId>() != token.id)
      place.fail("the token " + in_quotes(token.content) + " has the id " + known->dump() + " in vocab.json");
    if (!tokens_.emplace(token.id, token).second) place.fail("there are two tokens of the id " + std::to_string(token.id));
  }

  const json& vocabulary_;
  std::map<TokenId, AddedToken> tokens_;
};

void check_class(const JsonPlace& config) {
  const auto name = config.find("tokenizer_class");
  if (!name) return;
  for (const char* known : {"GPT2Tokenizer", "GPT2TokenizerFast", "CodeGenTokenizer", "CodeGenTokenizerFast", "PreTrainedTokenizerFast"})
    if (name->string() == known) return;
  name->fail(in_quotes(name->string()) + " without a tokenizer.json is not supported; supported: \"GPT2Tokenizer\", \"CodeGenTokenizer\"");
}

}  // namespace

json tokenizer_json_of(const VocabFiles& files) {
  const Document vocabulary(files, "vocab.json", files.vocab), config(files, "tokenizer_config.json", files.config),
      map(files, "special_tokens_map.json", files.special_tokens_map), added(files, "added_tokens.json", files.added_tokens);
  check_class(config.root());
  check_vocabulary(vocabulary.root());
  AddedTokens tokens(vocabulary.value);
  if (const auto decoder = config.root().find("added_tokens_decoder")) {
    tokens.read_decoder(*decoder);
  } else {
    tokens.read_ids(added.root());
  }
  for (const JsonPlace& place : {config.root(), map.root()}) {
    for (const char* key : kNamed)
      if (const auto named = place.find(key)) tokens.read_special(*named);
    if (const auto more = place.find("additional_special_tokens"))
      for (std::size_t i = 0; i < more->size(); ++i) tokens.read_special(more->element(i));
  }
  for (const char* key : {"bos_token", "eos_token", "unk_token"})
    if (!config.root().find(key) && !map.root().find(key)) tokens.add_special_if_known(kEndOfText);
  const json byte_level = {{"type", "ByteLevel"}, {"add_prefix_space", config.root().boolean_or("add_prefix_space", false)}};
  json merges = read_merges((files.folder / "merges.txt").string(), files.merges, vocabulary.value);
  return {{"added_tokens", tokens.list()},
          {"pre_tokenizer", byte_level},
          {"decoder", byte_level},
          {"model", {{"type", "BPE"}, {"vocab", vocabulary.value}, {"merges", std::move(merges)}}}};
}

}  // namespace lockstep::text
