#pragma once

#include <cstdlib>
#include <string>
#include <string_view>

#include "engine/text/tokenizer.h"

namespace lockstep::fuzz {

/// What comes before the first zero byte, which `rest` loses with it.
inline std::string_view take_part(std::string_view& rest) {
  const std::string_view part = rest.substr(0, rest.find('\0'));
  rest.remove_prefix(part.size() < rest.size() ? part.size() + 1 : part.size());
  return part;
}

/// There and back: ids are in range, and text that comes in pieces is the text that comes at once.
inline void use(const text::Tokenizer& tokenizer, std::string_view text) {
  for (const bool parse_special : {false, true}) {
    const auto ids = tokenizer.encode(text, true, parse_special);
    std::string streamed;
    text::IncrementalDetokenizer detokenizer(tokenizer, false);
    for (const text::TokenId id : ids) {
      if (id < 0 || static_cast<std::size_t>(id) >= tokenizer.vocab_size()) std::abort();
      streamed += detokenizer.append(id);
    }
    streamed += detokenizer.finish();
    if (streamed != tokenizer.decode(ids)) std::abort();
  }
}

}  // namespace lockstep::fuzz
