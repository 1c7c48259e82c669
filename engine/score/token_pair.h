#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/runtime/request.h"
#include "engine/text/tokenizer.h"

namespace lockstep::engine {

/// A context and its continuation as the model sees them.
struct TokenPair {
  std::vector<TokenId> tokens;
  std::size_t first_scored = 0;  // where the continuation begins; at least 1
};

/// Moves the white space at the end of the context to the front of the continuation: tokens of most vocabularies begin with a space, and
/// none ends with one.
std::pair<std::string, std::string> move_white_space(std::string_view context, std::string_view continuation);

/// What a text is scored behind where there is nothing before it: BOS, or EOS where there is no BOS; -1 if there is neither.
TokenId prefix_token(const text::Tokenizer& tokenizer);

/// The text's tokens, with the BOS that the tokenizer's rules add at its front if `add_special`, and never with an EOS that they add
/// behind.
std::vector<TokenId> encode_open(const text::Tokenizer& tokenizer, std::string_view text, bool add_special);

/// Tokenizes the whole string, after move_white_space(): as many of its tokens as the context alone has are the context, the rest is the
/// continuation. An empty context is the prefix token.
/// @throws RequestError 400: the continuation has no tokens, or there is nothing to put before it.
TokenPair pair_tokens(const text::Tokenizer& tokenizer, std::string_view context, std::string_view continuation, bool add_special);

}  // namespace lockstep::engine
