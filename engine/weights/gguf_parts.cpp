#include <stdexcept>
#include <string>
#include <string_view>

#include "engine/weights/gguf.h"

namespace lockstep::engine {

std::vector<std::filesystem::path> gguf_parts(const std::filesystem::path& path) {
  // As llama.cpp names them: a prefix, then "-%05d-of-%05d.gguf".
  constexpr std::size_t kDigits = 5;
  constexpr std::string_view kPattern = "-#####-of-#####.gguf";
  const std::string name = path.filename().string();
  const std::size_t prefix = name.size() < kPattern.size() ? 0 : name.size() - kPattern.size();
  const auto fits = [&] {
    if (name.size() < kPattern.size()) return false;
    for (std::size_t i = 0; i < kPattern.size(); ++i) {
      const char c = name[prefix + i];
      if (kPattern[i] == '#' ? c < '0' || c > '9' : c != kPattern[i]) return false;
    }
    return true;
  };
  if (!fits()) return {path};
  const std::size_t number = std::stoul(name.substr(prefix + 1, kDigits));
  const std::size_t count = std::stoul(name.substr(prefix + 1 + kDigits + 4, kDigits));
  if (number < 1 || number > count)
    throw std::runtime_error(path.string() + ": there is no part " + std::to_string(number) + " of " + std::to_string(count));
  std::vector<std::filesystem::path> parts;
  for (std::size_t part = 1; part <= count; ++part) {
    std::string digits = std::to_string(part);
    digits.insert(0, kDigits - digits.size(), '0');
    parts.push_back(path.parent_path() / (name.substr(0, prefix + 1) + digits + name.substr(prefix + 1 + kDigits)));
    std::error_code ignored;
    if (!std::filesystem::exists(parts.back(), ignored)) {
      throw std::runtime_error(parts.back().string() + ": part " + std::to_string(part) + " of the " + std::to_string(count) +
                               " files of this model is missing");
    }
  }
  return parts;
}

}  // namespace lockstep::engine
