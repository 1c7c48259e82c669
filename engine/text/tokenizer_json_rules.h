#pragma once

#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "engine/text/byte_alphabet.h"
#include "engine/text/json_place.h"
#include "engine/text/normalizer.h"
#include "engine/text/splitter.h"
#include "engine/text/tokenizer.h"

namespace lockstep::text {

// The parts of a tokenizer.json beside the model and its vocabulary. All throw std::runtime_error with file and JSON pointer, also for what
// is not supported.

Normalizer read_normalizer(const std::optional<JsonPlace>& place);

struct PreTokenizerRules {
  Splitter splitter;
  bool byte_level = false;  // the words are spelled in the byte alphabet
};
PreTokenizerRules read_pre_tokenizer(const std::optional<JsonPlace>& place);

/// How a token's spelling becomes text.
struct DecoderRules {
  struct Strip {
    std::string content;
    std::int64_t start, stop;  // at most so many are taken off
  };
  using Step = std::variant<Normalizer::Replace, Strip>;

  bool byte_level = false;     // from the byte alphabet
  bool byte_fallback = false;  // <0x0A> is a byte
  std::vector<Step> steps;     // else
  Tokenizer::TextRules text_rules;
};
DecoderRules read_decoder(const std::optional<JsonPlace>& place);
/// The bytes of a token.
std::string decoded(const DecoderRules& rules, const ByteAlphabet& alphabet, const std::string& spelling, Expression::Scratch& scratch);

/// The ids that a post-processor puts around a text.
struct PostProcessorRules {
  std::vector<TokenId> prefix, suffix;
};
PostProcessorRules read_post_processor(const std::optional<JsonPlace>& place);

}  // namespace lockstep::text
