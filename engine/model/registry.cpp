#include "engine/model/registry.h"

#include <array>
#include <stdexcept>

namespace lockstep::engine {
namespace {

constexpr std::array<Family, 1> kFamilies{{{"llama", build_llama, llama_modules}}};

/// The digits of `name` that stand where `pattern` has {}; npos-free: nullopt-like empty view with `matches` false where they differ
/// elsewhere.
bool match(std::string_view pattern, std::string_view name, std::string_view& layer) {
  const std::size_t hole = pattern.find("{}");
  if (hole == std::string_view::npos) return pattern == name;
  const std::string_view before = pattern.substr(0, hole);
  const std::string_view after = pattern.substr(hole + 2);
  if (name.size() <= before.size() + after.size() || !name.starts_with(before) || !name.ends_with(after)) return false;
  layer = name.substr(before.size(), name.size() - before.size() - after.size());
  return layer.find_first_not_of("0123456789") == std::string_view::npos;
}

}  // namespace

const Family& family_of(const std::string& architecture) {
  std::string known;
  for (const Family& family : kFamilies) {
    if (family.architecture == architecture) return family;
    known += (known.empty() ? "" : ", ") + std::string(family.architecture);
  }
  throw std::runtime_error("architecture '" + architecture + "' is not supported; supported: " + known);
}

std::string stored_name(const Family& family, NamingScheme naming, std::string_view canonical) {
  if (naming == NamingScheme::kHuggingFace) return std::string(canonical);
  const std::size_t dot = canonical.rfind('.');
  const std::string_view module = canonical.substr(0, dot);
  for (const ModuleNames& names : family.modules()) {
    std::string_view layer;
    if (!match(names.hugging_face, module, layer)) continue;
    std::string stored(names.gguf);
    const std::size_t hole = stored.find("{}");
    if (hole != std::string::npos) stored.replace(hole, 2, layer);
    return stored + std::string(canonical.substr(dot));
  }
  throw std::runtime_error("no GGUF name is known for the tensor " + std::string(canonical));
}

}  // namespace lockstep::engine
