#include "engine/text/byte_alphabet.h"

#include "engine/text/utf8.h"

namespace lockstep::text {

ByteAlphabet::ByteAlphabet() {
  byte_of_.fill(-1);
  std::size_t next = 256;
  for (int byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
    const std::size_t character = printable ? static_cast<std::size_t>(byte) : next++;
    byte_of_[character] = static_cast<short>(byte);
    character_of_[static_cast<std::size_t>(byte)] = static_cast<char32_t>(character);
  }
}

std::optional<std::string> ByteAlphabet::to_bytes(std::string_view spelling) const {
  std::string bytes;
  bytes.reserve(spelling.size());
  while (!spelling.empty()) {
    const Utf8Step step = next_character(spelling);
    if (step.state != Utf8State::Valid || step.code_point >= kCharacters || byte_of_[step.code_point] < 0) return std::nullopt;
    bytes += static_cast<char>(byte_of_[step.code_point]);
    spelling.remove_prefix(step.length);
  }
  return bytes;
}

std::string fallback_token(unsigned char byte) {
  constexpr std::string_view digits = "0123456789ABCDEF";
  return {'<', '0', 'x', digits[byte >> 4], digits[byte & 15], '>'};
}

int fallback_byte(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return -1;
  int byte = 0;
  for (const char digit : token.substr(3, 2)) {
    const int value = digit >= '0' && digit <= '9'   ? digit - '0'
                      : digit >= 'A' && digit <= 'F' ? digit - 'A' + 10
                      : digit >= 'a' && digit <= 'f' ? digit - 'a' + 10
                                                     : -1;
    if (value < 0) return -1;
    byte = 16 * byte + value;
  }
  return byte;
}

}  // namespace lockstep::text
