#include "engine/text/byte_alphabet.h"

#include "engine/text/utf8.h"

namespace lockstep::text {

ByteAlphabet::ByteAlphabet() {
  byte_of_.fill(-1);
  std::size_t next = 256;
  for (int byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
    byte_of_[printable ? static_cast<std::size_t>(byte) : next++] = static_cast<short>(byte);
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

}  // namespace lockstep::text
