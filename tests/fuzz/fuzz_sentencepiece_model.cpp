// A tokenizer.model, tokenizer_config.json and a text, each of the first two with its length in front (three bytes, little endian): a
// tokenizer or one std::runtime_error. What libsentencepiece is given has passed our own checks, so it must not fall either.
#include <cstdint>
#include <stdexcept>
#include <string_view>

#include "engine/text/tokenizer.h"
#include "tests/fuzz/use_tokenizer.h"

using namespace lockstep;

namespace {

std::string_view take(std::string_view& rest) {
  std::size_t length = 0;
  for (std::size_t i = 0; i < 3 && i < rest.size(); ++i) length |= std::size_t{static_cast<unsigned char>(rest[i])} << (8 * i);
  rest.remove_prefix(rest.size() < 3 ? rest.size() : 3);
  const std::string_view part = rest.substr(0, length);
  rest.remove_prefix(part.size());
  return part;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::string_view rest(reinterpret_cast<const char*>(data), size);
  const std::string_view model = take(rest), config = take(rest);
  try {
    fuzz::use(*text::tokenizer_from_sentencepiece("tokenizer.model", model, config), rest);
  } catch (const std::runtime_error&) {
  }
  return 0;
}
