// vocab.json, merges.txt, tokenizer_config.json, added_tokens.json and a text, with a zero byte between them: whatever they say, a
// tokenizer or one std::runtime_error.
#include <cstdint>
#include <stdexcept>
#include <string_view>

#include "engine/text/vocab_files.h"
#include "tests/fuzz/use_tokenizer.h"

using namespace lockstep;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::string_view rest(reinterpret_cast<const char*>(data), size);
  text::VocabFiles files;
  for (std::string* file : {&files.vocab, &files.merges, &files.config, &files.added_tokens}) *file = fuzz::take_part(rest);
  try {
    fuzz::use(*text::tokenizer_from_vocab_files(files), rest);
  } catch (const std::runtime_error&) {
  }
  return 0;
}
