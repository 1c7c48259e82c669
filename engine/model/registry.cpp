#include "engine/model/registry.h"

#include <stdexcept>

namespace lockstep::engine {
namespace {

std::vector<const Family*> list_families() {
  std::vector<const Family*> all;
  for (const auto families :
       {llama_families(), mistral_families(), qwen_families(), gpt2_families(), gemma_families(), phi3_families(), olmo2_families(),
        granite_families(), smollm3_families(), gpt_neox_families(), starcoder2_families(), stablelm_families(), cohere_families(),
        phi_families(), glm_families(), opt_families(), bloom_families(), gpt_oss_families()}) {
    for (const Family& family : families) all.push_back(&family);
  }
  return all;
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

}  // namespace lockstep::engine
