#include "engine/text/tokenizer_config.h"

#include <algorithm>

namespace lockstep::text {

std::size_t largest_vocabulary(std::size_t entries) {
  constexpr std::size_t kLargestGap = 65536;
  return 2 * entries + kLargestGap;
}

TokenId checked_id(const JsonPlace& place, std::size_t limit) {
  const std::int64_t id = place.integer();
  if (id < 0 || id >= static_cast<std::int64_t>(limit)) {
    place.fail("the id " + std::to_string(id) + " is out of range (a file with so many tokens may have ids below " + std::to_string(limit) +
               ")");
  }
  return static_cast<TokenId>(id);
}

void put_token(TokenizerParts& parts, TokenId id, const std::string& spelling, const JsonPlace& place) {
  const auto index = static_cast<std::size_t>(id);
  if (index >= parts.tokens.size()) parts.tokens.resize(index + 1);
  auto& token = parts.tokens[index];
  if (token.present && token.spelling != spelling) {
    place.fail("the id " + std::to_string(id) + " of " + in_quotes(spelling) + " is already that of " + in_quotes(token.spelling));
  }
  token.spelling = spelling;
  token.present = true;
}

AddedToken read_added_token(const JsonPlace& item, TokenId id) {
  AddedToken token;
  token.id = id;
  token.content = item.at("content").string();
  if (token.content.size() > AddedTokenFinder::kLongestContent) item.at("content").fail("has more than 4096 bytes");
  token.special = item.boolean_or("special", false);
  token.single_word = item.boolean_or("single_word", false);
  token.strip_left = item.boolean_or("lstrip", false);
  token.strip_right = item.boolean_or("rstrip", false);
  token.normalized = item.boolean_or("normalized", !token.special);
  return token;
}

namespace {

/// The token that tokenizer_config.json or special_tokens_map.json calls `key`: a string, or an object with the string as "content".
TokenId read_named_token(const JsonPlace& config, const char* key, const TokenizerParts& parts) {
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

}  // namespace

void read_config(const JsonPlace& config, const JsonPlace& special_tokens_map, const ConfigDefaults& defaults, TokenizerParts& parts) {
  const auto named = [&](const char* key, TokenId otherwise) {
    TokenId id = read_named_token(config, key, parts);
    if (id < 0) id = read_named_token(special_tokens_map, key, parts);
    return id < 0 ? otherwise : id;
  };
  parts.bos_id = named("bos_token", defaults.bos_id);
  parts.eos_id = named("eos_token", defaults.eos_id);
  if (!parts.prefix.empty() || !parts.suffix.empty()) return;
  const auto add = [&](const char* key, bool otherwise, TokenId id, std::vector<TokenId>& side) {
    if (!config.boolean_or(key, otherwise)) return;
    if (id < 0 && config.find(key)) config.at(key).fail("is set, but no such token is named");
    if (id >= 0) side.push_back(id);
  };
  add("add_bos_token", defaults.add_bos, parts.bos_id, parts.prefix);
  add("add_eos_token", defaults.add_eos, parts.eos_id, parts.suffix);
}

}  // namespace lockstep::text
