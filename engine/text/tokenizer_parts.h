#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/text/added_tokens.h"
#include "engine/text/normalizer.h"
#include "engine/text/splitter.h"
#include "engine/text/tokenizer.h"
#include "engine/text/word_encoder.h"

namespace lockstep::text {

/// All that a tokenizer is made of, whichever file it came from.
struct TokenizerParts {
  struct Token {
    std::string spelling;  // as the vocabulary has it
    std::string bytes;     // what it stands for in text
    bool special = false;
    bool present = false;  // ids may have gaps
  };
  std::vector<Token> tokens;  // by id
  std::vector<AddedToken> added;
  Normalizer normalizer;
  Splitter splitter;
  std::unique_ptr<const WordEncoder> encoder;
  std::vector<TokenId> prefix, suffix;  // what add_special puts around the text
  TokenId bos_id = -1, eos_id = -1;
  Tokenizer::TextRules text_rules;
};

std::unique_ptr<Tokenizer> make_tokenizer(TokenizerParts parts);

}  // namespace lockstep::text
