#pragma once

#include <string>
#include <string_view>

namespace lockstep::engine {

/// A name from a file, for a message: in quotes, control characters as \xNN, long ones cut.
inline std::string quote(std::string_view name) {
  constexpr std::size_t kMaxShown = 100;
  std::string shown = "'";
  for (const char c : name.substr(0, kMaxShown)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && byte != 0x7F) {
      shown += c;
      continue;
    }
    shown += "\\x";
    shown += "0123456789abcdef"[byte >> 4];
    shown += "0123456789abcdef"[byte & 15];
  }
  return shown + (name.size() > kMaxShown ? "...'" : "'");
}

}  // namespace lockstep::engine
