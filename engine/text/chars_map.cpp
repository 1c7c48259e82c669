#include "engine/text/chars_map.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

namespace lockstep::text {

namespace {

constexpr std::uint32_t kValueBit = std::uint32_t{1} << 31;

std::uint32_t little_endian(std::string_view bytes) {
  std::uint32_t value = 0;
  for (std::size_t i = 4; i-- > 0;) value = (value << 8) | static_cast<unsigned char>(bytes[i]);
  return value;
}

// A unit that is no value: 8 bits of label (with the value bit), a flag that an entry ends here, and how far its children are.
std::uint32_t label_of(std::uint32_t unit) { return unit & (kValueBit | 0xFF); }
bool has_value(std::uint32_t unit) { return ((unit >> 8) & 1) != 0; }
std::uint32_t distance_of(std::uint32_t unit) { return (unit >> 10) << ((unit & (1u << 9)) >> 6); }

}  // namespace

CharsMap::CharsMap(std::string_view bytes) {
  if (bytes.size() < 4) throw std::runtime_error("the table of characters ends early");
  const std::size_t tree = little_endian(bytes);
  bytes.remove_prefix(4);
  if (tree % 4 != 0 || tree == 0 || tree >= bytes.size()) throw std::runtime_error("the table of characters states a wrong size");
  for (std::size_t at = 0; at < tree; at += 4) units_.push_back(little_endian(bytes.substr(at)));
  replacements_ = bytes.substr(tree);
  if (replacements_.back() != '\0') throw std::runtime_error("the table of characters ends in the middle of a replacement");
  for (std::size_t i = 0; i < units_.size(); ++i) {
    if (i != 0 && (units_[i] & kValueBit) != 0) continue;  // the root is left by its distance whatever it says
    const std::size_t children = i ^ distance_of(units_[i]);
    const bool inside = (children | 0xFF) < units_.size();
    if (!inside || (has_value(units_[i]) && (units_[children] & ~kValueBit) >= replacements_.size()))
      throw std::runtime_error("the table of characters leads outside of itself");
  }
}

std::optional<std::string_view> CharsMap::find(std::string_view text) const {
  std::size_t node = distance_of(units_[0]);
  for (const char character : text) {
    const auto byte = static_cast<unsigned char>(character);
    node ^= byte;
    const std::uint32_t unit = units_[node];
    if (label_of(unit) != byte) return std::nullopt;
    node ^= distance_of(unit);
    if (has_value(unit)) return std::string_view(replacements_.c_str() + (units_[node] & ~kValueBit));
  }
  return std::nullopt;
}

}  // namespace lockstep::text
