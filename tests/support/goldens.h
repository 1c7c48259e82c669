#pragma once

#include <filesystem>
#include <string>
#include <tuple>
#include <vector>

#include <nlohmann/json.hpp>

#include "engine/weights/source.h"

namespace lockstep::test {

/// A small model, and files with what the reference implementation makes of it.
struct Golden {
  std::string name;
  std::filesystem::path model;   // folder or GGUF file
  std::filesystem::path json;    // prompts, greedy tokens, beams, scores
  std::filesystem::path logits;  // logits.<prompt>
  std::filesystem::path hidden;  // these two may not exist
  std::filesystem::path rotary;
  int max_ranks = 4;  // to try

  nlohmann::json answers() const;
};

void PrintTo(const Golden& golden, std::ostream* out);  // for GoogleTest

/// The reference data: the folder that LOCKSTEP_GOLDENS names, else the part of it that is in the tree.
std::filesystem::path golden_root();

/// Every folder below models/, by name, whose family the program has. Some have no answers, only a configuration.
std::vector<Golden> golden_folders();
/// The folders whose family it does not have.
std::vector<std::string> golden_folders_without_family();
/// Every GGUF file that has answers beside it, by name.
std::vector<Golden> golden_files();

/// Of them, those whose answers have `key`.
std::vector<Golden> having(const char* key, std::vector<Golden> goldens);
/// Each with every number of ranks.
std::vector<std::tuple<Golden, int>> with_ranks(const std::vector<Golden>& goldens);

/// As part of a test's name.
std::string test_name(const Golden& golden);
std::string test_name(const Golden& golden, int ranks);

/// All values of a tensor of fp32. @throws std::runtime_error if there is none of this name.
std::vector<float> golden_values(const engine::WeightSource& source, const std::string& name);
/// NaN if a difference is. @throws std::runtime_error if the sizes differ.
float largest_difference(const std::vector<float>& got, const std::vector<float>& expected);

}  // namespace lockstep::test
