#pragma once

#include <array>
#include <string>
#include <string_view>

namespace lockstep::text {

/// What a value of tokenizer.ggml.pre stands for: a byte-level vocabulary's rules that are not in the file.
struct PreTokenizerFamily {
  std::string_view names;  // with spaces between them
  std::array<const char*, 3>
      splits;  // expressions that cut the text one after the other, the rest null; matches and what is between them are pieces
  bool whole_words_first = false;
  bool adds_bos = false;  // where the file does not say
  bool nfc = false;       // the text is normalised first
};

/// The family called `name`, or nothing.
const PreTokenizerFamily* find_pre_tokenizer(std::string_view name);
/// All names, for messages: "default, gpt-2, ...".
std::string pre_tokenizer_names();

}  // namespace lockstep::text
