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

 private:
  static constexpr std::size_t kCharacters = 256 + 68;
  std::array<short, kCharacters> byte_of_;  // by code point; -1: not in the alphabet
};

}  // namespace lockstep::text
