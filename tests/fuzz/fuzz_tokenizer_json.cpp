// tokenizer.json, tokenizer_config.json and a text, with a zero byte between them: whatever they say, a tokenizer or one
// std::runtime_error.
#include <cstdint>
#include <cstdlib>
#include <stdexcept>
#include <string_view>

#include "engine/text/tokenizer.h"

using namespace lockstep::text;

namespace {

std::string_view take_part(std::string_view& rest) {
  const std::string_view part = rest.substr(0, rest.find('\0'));
  rest.remove_prefix(part.size() < rest.size() ? part.size() + 1 : part.size());
  return part;
}

void use(const Tokenizer& tokenizer, std::string_view text) {
  for (const bool parse_special : {false, true}) {
    const auto ids = tokenizer.encode(text, true, parse_special);
    std::string streamed;
    IncrementalDetokenizer detokenizer(tokenizer, false);
    for (const TokenId id : ids) {
      if (id < 0 || static_cast<std::size_t>(id) >= tokenizer.vocab_size()) std::abort();
      streamed += detokenizer.append(id);
    }
    streamed += detokenizer.finish();
    if (streamed != tokenizer.decode(ids)) std::abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::string_view rest(reinterpret_cast<const char*>(data), size);
  const std::string_view tokenizer_text = take_part(rest);
  const std::string_view config_text = take_part(rest);
  try {
    use(*tokenizer_from_json("tokenizer.json", tokenizer_text, config_text), rest);
  } catch (const std::runtime_error&) {
  }
  return 0;
}
