#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "engine/model/spec.h"
#include "parallel/graph.h"

namespace lockstep::engine {

/// A module's name in the two kinds of files; `{}` stands for the layer.
struct ModuleNames {
  std::string_view hugging_face;
  std::string_view gguf;
};

/// A family of models: how its configuration becomes a graph. Everything else about it is data in the graph.
struct Family {
  std::string_view architecture;
  parallel::Graph (*build)(const ModelSpec& spec);
  const std::vector<ModuleNames>& (*modules)();
};

/// @throws std::runtime_error that names the architecture and those that are supported.
const Family& family_of(const std::string& architecture);

/// The name in the model's files of a tensor with this canonical (Hugging Face) name.
std::string stored_name(const Family& family, NamingScheme naming, std::string_view canonical);

// One function a family, in a file of its name.
parallel::Graph build_llama(const ModelSpec& spec);
const std::vector<ModuleNames>& llama_modules();

}  // namespace lockstep::engine
