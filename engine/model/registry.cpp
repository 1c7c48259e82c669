#include "engine/model/registry.h"

#include <stdexcept>

namespace lockstep::engine {
namespace {

std::vector<const Family*> list_families() {
  std::vector<const Family*> all;
  for (const auto families : {llama_families(), mistral_families(), qwen_families(), gpt2_families(), gemma_families(), phi3_families(),
                              olmo2_families(), granite_families(), smollm3_families(), gpt_neox_families(), starcoder2_families(),
                              stablelm_families(), cohere_families(), phi_families(), glm_families(), opt_families(), bloom_families()}) {
    for (const Family& family : families) all.push_back(&family);
  }
  return all;
}

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

std::span<const Family* const> all_families() {
  static const std::vector<const Family*> all = list_families();
  return all;
}

const Family& family_of(const std::string& architecture) {
  std::string known;
  for (const Family* family : all_families()) {
    if (family->architecture == architecture) return *family;
    known += (known.empty() ? "" : ", ") + std::string(family->architecture);
  }
  throw std::runtime_error("architecture '" + architecture + "' is not supported; supported: " + known);
}

std::string stored_name(const Family& family, const ModelSpec& spec, std::string_view canonical) {
  if (spec.naming == NamingScheme::kHuggingFace) {
    const bool bare = spec.bare && !family.base_prefix.empty() && canonical.starts_with(family.base_prefix);
    return std::string(canonical.substr(bare ? family.base_prefix.size() : 0));
  }
  const std::size_t dot = canonical.rfind('.');
  const std::string_view module = canonical.substr(0, dot);
  for (const ModuleNames& names : family.modules) {
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
