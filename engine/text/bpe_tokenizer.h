#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/text/added_tokens.h"
#include "engine/text/bpe.h"
#include "engine/text/normalizer.h"
#include "engine/text/splitter.h"
#include "engine/text/tokenizer.h"

namespace lockstep::text {

/// All that a BPE tokenizer is made of, whichever file it came from.
struct BpeTokenizerParts {
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
  std::unique_ptr<const BytePairEncoder> encoder;
  std::vector<TokenId> prefix, suffix;  // what add_special puts around the text
  TokenId bos_id = -1, eos_id = -1;
  Tokenizer::TextRules text_rules;
};

std::unique_ptr<Tokenizer> make_bpe_tokenizer(BpeTokenizerParts parts);

}  // namespace lockstep::text
