// A GGUF file's SentencePiece vocabulary and a text: lines of a type, a score byte and a piece, an empty line, the text. A tokenizer or one
// std::runtime_error.
#include <cstdint>
#include <stdexcept>
#include <string_view>

#include "engine/text/tokenizer.h"
#include "tests/fuzz/use_tokenizer.h"

using namespace lockstep;

namespace {

/// The first byte says whether a space comes in front of texts.
text::GgufVocabulary read(std::string_view& rest) {
  text::GgufVocabulary vocabulary;
  vocabulary.source = "fuzz.gguf";
  vocabulary.model = "llama";
  if (rest.empty()) return vocabulary;
  vocabulary.add_space_prefix = rest[0] & 1;
  rest.remove_prefix(1);
  while (!rest.empty()) {
    const std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(line.size() < rest.size() ? line.size() + 1 : line.size());
    if (line.size() < 2) break;
    vocabulary.types.push_back(line[0] & 7);
    vocabulary.scores.push_back(static_cast<float>(line[1]));
    vocabulary.tokens.emplace_back(line.substr(2));
  }
  vocabulary.bos_id = vocabulary.tokens.empty() ? -1 : 0;
  return vocabulary;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::string_view rest(reinterpret_cast<const char*>(data), size);
  try {
    const auto tokenizer = text::tokenizer_from_gguf(read(rest));
    fuzz::use(*tokenizer, rest);
  } catch (const std::runtime_error&) {
  }
  return 0;
}
