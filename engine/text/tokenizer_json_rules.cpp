#include "engine/text/tokenizer_json_rules.h"

#include <cstdint>
#include <limits>
#include <stdexcept>

#include "engine/text/utf8.h"

namespace lockstep::text {

namespace {

constexpr std::size_t kMostSteps = 64;
constexpr std::size_t kLongestContent = 4096;  // of a replacement
constexpr std::size_t kMostGrowth = 8;         // of a token's text over its spelling, beyond kLongestContent

[[noreturn]] void fail_unsupported(const JsonPlace& place, const std::string& what, const std::string& supported) {
  place.at("type").fail("the " + what + " " + in_quotes(place.at("type").string()) + " is not supported (supported: " + supported + ")");
}

/// Text that is put in place of other text.
const std::string& read_content(const JsonPlace& place) {
  if (place.string().size() > kLongestContent) place.fail("has more than 4096 bytes");
  return place.string();
}

Expression read_pattern(const JsonPlace& place) {
  place.require_object();
  const auto expression = place.find("Regex");
  const auto text = place.find("String");
  if (!expression && !text) place.fail("must have a member \"Regex\" or \"String\"");
  try {
    return expression ? Expression(expression->string()) : Expression::literal(text->string());
  } catch (const std::runtime_error& error) {
    if (expression && !expression->value().is_string()) throw;
    if (!expression && !text->value().is_string()) throw;
    place.fail(error.what());
  }
}

std::string from_base64(const JsonPlace& place) {
  constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string_view text = place.string();
  if (text.size() % 4 != 0) place.fail("is no base64");
  while (text.ends_with('=')) text.remove_suffix(1);
  std::string bytes;
  std::uint32_t bits = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const std::size_t digit = kDigits.find(text[i]);
    if (digit == std::string_view::npos) place.fail("is no base64");
    bits = (bits << 6) | static_cast<std::uint32_t>(digit);
    if (i % 4 != 0) bytes += static_cast<char>(static_cast<unsigned char>(bits >> (6 - 2 * (i % 4))));
  }
  return bytes;
}

CharsMap read_characters_map(const JsonPlace& place) {
  const std::string bytes = from_base64(place);
  try {
    return CharsMap(bytes);
  } catch (const std::runtime_error& error) {
    place.fail(error.what());
  }
}

void add_normalizers(const JsonPlace& place, std::vector<Normalizer::Step>& steps) {
  const std::string& type = place.at("type").string();
  if (steps.size() > kMostSteps) place.fail("more than 64 normalizers");
  if (type == "Sequence") {
    const JsonPlace list = place.at("normalizers");
    for (std::size_t i = 0; i < list.size(); ++i) add_normalizers(list.element(i), steps);
  } else if (type == "NFC") {
    steps.emplace_back(UnicodeForm::Nfc);
  } else if (type == "NFD") {
    steps.emplace_back(UnicodeForm::Nfd);
  } else if (type == "NFKC") {
    steps.emplace_back(UnicodeForm::Nfkc);
  } else if (type == "NFKD") {
    steps.emplace_back(UnicodeForm::Nfkd);
  } else if (type == "Lowercase") {
    steps.emplace_back(Normalizer::Letters::Lowercase);
  } else if (type == "StripAccents") {
    steps.emplace_back(Normalizer::Letters::StripAccents);
  } else if (type == "Nmt") {
    steps.emplace_back(Normalizer::Letters::Nmt);
  } else if (type == "ByteLevel") {
    steps.emplace_back(Normalizer::Letters::ByteLevel);
  } else if (type == "Prepend") {
    steps.emplace_back(Normalizer::Prepend{read_content(place.at("prepend"))});
  } else if (type == "Replace") {
    steps.emplace_back(Normalizer::Replace{read_pattern(place.at("pattern")), read_content(place.at("content"))});
  } else if (type == "Strip") {
    steps.emplace_back(Normalizer::Strip{place.boolean_or("strip_left", true), place.boolean_or("strip_right", true)});
  } else if (type == "Precompiled") {
    steps.emplace_back(Normalizer::Precompiled{read_characters_map(place.at("precompiled_charsmap"))});
  } else {
    fail_unsupported(place, "normalizer",
                     "NFC, NFD, NFKC, NFKD, Nmt, Precompiled, Lowercase, StripAccents, Strip, Prepend, Replace, ByteLevel, Sequence");
  }
}

SplitBehavior read_behavior(const JsonPlace& place) {
  const std::string& name = place.string();
  if (name == "Isolated") return SplitBehavior::Isolated;
  if (name == "Removed") return SplitBehavior::Removed;
  if (name == "MergedWithPrevious") return SplitBehavior::MergedWithPrevious;
  if (name == "MergedWithNext") return SplitBehavior::MergedWithNext;
  if (name == "Contiguous") return SplitBehavior::Contiguous;
  place.fail(in_quotes(name) + " is none of Isolated, Removed, MergedWithPrevious, MergedWithNext, Contiguous");
}

/// How Metaspace, as a pre-tokenizer or a decoder, treats the start of the text: "always", "first" or "never".
std::string read_prepend_scheme(const JsonPlace& place) {
  const auto scheme = place.find("prepend_scheme");
  if (!scheme) return place.boolean_or("add_prefix_space", true) ? "always" : "never";  // as older files say it
  const std::string& name = scheme->string();
  if (name != "always" && name != "first" && name != "never") scheme->fail(in_quotes(name) + " is none of always, first, never");
  return name;
}

const std::string& read_marker(const JsonPlace& place) {
  const std::string& marker = place.at("replacement").string();
  if (marker.empty() || next_character(marker).length != marker.size()) place.at("replacement").fail("must be one character");
  return marker;
}

Splitter::Step read_metaspace(const JsonPlace& place) {
  const std::string scheme = read_prepend_scheme(place);
  const std::string& marker = read_marker(place);
  return {.expression = Expression::literal(marker),
          .behavior = SplitBehavior::MergedWithNext,
          .cuts = place.boolean_or("split", true),
          .spaces_become = marker,
          .prefix = scheme == "never" ? "" : marker,
          .prefix_only_at_start = scheme == "first"};
}

void add_pre_tokenizers(const JsonPlace& place, std::vector<Splitter::Step>& steps, bool& byte_level) {
  const std::string& type = place.at("type").string();
  if (steps.size() > kMostSteps) place.fail("more than 64 pre-tokenizers");
  if (byte_level) place.fail("a pre-tokenizer after ByteLevel is not supported");
  if (type == "Sequence") {
    const JsonPlace list = place.at("pretokenizers");
    for (std::size_t i = 0; i < list.size(); ++i) add_pre_tokenizers(list.element(i), steps, byte_level);
  } else if (type == "Split") {
    steps.push_back({.expression = read_pattern(place.at("pattern")),
                     .behavior = read_behavior(place.at("behavior")),
                     .invert = place.boolean_or("invert", false)});
  } else if (type == "Digits") {
    const bool each = place.boolean_or("individual_digits", false);
    steps.push_back({.expression = Expression("\\p{N}"), .behavior = each ? SplitBehavior::Isolated : SplitBehavior::Contiguous});
  } else if (type == "ByteLevel") {
    const bool cuts = place.boolean_or("use_regex", true);
    steps.push_back({.expression = Expression(kGpt2Split), .cuts = cuts, .prefix = place.boolean_or("add_prefix_space", true) ? " " : ""});
    byte_level = true;
  } else if (type == "Metaspace") {
    steps.push_back(read_metaspace(place));
  } else if (type == "Punctuation") {
    const auto behavior = place.find("behavior");
    steps.push_back(
        {.expression = Expression("[\\p{P}!-/:-@\\[-`{-~]"), .behavior = behavior ? read_behavior(*behavior) : SplitBehavior::Isolated});
  } else if (type == "Whitespace") {
    steps.push_back({.expression = Expression("\\w+|[^\\w\\s]+"), .behavior = SplitBehavior::Removed, .invert = true});
  } else if (type == "WhitespaceSplit") {
    steps.push_back({.expression = Expression("\\s+"), .behavior = SplitBehavior::Removed});
  } else if (type == "CharDelimiterSplit") {
    const JsonPlace delimiter = place.at("delimiter");
    if (delimiter.string().empty()) delimiter.fail("is empty");
    steps.push_back({.expression = Expression::literal(delimiter.string()), .behavior = SplitBehavior::Removed});
  } else {
    fail_unsupported(place, "pre-tokenizer",
                     "ByteLevel, Metaspace, Split, Digits, Punctuation, Whitespace, WhitespaceSplit, CharDelimiterSplit, Sequence");
  }
}

void add_strip(const JsonPlace& place, DecoderRules& rules, bool fused) {
  const DecoderRules::Strip strip{place.at("content").string(), place.at("start").integer(), place.at("stop").integer()};
  if (strip.content.empty()) place.at("content").fail("is empty");
  if (!fused) {
    rules.steps.emplace_back(strip);
    return;
  }
  const bool usual = strip.content == " " && strip.stop == 0 && strip.start >= 0 && strip.start <= 16;
  if (!usual) place.fail("only a Strip of spaces at the start is supported after Fuse");
  rules.text_rules.leading_spaces_to_drop = static_cast<int>(strip.start);
}

void add_decoders(const JsonPlace& place, DecoderRules& rules, bool& fused) {
  const std::string& type = place.at("type").string();
  if (type == "Sequence") {
    const JsonPlace list = place.at("decoders");
    for (std::size_t i = 0; i < list.size(); ++i) add_decoders(list.element(i), rules, fused);
    return;
  }
  if (fused && type != "Fuse" && type != "Strip") place.fail(in_quotes(type) + " after ByteLevel or Fuse is not supported");
  if (type == "Fuse") {
    fused = true;
  } else if (type == "ByteLevel") {
    if (rules.byte_fallback || !rules.steps.empty()) place.fail("ByteLevel after other decoders is not supported");
    rules.byte_level = fused = true;
  } else if (type == "ByteFallback") {
    rules.byte_fallback = rules.text_rules.replacement_per_byte = true;
  } else if (type == "Replace") {
    rules.steps.emplace_back(Normalizer::Replace{read_pattern(place.at("pattern")), read_content(place.at("content"))});
  } else if (type == "Metaspace") {
    rules.steps.emplace_back(Normalizer::Replace{Expression::literal(read_marker(place)), " "});
    rules.text_rules.first_token_without_spaces = read_prepend_scheme(place) != "never";
  } else if (type == "Strip") {
    add_strip(place, rules, fused);
  } else {
    fail_unsupported(place, "decoder", "ByteLevel, ByteFallback, Metaspace, Replace, Strip, Fuse, Sequence");
  }
  if (rules.steps.size() > kMostSteps) place.fail("more than 64 decoders");
}

std::vector<TokenId> read_special(const JsonPlace& post_processor, const JsonPlace& name) {
  const JsonPlace special = post_processor.at("special_tokens");
  const auto found = special.find(name.string());
  if (!found) name.fail(in_quotes(name.string()) + " is not among /special_tokens");
  std::vector<TokenId> ids;
  const JsonPlace list = found->at("ids");
  for (std::size_t i = 0; i < list.size(); ++i) {
    const std::int64_t id = list.element(i).integer();
    if (id < 0 || id > std::numeric_limits<TokenId>::max()) list.element(i).fail("the id " + std::to_string(id) + " is out of range");
    ids.push_back(static_cast<TokenId>(id));
  }
  return ids;
}

void read_template(const JsonPlace& place, PostProcessorRules& rules) {
  const JsonPlace list = place.at("single");
  bool text_seen = false;
  if (!rules.prefix.empty() || !rules.suffix.empty()) place.fail("a second TemplateProcessing is not supported");
  if (list.size() > kMostSteps) list.fail("has more than 64 elements");
  for (std::size_t i = 0; i < list.size(); ++i) {
    const JsonPlace item = list.element(i);
    if (const auto sequence = item.find("Sequence")) {
      if (sequence->at("id").string() != "A" || text_seen) sequence->fail("only one sequence, \"A\", is supported");
      text_seen = true;
    } else {
      const std::vector<TokenId> ids = read_special(place, item.at("SpecialToken").at("id"));
      std::vector<TokenId>& side = text_seen ? rules.suffix : rules.prefix;
      side.insert(side.end(), ids.begin(), ids.end());
      if (side.size() > kMostSteps) item.fail("more than 64 ids are added");
    }
  }
  if (!text_seen) list.fail("has no sequence \"A\"");
}

/// RobertaProcessing and BertProcessing: one token on each side, each [spelling, id].
void read_pair(const JsonPlace& place, PostProcessorRules& rules) {
  if (!rules.prefix.empty() || !rules.suffix.empty()) place.fail("a second post-processor that adds tokens is not supported");
  const auto id_of = [&](const char* key) {
    const JsonPlace id = place.at(key).element(1);
    const std::int64_t value = id.integer();
    if (value < 0 || value > std::numeric_limits<TokenId>::max()) id.fail("the id " + std::to_string(value) + " is out of range");
    return static_cast<TokenId>(value);
  };
  rules.prefix = {id_of("cls")};
  rules.suffix = {id_of("sep")};
}

void add_post_processors(const JsonPlace& place, PostProcessorRules& rules) {
  const std::string& type = place.at("type").string();
  if (type == "Sequence") {
    const JsonPlace list = place.at("processors");
    for (std::size_t i = 0; i < list.size(); ++i) add_post_processors(list.element(i), rules);
  } else if (type == "TemplateProcessing") {
    read_template(place, rules);
  } else if (type == "RobertaProcessing" || type == "BertProcessing") {
    read_pair(place, rules);
  } else if (type != "ByteLevel") {  // which only moves offsets
    fail_unsupported(place, "post-processor", "TemplateProcessing, RobertaProcessing, BertProcessing, ByteLevel, Sequence");
  }
}

void strip(std::string& text, const DecoderRules::Strip& rule) {
  for (std::int64_t i = 0; i < rule.start && text.starts_with(rule.content); ++i) text.erase(0, rule.content.size());
  for (std::int64_t i = 0; i < rule.stop && text.ends_with(rule.content); ++i) text.resize(text.size() - rule.content.size());
}

}  // namespace

Normalizer read_normalizer(const std::optional<JsonPlace>& place) {
  std::vector<Normalizer::Step> steps;
  if (place) add_normalizers(*place, steps);
  return Normalizer(std::move(steps));
}

PreTokenizerRules read_pre_tokenizer(const std::optional<JsonPlace>& place) {
  std::vector<Splitter::Step> steps;
  bool byte_level = false;
  if (place) add_pre_tokenizers(*place, steps, byte_level);
  return {Splitter(std::move(steps)), byte_level};
}

DecoderRules read_decoder(const std::optional<JsonPlace>& place) {
  DecoderRules rules;
  bool fused = false;
  if (place) add_decoders(*place, rules, fused);
  return rules;
}

std::string decoded(const DecoderRules& rules, const ByteAlphabet& alphabet, const std::string& spelling, Expression::Scratch& scratch) {
  if (rules.byte_level) return alphabet.to_bytes(spelling).value_or(spelling);
  if (const int byte = rules.byte_fallback ? fallback_byte(spelling) : -1; byte >= 0) return std::string(1, static_cast<char>(byte));
  std::string text = spelling;
  for (const DecoderRules::Step& step : rules.steps) {
    if (const auto* replace = std::get_if<Normalizer::Replace>(&step)) {
      text = replace_matches(text, *replace, scratch);
    } else {
      strip(text, std::get<DecoderRules::Strip>(step));
    }
    if (text.size() > kLongestContent + kMostGrowth * spelling.size())
      throw std::runtime_error("the decoder's replacements make the token " + in_quotes(spelling) + " too long");
  }
  return text;
}

PostProcessorRules read_post_processor(const std::optional<JsonPlace>& place) {
  PostProcessorRules rules;
  if (place) add_post_processors(*place, rules);
  return rules;
}

}  // namespace lockstep::text
