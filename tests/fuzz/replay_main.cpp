// Runs a fuzz target without libFuzzer: every file of the corpus folder, then a fixed number of seeded mutations of each.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace {

using Bytes = std::vector<std::uint8_t>;

Bytes mutate(Bytes bytes, std::mt19937& random) {
  if (bytes.empty()) return bytes;
  const auto position = [&] { return random() % bytes.size(); };
  for (unsigned count = 1 + random() % 8; count > 0; --count) {
    switch (random() % 4) {
      case 0: bytes[position()] ^= static_cast<std::uint8_t>(1u << (random() % 8)); break;
      case 1: bytes[position()] = static_cast<std::uint8_t>(random()); break;
      case 2: bytes.resize(std::max<std::size_t>(1, position())); break;
      default: bytes.insert(bytes.begin() + static_cast<std::ptrdiff_t>(position()), static_cast<std::uint8_t>(random())); break;
    }
  }
  return bytes;
}

}  // namespace

int main(int argc, char** argv) {
  constexpr int kMutationsPerFile = 200;
  if (argc != 2) {
    std::fprintf(stderr, "usage: %s CORPUS_FOLDER\n", argv[0]);
    return 2;
  }
  std::vector<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::directory_iterator(argv[1])) paths.push_back(entry.path());
  std::sort(paths.begin(), paths.end());
  if (paths.empty()) {
    std::fprintf(stderr, "%s: no seed files in %s\n", argv[0], argv[1]);
    return 1;
  }
  std::mt19937 random(1);
  for (const auto& path : paths) {
    std::ifstream file(path, std::ios::binary);
    const Bytes bytes{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
    LLVMFuzzerTestOneInput(bytes.data(), bytes.size());
    for (int i = 0; i < kMutationsPerFile; ++i) {
      const Bytes mutated = mutate(bytes, random);
      LLVMFuzzerTestOneInput(mutated.data(), mutated.size());
    }
  }
  std::printf("%zu files, %d mutations each\n", paths.size(), kMutationsPerFile);
  return 0;
}
