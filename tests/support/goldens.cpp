#include "tests/support/goldens.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <stdexcept>

#include "engine/model/registry.h"

namespace lockstep::test {
namespace {

namespace fs = std::filesystem;

nlohmann::json read_json(const fs::path& path) {
  std::ifstream file(path);
  if (!file) throw std::runtime_error(path.string() + ": can not be opened");
  return nlohmann::json::parse(file);
}

std::vector<fs::path> entries_of(const fs::path& folder) {
  std::vector<fs::path> entries;
  for (const auto& entry : fs::directory_iterator(folder)) entries.push_back(entry.path());
  std::sort(entries.begin(), entries.end());
  return entries;
}

bool has_family(const fs::path& folder) {
  const std::string architecture = read_json(folder / "config.json").at("model_type").get<std::string>();
  return std::ranges::any_of(engine::all_families(), [&](const engine::Family* family) { return family->architecture == architecture; });
}

/// Also those of the tree that the wider set does not have.
std::vector<fs::path> model_folders() {
  std::vector<fs::path> folders = entries_of(golden_root() / "models");
  for (const fs::path& own : entries_of(fs::path(LOCKSTEP_TEST_DATA) / "models"))
    if (!fs::exists(golden_root() / "models" / own.filename())) folders.push_back(own);
  std::erase_if(folders, [](const fs::path& path) { return !fs::exists(path / "config.json"); });
  return folders;
}

/// Where a folder's answers are: some models have the same weights in other files.
fs::path answers_of(const fs::path& folder) {
  if (!fs::exists(folder / "golden.json")) return folder;
  const nlohmann::json answers = read_json(folder / "golden.json");
  return answers.contains("same_as") ? folder.parent_path() / answers["same_as"].get<std::string>() : folder;
}

}  // namespace

nlohmann::json Golden::answers() const { return read_json(json); }

void PrintTo(const Golden& golden, std::ostream* out) { *out << golden.name; }

fs::path golden_root() {
  const char* wider = std::getenv("LOCKSTEP_GOLDENS");
  return wider != nullptr ? fs::path(wider) : fs::path(LOCKSTEP_TEST_DATA);
}

std::vector<Golden> golden_folders() {
  std::vector<Golden> found;
  for (const fs::path& folder : model_folders()) {
    if (!has_family(folder)) continue;
    const fs::path answers = answers_of(folder);
    found.push_back({.name = folder.filename().string(),
                     .model = folder,
                     .json = answers / "golden.json",
                     .logits = answers / "golden_logits.safetensors",
                     .hidden = answers / "golden_hidden.safetensors",
                     .rotary = answers / "golden_rope.safetensors"});
  }
  return found;
}

std::vector<std::string> golden_folders_without_family() {
  std::vector<std::string> names;
  for (const fs::path& folder : model_folders()) {
    if (!has_family(folder)) names.push_back(folder.filename().string());
  }
  return names;
}

std::vector<Golden> golden_files() {
  const fs::path root = golden_root() / "gguf";
  std::vector<Golden> found;
  for (const fs::path& path : entries_of(fs::exists(root / "models") ? root / "models" : root)) {
    const std::string stem = (path.parent_path() / path.stem()).string();
    if (path.extension() != ".gguf" || !fs::exists(stem + ".golden.json")) continue;
    found.push_back({.name = path.stem().string(), .model = path, .json = stem + ".golden.json", .logits = stem + ".golden.safetensors"});
    // Blocks of 32 and heads of 16: two heads a leaf, two leaves.
    if (found.back().name == "qwen2-Q8_0") found.back().max_ranks = 2;
  }
  return found;
}

std::vector<Golden> having(const char* key, std::vector<Golden> goldens) {
  std::erase_if(goldens, [&](const Golden& golden) { return !fs::exists(golden.json) || !golden.answers().contains(key); });
  return goldens;
}

std::vector<std::tuple<Golden, int>> with_ranks(const std::vector<Golden>& goldens) {
  std::vector<std::tuple<Golden, int>> cases;
  for (const Golden& golden : goldens) {
    for (int ranks = 1; ranks <= golden.max_ranks; ++ranks) cases.emplace_back(golden, ranks);
  }
  return cases;
}

std::string test_name(const Golden& golden) {
  std::string name = golden.name;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

std::string test_name(const Golden& golden, int ranks) { return test_name(golden) + "_ranks" + std::to_string(ranks); }

std::vector<float> golden_values(const engine::WeightSource& source, const std::string& name) {
  const engine::StoredTensor* tensor = source.find(name);
  if (tensor == nullptr) throw std::runtime_error("no golden tensor " + name);
  std::vector<float> values(tensor->bytes / sizeof(float));
  source.read(*tensor, 0, std::as_writable_bytes(std::span(values)));
  return values;
}

float largest_difference(const std::vector<float>& got, const std::vector<float>& expected) {
  if (got.size() != expected.size())
    throw std::runtime_error(std::to_string(got.size()) + " values, not " + std::to_string(expected.size()));
  float largest = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const float difference = std::fabs(got[i] - expected[i]);
    if (std::isnan(difference)) return difference;
    largest = std::max(largest, difference);
  }
  return largest;
}

}  // namespace lockstep::test
