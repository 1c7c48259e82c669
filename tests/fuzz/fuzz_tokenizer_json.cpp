// tokenizer.json, tokenizer_config.json and a text, with a zero byte between them: whatever they say, a tokenizer or one
// std::runtime_error.
#include <cstdint>
#include <stdexcept>
#include <string_view>

#include "engine/text/tokenizer.h"
#include "tests/fuzz/use_tokenizer.h"

using namespace lockstep;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::string_view rest(reinterpret_cast<const char*>(data), size);
  const std::string_view tokenizer_text = fuzz::take_part(rest);
  const std::string_view config_text = fuzz::take_part(rest);
  try {
    fuzz::use(*text::tokenizer_from_json("tokenizer.json", tokenizer_text, config_text), rest);
  } catch (const std::runtime_error&) {
  }
  return 0;
}
