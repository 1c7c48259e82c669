#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>

namespace lockstep::text {

/// The alphabet that byte-level vocabularies are spelled in: each byte is one printable character. Bytes that are printable Latin-1 stand
/// for themselves, the other 68 are U+0100, U+0101, ... in order (a space is U+0120).
class ByteAlphabet {
 public:
  ByteAlphabet();
  /// The bytes that `spelling` stands for; nothing where it has a character outside the alphabet or is no UTF-8.
  std::optional<std::string> to_bytes(std::string_view spelling) const;
  char32_t character_of(unsigned char byte) const { return character_of_[byte]; }

 private:
  static constexpr std::size_t kCharacters = 256 + 68;
  std::array<char32_t, 256> character_of_;
  std::array<short, kCharacters> byte_of_;  // by code point; -1: not in the alphabet
};

/// SentencePiece's sign for a space, U+2581.
inline constexpr std::string_view kSpaceMarker = "\xE2\x96\x81";

/// The token "<0x0A>" of a byte in a vocabulary with byte fallback.
std::string fallback_token(unsigned char byte);
/// The byte of such a token, or -1 where it is none.
int fallback_byte(std::string_view token);

}  // namespace lockstep::text
