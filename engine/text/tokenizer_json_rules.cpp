#include "engine/text/tokenizer_json_rules.h"

#include <limits>
#include <stdexcept>

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
    steps.emplace_back(Normalizer::Lowercase{});
  } else if (type == "Prepend") {
    steps.emplace_back(Normalizer::Prepend{read_content(place.at("prepend"))});
  } else if (type == "Replace") {
    steps.emplace_back(Normalizer::Replace{read_pattern(place.at("pattern")), read_content(place.at("content"))});
  } else {
    fail_unsupported(place, "normalizer", "NFC, NFD, NFKC, NFKD, Lowercase, Prepend, Replace, Sequence");
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
    steps.push_back({.expression = Expression(kGpt2Split), .space_in_front = place.boolean_or("add_prefix_space", true), .cuts = cuts});
    byte_level = true;
  } else {
    fail_unsupported(place, "pre-tokenizer", "ByteLevel, Split, Digits, Sequence");
  }
}

void add_decoders(const JsonPlace& place, DecoderRules& rules, bool& fused) {
  const std::string& type = place.at("type").string();
  if (type == "Sequence") {
    const JsonPlace list = place.at("decoders");
    for (std::size_t i = 0; i < list.size(); ++i) add_decoders(list.element(i), rules, fused);
  } else if (type == "Fuse") {
    fused = true;
  } else if (type == "ByteLevel") {
    if (rules.byte_fallback || !rules.replacements.empty()) place.fail("ByteLevel after other decoders is not supported");
    rules.byte_level = fused = true;
  } else if (type == "ByteFallback") {
    if (rules.byte_level || fused) place.fail("ByteFallback after ByteLevel or Fuse is not supported");
    rules.byte_fallback = rules.text_rules.replacement_per_byte = true;
  } else if (type == "Replace") {
    if (rules.byte_level || fused || rules.byte_fallback) place.fail("Replace after other decoders is not supported");
    const JsonPlace what = place.at("pattern").at("String");
    if (what.string().empty()) what.fail("is empty");
    rules.replacements.emplace_back(what.string(), read_content(place.at("content")));
    if (rules.replacements.size() > kMostSteps) place.fail("more than 64 replacements");
  } else if (type == "Strip") {
    const std::int64_t start = place.at("start").integer();
    const bool usual = fused && place.at("content").string() == " " && place.at("stop").integer() == 0 && start >= 0 && start <= 16;
    if (!usual) place.fail("only a Strip of spaces at the start, after Fuse, is supported");
    rules.text_rules.leading_spaces_to_drop = static_cast<int>(start);
  } else {
    fail_unsupported(place, "decoder", "ByteLevel, Replace, ByteFallback, Fuse, Strip, Sequence");
  }
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

void add_post_processors(const JsonPlace& place, PostProcessorRules& rules) {
  const std::string& type = place.at("type").string();
  if (type == "Sequence") {
    const JsonPlace list = place.at("processors");
    for (std::size_t i = 0; i < list.size(); ++i) add_post_processors(list.element(i), rules);
  } else if (type == "TemplateProcessing") {
    read_template(place, rules);
  } else if (type != "ByteLevel") {  // which only moves offsets
    fail_unsupported(place, "post-processor", "TemplateProcessing, ByteLevel, Sequence");
  }
}

void replace_all(std::string& text, const std::string& what, const std::string& with, std::size_t limit) {
  std::string result;
  std::size_t done = 0;
  for (std::size_t found = 0; (found = text.find(what, done)) != std::string::npos; done = found + what.size()) {
    result.append(text, done, found - done);
    result += with;
    if (result.size() > limit) throw std::runtime_error("the decoder's replacements make a token too long");
  }
  text = result.append(text, done);
}

/// The byte of a token "<0x0A>", or -1.
int fallback_byte(const std::string& spelling) {
  if (spelling.size() != 6 || !spelling.starts_with("<0x") || spelling[5] != '>') return -1;
  int byte = 0;
  for (const char digit : spelling.substr(3, 2)) {
    const int value = digit >= '0' && digit <= '9'   ? digit - '0'
                      : digit >= 'A' && digit <= 'F' ? digit - 'A' + 10
                      : digit >= 'a' && digit <= 'f' ? digit - 'a' + 10
                                                     : -1;
    if (value < 0) return -1;
    byte = 16 * byte + value;
  }
  return byte;
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

std::string decoded(const DecoderRules& rules, const ByteAlphabet& alphabet, const std::string& spelling) {
  if (rules.byte_level) return alphabet.to_bytes(spelling).value_or(spelling);
  std::string text = spelling;
  for (const auto& [what, with] : rules.replacements) {
    replace_all(text, what, with, kLongestContent + kMostGrowth * spelling.size());
  }
  if (const int byte = rules.byte_fallback ? fallback_byte(text) : -1; byte >= 0)
    return {static_cast<char>(static_cast<unsigned char>(byte))};
  return text;
}

PostProcessorRules read_post_processor(const std::optional<JsonPlace>& place) {
  PostProcessorRules rules;
  if (place) add_post_processors(*place, rules);
  return rules;
}

}  // namespace lockstep::text
