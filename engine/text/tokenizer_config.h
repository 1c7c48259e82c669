#pragma once

#include <cstddef>
#include <string>

#include "engine/text/json_place.h"
#include "engine/text/tokenizer_parts.h"

namespace lockstep::text {

// What the readers of tokenizer.json and of tokenizer.model share. All throw std::runtime_error with file and JSON pointer.

/// Ids may have gaps (a vocabulary that is padded for speed), but a file cannot ask for a table much larger than itself: ids are below
/// this.
std::size_t largest_vocabulary(std::size_t entries);
TokenId checked_id(const JsonPlace& place, std::size_t limit);

/// Gives the id to a token, which may have it already.
void put_token(TokenizerParts& parts, TokenId id, const std::string& spelling, const JsonPlace& place);
/// "content" and flags of an element of added_tokens or added_tokens_decoder.
AddedToken read_added_token(const JsonPlace& item, TokenId id);

/// What a tokenizer has without tokenizer_config.json.
struct ConfigDefaults {
  bool add_bos = false, add_eos = false;
  TokenId bos_id = -1, eos_id = -1;
};
/// Sets BOS and EOS, and what add_special adds, where the parts add nothing yet.
void read_config(const JsonPlace& config, const JsonPlace& special_tokens_map, const ConfigDefaults& defaults, TokenizerParts& parts);

}  // namespace lockstep::text
