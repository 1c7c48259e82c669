#pragma once

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/temporary_folder.h"

namespace lockstep::engine::testing_support {

inline std::filesystem::path data_path(const std::string& name) { return std::filesystem::path(LOCKSTEP_TEST_DATA) / name; }

inline std::string file_bytes(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

using test::TemporaryFolder;

/// Little-endian bytes, as files hold them.
class Bytes {
 public:
  template <class T>
  Bytes& number(T value) {
    text_.append(reinterpret_cast<const char*>(&value), sizeof value);
    return *this;
  }
  Bytes& raw(std::string_view text) {
    text_ += text;
    return *this;
  }
  Bytes& text(std::string_view value) { return number(std::uint64_t{value.size()}).raw(value); }
  Bytes& pad_to(std::size_t alignment) {
    text_.resize((text_.size() + alignment - 1) / alignment * alignment, '\0');
    return *this;
  }
  const std::string& str() const { return text_; }

 private:
  std::string text_;
};

/// What `action` throws; empty if it does not.
template <class Action>
std::string error_of(const Action& action) {
  try {
    action();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

/// A GGUF file in the making.
struct GgufBuilder {
  std::uint32_t version = 3;
  std::vector<std::string> values;   // metadata, encoded
  std::vector<std::string> tensors;  // descriptions, encoded
  std::string data;

  GgufBuilder& value(std::string_view key, std::uint32_t kind, std::string_view encoded) {
    values.push_back(Bytes().text(key).number(kind).raw(encoded).str());
    return *this;
  }
  GgufBuilder& uint32(std::string_view key, std::uint32_t number) { return value(key, 4, Bytes().number(number).str()); }
  GgufBuilder& float32(std::string_view key, float number) { return value(key, 6, Bytes().number(number).str()); }
  GgufBuilder& string(std::string_view key, std::string_view text) { return value(key, 8, Bytes().text(text).str()); }
  GgufBuilder& tensor(std::string_view name, std::vector<std::uint64_t> ne, std::uint32_t type, std::uint64_t offset) {
    Bytes bytes;
    bytes.text(name).number(static_cast<std::uint32_t>(ne.size()));
    for (const std::uint64_t axis : ne) bytes.number(axis);
    tensors.push_back(bytes.number(type).number(offset).str());
    return *this;
  }
  std::string str() const {
    Bytes bytes;
    bytes.raw("GGUF").number(version).number(std::uint64_t{tensors.size()}).number(std::uint64_t{values.size()});
    for (const std::string& encoded : values) bytes.raw(encoded);
    for (const std::string& encoded : tensors) bytes.raw(encoded);
    return bytes.pad_to(32).raw(data).str();
  }
};

/// A safetensors file of this header and this many bytes of zeros.
inline std::string safetensors_file(std::string_view header, std::size_t data_bytes) {
  return Bytes().text(header).raw(std::string(data_bytes, '\0')).str();
}

}  // namespace lockstep::engine::testing_support
