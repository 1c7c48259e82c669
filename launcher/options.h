#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "engine/io/usage_error.h"
#include "launcher/run_config.h"

namespace lockstep::launcher {

/// A flag, key or value that can not be used. The message names it; the program prints it and exits with 2.
using engine::UsageError;

enum class OptionKind : std::uint8_t { kText, kInteger, kReal, kSwitch, kBytes, kTexts, kIntegers };

using Scalar = std::variant<bool, std::int64_t, double, std::string>;

/// One setting, whichever way it is given: `--max-model-len 4096` on the command line is `max_model_len = 4096` in a file.
struct Option {
  std::string name;   // the long flag, without its dashes
  std::string alias;  // the short form: "m", "tp"; empty: none
  OptionKind kind = OptionKind::kText;
  std::vector<Subcommand> used_by;
  std::string group;       // heading in the help; empty: hidden
  std::string value_name;  // "FILE"
  std::string help;
  /// Stores values of the right kind. Texts and integers lists get all values at once, the others the last one given.
  /// @throws UsageError saying what is wrong with the value, without the name of the option.
  std::function<void(RunConfig&, std::span<const Scalar>)> store;

  bool takes_many() const { return kind == OptionKind::kTexts || kind == OptionKind::kIntegers; }
  std::string key() const;  // the name with underscores
};

/// Every option of the program, in the order of the help.
std::vector<Option> all_options();

std::string_view subcommand_name(Subcommand subcommand);

/// The value that a flag's text stands for. Bytes take the suffixes K, M, G, T (powers of 1024; a trailing B or iB is fine).
/// @throws UsageError without the name of the option.
std::vector<Scalar> values_from_text(OptionKind kind, const std::string& text);

/// What a value of this kind is called in messages: "a whole number".
std::string_view kind_name(OptionKind kind);

/// The candidate with the fewest typing errors between it and `name`, if that is few enough to be what was meant; else empty.
std::string nearest_name(std::string_view name, std::span<const std::string> candidates);

/// What no single option can check: options that contradict or need each other.
/// @throws UsageError
void check_consistency(const RunConfig& config);

}  // namespace lockstep::launcher
