// The rules of the house that no compiler checks: includes go down, and nothing that is committed depends on the machine it was written on.
#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

const fs::path kRoot = fs::path(LOCKSTEP_TEST_DATA).parent_path().parent_path();

/// Lowest first: a room may include itself and those before it.
constexpr std::array<std::string_view, 5> kRooms = {"device", "comm", "parallel", "engine", "launcher"};

std::size_t floor_of(std::string_view room) {
  return static_cast<std::size_t>(std::find(kRooms.begin(), kRooms.end(), room) - kRooms.begin());  // kRooms.size(): no room
}

std::string contents(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

/// Files below `folder`, without what builds and Git leave there.
std::vector<fs::path> files_below(const fs::path& folder) {
  static const std::set<std::string> skipped = {"build", ".git", ".cache"};
  std::vector<fs::path> files;
  for (auto entry = fs::recursive_directory_iterator(folder); entry != fs::recursive_directory_iterator(); ++entry) {
    const std::string name = entry->path().filename().string();
    if (entry->is_directory() && (skipped.contains(name) || name.starts_with("build-"))) entry.disable_recursion_pending();
    if (entry->is_regular_file() && name != ".git") files.push_back(entry->path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

bool is_source(const fs::path& path) {
  static const std::set<std::string> extensions = {".h", ".cpp", ".inl", ".cu", ".cuh", ".in", ".c", ".hpp"};
  return extensions.contains(path.extension().string());
}

/// "engine/x.cpp:12 includes launcher/y.h" for each include of a file of `room` that points up, or to another file than by "room/file".
std::vector<std::string> wrong_includes(const std::string& name, std::string_view room, const std::string& text) {
  static const std::regex include_line(R"(^\s*#\s*include\s*([<"])([^">]+)[">])");
  std::vector<std::string> wrong;
  std::istringstream lines(text);
  std::size_t number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    std::smatch found;
    if (!std::regex_search(line, found, include_line)) continue;
    const std::string target = found[2];
    const std::string first = target.substr(0, target.find('/'));
    const bool is_tests = first == "tests" || first == "bench";
    const bool points_up = floor_of(first) < kRooms.size() && floor_of(first) > floor_of(room);
    const bool relative = found[1] == "\"" && (target.starts_with("..") || target.starts_with("./"));
    if (points_up || relative || is_tests) wrong.push_back(name + ":" + std::to_string(number) + " includes " + target);
  }
  return wrong;
}

TEST(Includes, GoDownOnly) {
  std::vector<std::string> wrong;
  std::size_t num_files = 0;
  for (const std::string_view room : kRooms) {
    for (const fs::path& path : files_below(kRoot / room)) {
      if (!is_source(path)) continue;
      ++num_files;
      const auto found = wrong_includes(fs::relative(path, kRoot).string(), room, contents(path));
      wrong.insert(wrong.end(), found.begin(), found.end());
    }
  }
  EXPECT_THAT(wrong, IsEmpty());
  EXPECT_GT(num_files, 50u);
}

TEST(Includes, AnArrowThatPointsUpIsFound) {
  const std::string text =
      "#include <vector>\n#include \"device/device.h\"\n  #  include \"launcher/cli.h\"\n#include <engine/session.h>\n#include "
      "\"../x.h\"\n";
  EXPECT_THAT(wrong_includes("comm/a.h", "comm", text),
              ElementsAre("comm/a.h:3 includes launcher/cli.h", "comm/a.h:4 includes engine/session.h", "comm/a.h:5 includes ../x.h"));
  EXPECT_THAT(wrong_includes("launcher/a.h", "launcher", "#include \"device/device.h\"\n#include \"launcher/cli.h\"\n"), IsEmpty());
}

/// The families' names in engine/model: what stands there as `.architecture = "NAME"`.
std::set<std::string> architecture_names() {
  static const std::regex member(R"re(\.architecture = "([a-z0-9_]+)")re");
  std::set<std::string> names;
  for (const fs::path& path : files_below(kRoot / "engine" / "model")) {
    const std::string text = contents(path);
    for (auto found = std::sregex_iterator(text.begin(), text.end(), member); found != std::sregex_iterator(); ++found)
      names.insert((*found)[1]);
  }
  return names;
}

/// String literals of a source that are the name of a family.
std::vector<std::string> named_architectures(const std::string& text, const std::set<std::string>& names) {
  static const std::regex literal(R"re("([a-z0-9_]+)")re");
  std::vector<std::string> found;
  for (auto match = std::sregex_iterator(text.begin(), text.end(), literal); match != std::sregex_iterator(); ++match) {
    if (names.contains((*match)[1])) found.push_back((*match)[1]);
  }
  return found;
}

/// A family is data: nothing outside engine/model asks which it is. (engine/text and what writes
/// vocabularies know the names of kinds of tokenizers.)
TEST(Architectures, AreNamedInEngineModelOnly) {
  const std::set<std::string> names = architecture_names();
  EXPECT_GT(names.size(), 10u);
  std::map<std::string, std::vector<std::string>> found;
  for (const std::string_view room : kRooms) {
    for (const fs::path& path : files_below(kRoot / room)) {
      const std::string name = fs::relative(path, kRoot).string();
      if (!is_source(path) || name.starts_with("engine/model/") || name.starts_with("engine/text/") ||
          name.starts_with("engine/quantise/hf_vocabulary"))
        continue;
      std::vector<std::string> named = named_architectures(contents(path), names);
      if (!named.empty()) found[name] = std::move(named);
    }
  }
  EXPECT_THAT(found, IsEmpty());
  EXPECT_THAT(named_architectures("if (spec.architecture == \"llama\") x = \"llamas\";", {"llama"}), ElementsAre("llama"));
}

TEST(Rooms, EachHasAPage) {
  for (const std::string_view room : kRooms) EXPECT_TRUE(fs::exists(kRoot / room / "README.md")) << room;
}

/// What no committed file may name: places of one machine, and hosts of registries (the ordinary clients know theirs). Spelled in pieces,
/// so that this file passes.
std::vector<std::string> forbidden_texts() {
  const std::string slash = "/";
  return {slash + "work" + slash,
          slash + "root" + slash,
          slash + "home" + slash,
          slash + "opt" + slash + "wheels",
          "pypi" + std::string(".org"),
          "python" + std::string("hosted.org"),
          "deb.debian" + std::string(".org"),
          "hugging" + std::string("face.co")};
}

std::vector<std::string> machine_names(const std::string& text) {
  std::vector<std::string> found;
  for (const std::string& name : forbidden_texts()) {
    for (std::size_t at = text.find(name); at != std::string::npos; at = text.find(name, at + 1)) {
      const bool is_path = name.front() == '/';
      const bool begins_here = at == 0 || (std::isalnum(static_cast<unsigned char>(text[at - 1])) == 0 &&
                                           std::string_view("._-}~)$/").find(text[at - 1]) == std::string::npos);
      if (!is_path || begins_here) found.push_back(name);
    }
  }
  return found;
}

TEST(Files, NameNoPlaceOfOneMachine) {
  std::map<std::string, std::vector<std::string>> found;
  for (const fs::path& path : files_below(kRoot)) {
    if (path.string().starts_with(LOCKSTEP_TEST_DATA) || fs::file_size(path) > (1u << 20)) continue;
    std::vector<std::string> names = machine_names(contents(path));
    if (!names.empty()) found[fs::relative(path, kRoot).string()] = std::move(names);
  }
  EXPECT_THAT(found, IsEmpty());
}

TEST(Files, APlaceOfOneMachineIsFound) {
  const std::string slash = "/";
  EXPECT_THAT(machine_names("data = \"" + slash + "home" + slash + "me/x\""), ElementsAre(slash + "home" + slash));
  EXPECT_THAT(machine_names("docs" + slash + "home" + slash + "index.md"), IsEmpty());
}

TEST(Docs, NameTestsThatExist) {
  std::set<std::string> tests;
  static const std::regex declaration(R"(TEST(?:_F|_P)?\((\w+), (\w+)\))");
  for (const fs::path& path : files_below(kRoot / "tests")) {
    if (path.extension() != ".cpp") continue;
    const std::string text = contents(path);
    for (std::sregex_iterator found(text.begin(), text.end(), declaration), end; found != end; ++found)
      tests.insert((*found)[1].str() + "." + (*found)[2].str());
  }
  static const std::regex named(R"(`([A-Z]\w+\.[A-Z]\w+)`)");
  const std::string table = contents(kRoot / "docs" / "field-faults.md");
  std::vector<std::string> missing;
  std::size_t count = 0;
  for (std::sregex_iterator found(table.begin(), table.end(), named), end; found != end; ++found, ++count) {
    if (!tests.contains((*found)[1].str())) missing.push_back((*found)[1].str());
  }
  EXPECT_GT(count, 34u) << "one for each fault";
  EXPECT_THAT(missing, IsEmpty());
}

/// Sources of a size that one reads in a sitting. Tests may be longer.
TEST(Files, AreNotTooLong) {
  std::vector<std::string> too_long;
  for (const std::string_view room : kRooms) {
    for (const fs::path& path : files_below(kRoot / room)) {
      const std::string text = contents(path);
      const auto num_lines = std::count(text.begin(), text.end(), '\n');
      if (is_source(path) && num_lines > 600)
        too_long.push_back(fs::relative(path, kRoot).string() + ": " + std::to_string(num_lines) + " lines");
    }
  }
  EXPECT_THAT(too_long, IsEmpty());
}

}  // namespace
