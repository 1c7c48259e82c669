#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/model/spec.h"

namespace lockstep::engine {

struct Family;

/// The keys of a GGUF file's metadata and the members of a specification that they state. One list of calls serves both ways: a reader
/// fills the members, a writer makes keys of them. Keys are given without the architecture in front ("rope.freq_base").
/// `absent` is what it means where a key is not there; without it, the key is needed.
class GgufKeys {
 public:
  struct Range {
    double min = 0.0, max = 0.0;
  };

  virtual ~GgufKeys() = default;
  virtual bool writing() const = 0;
  virtual void size(const std::string& key, std::size_t& value, Range range, std::optional<std::size_t> absent = std::nullopt) = 0;
  virtual void number(const std::string& key, double& value, Range range, std::optional<double> absent = std::nullopt) = 0;
  virtual void flag(const std::string& key, bool& value, bool absent) = 0;
  virtual void text(const std::string& key, std::string& value, const std::string& absent) = 0;
  /// One flag a layer.
  virtual void layers(const std::string& key, std::vector<bool>& value, const std::vector<bool>& absent) = 0;
  /// A vector that is a tensor of the file: of `size` positive numbers. Empty: there is none.
  virtual void tensor(const std::string& name, std::vector<float>& values, std::size_t size) = 0;
  /// Whether the file has this tensor; a writer believes `value`.
  virtual bool has_tensor(const std::string& name, bool value) const = 0;
  /// @throws std::runtime_error that names file, key and what is wrong with it.
  [[noreturn]] virtual void fail(const std::string& key, const std::string& message) const = 0;

  void number(const std::string& key, float& value, Range range, std::optional<double> absent = std::nullopt) {
    double wide = value;
    number(key, wide, range, absent);
    value = static_cast<float>(wide);
  }
};

/// What the metadata of all families state: sizes, norms, rotary embedding, windows, experts; then what `family` adds. When it returns,
/// `spec` is what such a file says, whichever way it was called: a member that no key states has the value that the family fixes.
void describe_gguf(GgufKeys& keys, const Family& family, ModelSpec& spec);

}  // namespace lockstep::engine
