#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::engine {

/// The finaliser of splitmix64 (Steele, Lea, Flood 2014): every bit of the result depends on every bit of `value`. A bijection.
inline std::uint64_t mix_bits(std::uint64_t value) {
  value += 0x9e3779b97f4a7c15u;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9u;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebu;
  return value ^ (value >> 31);
}

/// A 64-bit hash that is the same on every machine and in every version of the program, because it stands in files: FNV-1a, then mix_bits.
/// Not for keeping adversaries out.
class StableHash {
 public:
  void add(std::string_view bytes) {
    for (const char c : bytes) state_ = (state_ ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  }
  std::uint64_t value() const { return mix_bits(state_); }

 private:
  std::uint64_t state_ = 0xcbf29ce484222325u;
};

inline std::uint64_t stable_hash(std::string_view bytes) {
  StableHash hash;
  hash.add(bytes);
  return hash.value();
}

/// 16 lower-case hexadecimal digits.
inline std::string hex_digits(std::uint64_t value) {
  std::string digits(16, '0');
  for (std::size_t i = 16; i-- > 0; value >>= 4) digits[i] = "0123456789abcdef"[value & 15];
  return digits;
}

/// A set of 64-bit hashes in about 11 to 21 bytes each (open addressing, at most three quarters full).
class HashSet {
 public:
  /// False if it was there already.
  bool insert(std::uint64_t hash) {
    if (4 * (size_ + 1) > 3 * slots_.size()) grow();
    if (!place(hash == kEmpty ? 1 : hash)) return false;
    ++size_;
    return true;
  }
  std::size_t size() const { return size_; }

 private:
  static constexpr std::uint64_t kEmpty = 0;

  bool place(std::uint64_t hash) {
    const std::size_t mask = slots_.size() - 1;
    std::size_t slot = static_cast<std::size_t>(hash) & mask;
    for (; slots_[slot] != kEmpty; slot = (slot + 1) & mask) {
      if (slots_[slot] == hash) return false;
    }
    slots_[slot] = hash;
    return true;
  }
  void grow() {
    std::vector<std::uint64_t> old(slots_.empty() ? 64 : 2 * slots_.size(), kEmpty);
    old.swap(slots_);
    for (const std::uint64_t hash : old) {
      if (hash != kEmpty) place(hash);
    }
  }

  std::vector<std::uint64_t> slots_;  // a power of two of them
  std::size_t size_ = 0;
};

}  // namespace lockstep::engine
