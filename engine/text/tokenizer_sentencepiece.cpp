#include <algorithm>
#include <array>
#include <charconv>
#include <stdexcept>

#include <sentencepiece_processor.h>

#include "engine/text/byte_alphabet.h"
#include "engine/text/json_place.h"
#include "engine/text/sentencepiece_model.h"
#include "engine/text/tokenizer_config.h"

namespace lockstep::text {

namespace {

// libsentencepiece works on a text as a whole, which is slow once that is larger than the caches.
constexpr std::size_t kLongestPart = 2048;

bool is_plain(char c) { return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z'); }

/// A cut before a space between letters changes no token: normalisation keeps the three as they are, and no piece has a space behind
/// something else.
bool may_cut(const SentencePieceModel& model) {
  constexpr std::array<std::string_view, 6> kKnownRules{"", "identity", "nmt_nfkc", "nfkc", "nmt_nfkc_cf", "nfkc_cf"};
  if (!model.escape_whitespaces || model.spaces_at_the_end) return false;
  if (std::find(kKnownRules.begin(), kKnownRules.end(), model.normalizer) == kKnownRules.end()) return false;
  bool has_marker = false;
  for (const auto& [spelling, score, type] : model.pieces) {
    has_marker = has_marker || (spelling == kSpaceMarker && type == TokenType::Normal);
    std::string_view rest = spelling;
    while (rest.starts_with(kSpaceMarker)) rest.remove_prefix(kSpaceMarker.size());
    const bool matched = type == TokenType::Normal || type == TokenType::UserDefined || type == TokenType::Unused;
    if (matched && (rest.find(kSpaceMarker) != std::string_view::npos || rest.find(' ') != std::string_view::npos)) return false;
  }
  return has_marker;
}

class SentencePieceEncoder final : public WordEncoder {
 public:
  SentencePieceEncoder(const std::string& source, std::string_view bytes, const SentencePieceModel& model)
      : cuts_(may_cut(model)), space_comes_back_(model.add_dummy_prefix) {
    std::string why;
    try {
      const auto status = processor_.LoadFromSerializedProto(bytes);
      if (!status.ok()) why = status.ToString();
    } catch (const std::exception& error) {  // of the Darts inside of it: a zero byte in a piece
      why = error.what();
    }
    if (!why.empty()) throw std::runtime_error(source + ": libsentencepiece refuses it: " + why);
  }

  void encode(std::string_view text, std::vector<TokenId>& ids) const override {
    std::vector<int> part_ids;
    while (!text.empty()) {
      const std::size_t length = cuts_ ? part_length(text) : text.size();
      const auto status = processor_.Encode(text.substr(0, length), &part_ids);
      if (!status.ok()) throw std::runtime_error("libsentencepiece: " + status.ToString());
      ids.insert(ids.end(), part_ids.begin(), part_ids.end());
      // The next part starts with a space. Where the model puts one in front of a text, that stands for it.
      text.remove_prefix(length < text.size() && space_comes_back_ ? length + 1 : length);
    }
  }

 private:
  static std::size_t part_length(std::string_view text) {
    for (std::size_t at = kLongestPart; at + 1 < text.size(); ++at) {
      if (text[at] == ' ' && is_plain(text[at - 1]) && is_plain(text[at + 1])) return at;
    }
    return text.size();
  }

  sentencepiece::SentencePieceProcessor processor_;
  bool cuts_, space_comes_back_;
};

TokenId id_of_key(const JsonPlace& place, const std::string& key, std::size_t limit) {
  std::uint32_t id = 0;
  const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
  if (error != std::errc() || end != key.data() + key.size() || id >= limit)
    place.fail("the id " + in_quotes(key) + " is no number below " + std::to_string(limit));
  return static_cast<TokenId>(id);
}

void put_added_token(TokenizerParts& parts, const JsonPlace& place, AddedToken token) {
  const auto is_it = [&](const AddedToken& other) { return other.id == token.id; };
  parts.added.erase(std::remove_if(parts.added.begin(), parts.added.end(), is_it), parts.added.end());
  put_token(parts, token.id, token.content, place);
  auto& entry = parts.tokens[static_cast<std::size_t>(token.id)];
  if (entry.bytes.empty()) entry.bytes = token.content;
  entry.special = token.special;
  if (!token.content.empty()) parts.added.push_back(std::move(token));
}

/// Tokens beyond the model, or that it knows as plain pieces: {"32000": {"content": "<|im_end|>", "special": true}}.
void read_added_tokens_decoder(const JsonPlace& list, TokenizerParts& parts) {
  list.require_object();
  const std::size_t limit = largest_vocabulary(parts.tokens.size() + list.value().size());
  for (const auto& [key, value] : list.value().items()) {
    const JsonPlace item = list.at(key);
    put_added_token(parts, item, read_added_token(item, id_of_key(list, key, limit)));
  }
}

/// As older folders have it: {"<|im_end|>": 32000}.
void read_added_tokens(const JsonPlace& list, TokenizerParts& parts) {
  list.require_object();
  const std::size_t limit = largest_vocabulary(parts.tokens.size() + list.value().size());
  for (const auto& [content, value] : list.value().items()) {
    const JsonPlace item = list.at(content);
    if (content.size() > AddedTokenFinder::kLongestContent) item.fail("has more than 4096 bytes");
    put_added_token(parts, item, {.id = checked_id(item, limit), .content = content});
  }
}

nlohmann::json parse_or_empty(const std::string& source, std::string_view text) {
  return text.empty() ? nlohmann::json::object() : parse_hostile_json(source, text);
}

}  // namespace

std::unique_ptr<Tokenizer> tokenizer_from_sentencepiece(const std::string& source_name, std::string_view bytes,
                                                        std::string_view config_text, std::string_view special_tokens_map_text,
                                                        std::string_view added_tokens_text) {
  const std::filesystem::path folder = std::filesystem::path(source_name).parent_path();
  const std::string config_name = (folder / "tokenizer_config.json").string();
  const std::string map_name = (folder / "special_tokens_map.json").string();
  const std::string added_name = (folder / "added_tokens.json").string();
  const nlohmann::json config = parse_or_empty(config_name, config_text);
  const nlohmann::json special_tokens_map = parse_or_empty(map_name, special_tokens_map_text);
  const nlohmann::json added_tokens = parse_or_empty(added_name, added_tokens_text);
  const JsonPlace config_place(config, config_name);

  const SentencePieceModel model = read_sentencepiece_model(source_name, bytes);
  TokenizerParts parts;
  for (const auto& piece : model.pieces) append_piece(parts, piece.spelling, piece.type, model.unknown_text);
  if (const auto list = config_place.find("added_tokens_decoder")) {
    read_added_tokens_decoder(*list, parts);
  } else {
    read_added_tokens(JsonPlace(added_tokens, added_name), parts);
  }
  parts.encoder = std::make_unique<SentencePieceEncoder>(source_name, bytes, model);
  const int spaces = model.remove_extra_whitespaces ? 16 : model.add_dummy_prefix ? 1 : 0;
  parts.text_rules = {.leading_spaces_to_drop = spaces, .replacement_per_byte = true};
  read_config(config_place, JsonPlace(special_tokens_map, map_name), {.add_bos = true, .bos_id = model.bos_id, .eos_id = model.eos_id},
              parts);
  return make_tokenizer(std::move(parts));
}

}  // namespace lockstep::text
