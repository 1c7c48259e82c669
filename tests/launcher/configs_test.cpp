// The configuration files that are installed with the program.
#include <filesystem>
#include <fstream>
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "launcher/config_file.h"

namespace lockstep::launcher {
namespace {

const std::filesystem::path kConfigs = std::filesystem::path(LOCKSTEP_TEST_DATA).parent_path().parent_path() / "configs";

std::string contents(const std::filesystem::path& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

TEST(Configs, AreAllAccepted) {
  std::size_t count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(kConfigs)) {
    RunConfig config;
    EXPECT_NO_THROW(apply_config_file(entry.path().string(), all_options(), config)) << entry.path();
    ++count;
  }
  EXPECT_GE(count, 2u);
}

TEST(Configs, DefaultTomlChangesNothing) {
  RunConfig config;
  apply_config_file(kConfigs / "default.toml", all_options(), config);
  EXPECT_TRUE(config == RunConfig{});
}

TEST(Configs, DefaultTomlNamesEveryKey) {
  const std::string text = "\n" + contents(kConfigs / "default.toml");
  for (const Option& option : all_options()) {
    if (option.group.empty()) continue;  // hidden
    EXPECT_TRUE(text.find("\n" + option.key() + " = ") != std::string::npos ||
                text.find("\n# " + option.key() + " = ") != std::string::npos)
        << option.key();
  }
}

}  // namespace
}  // namespace lockstep::launcher
