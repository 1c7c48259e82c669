#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace lockstep::engine {

/// 128-bit FNV-1a. It identifies data; it does not authenticate it: whoever wants two inputs with the same value can make them.
class Fnv128 {
 public:
  void add(std::span<const std::byte> bytes) {
    for (const std::byte byte : bytes) state_ = (state_ ^ static_cast<std::uint8_t>(byte)) * kPrime;
  }
  /// The length goes in, too, so that "ab" + "c" and "a" + "bc" differ.
  void add(std::string_view text) {
    add(std::uint64_t{text.size()});
    add(std::as_bytes(std::span(text)));
  }
  void add(std::uint64_t value) {
    for (int shift = 0; shift < 64; shift += 8) state_ = (state_ ^ static_cast<std::uint8_t>(value >> shift)) * kPrime;
  }
  /// 32 hex digits.
  std::string hex() const {
    std::string text;
    for (int shift = 124; shift >= 0; shift -= 4) text += "0123456789abcdef"[static_cast<unsigned>(state_ >> shift) & 15u];
    return text;
  }

 private:
  __extension__ using Word = unsigned __int128;
  static constexpr Word kPrime = (Word{1} << 88) + 0x13B;
  Word state_ = (Word{0x6C62272E07BB0142u} << 64) + 0x62B821756295C58Du;
};

}  // namespace lockstep::engine
