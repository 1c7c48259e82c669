#include "launcher/cli.h"

#include <algorithm>
#include <map>
#include <memory>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "launcher/config_file.h"

namespace lockstep::launcher {
namespace {

constexpr Subcommand kSubcommands[] = {Subcommand::kBatch,   Subcommand::kGenerate, Subcommand::kScore,
                                       Subcommand::kInspect, Subcommand::kBench,    Subcommand::kQuantize};

std::string describe(Subcommand subcommand) {
  switch (subcommand) {
    case Subcommand::kBatch: return "answer a file of requests";
    case Subcommand::kGenerate: return "continue one prompt";
    case Subcommand::kInspect: return "show a model and how ranks would share it";
    case Subcommand::kScore: return "perplexity of a text, log-likelihoods of continuations";
    case Subcommand::kBench:
      return "measure prefill, decode and batch speed; bench latency, bench throughput: requests end to end; bench comm: the sums between "
             "ranks";
    case Subcommand::kQuantize: return "turn a model into a GGUF file: lockstep quantize IN OUT --type TYPE";
  }
  return {};
}

bool applies_to(const Option& option, Subcommand subcommand) {
  return std::find(option.used_by.begin(), option.used_by.end(), subcommand) != option.used_by.end();
}

const Option* find_flag(std::span<const Option> options, std::string_view name) {
  for (const Option& option : options) {
    if (option.name == name) return &option;
  }
  return nullptr;
}

/// Brings arguments into the form that CLI11 knows: `-tp` becomes its long flag, underscores in flags become dashes. Values are left alone.
std::vector<std::string> normalise(std::span<const std::string> arguments, std::span<const Option> options) {
  std::vector<std::string> normal;
  bool is_value = false;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    std::string argument = arguments[i];
    if (argument == "--" && !is_value) {
      normal.insert(normal.end(), arguments.begin() + static_cast<std::ptrdiff_t>(i), arguments.end());
      break;
    }
    if (is_value || argument.size() < 2 || argument[0] != '-') {
      is_value = false;
      normal.push_back(std::move(argument));
      continue;
    }
    const std::size_t name_end = std::min(argument.find('='), argument.size());
    if (argument[1] == '-') {
      std::replace(argument.begin() + 2, argument.begin() + static_cast<std::ptrdiff_t>(name_end), '_', '-');
      const std::string name = argument.substr(2, name_end - 2);
      const Option* option = find_flag(options, name);
      is_value = name_end == argument.size() && (name == "config" || (option != nullptr && option->kind != OptionKind::kSwitch));
    } else {
      for (const Option& option : options) {
        if (option.alias.empty() || argument.substr(1, name_end - 1) != option.alias) continue;
        argument = "--" + option.name + argument.substr(name_end);
        is_value = argument.find('=') == std::string::npos;
        break;
      }
    }
    normal.push_back(std::move(argument));
  }
  return normal;
}

struct Registered {
  const Option* option;
  CLI::Option* flag;
};

/// Adds the options of a subcommand. Values stay texts here: the table reads them, for flags and files alike.
std::vector<Registered> register_options(CLI::App& app, Subcommand subcommand, std::span<const Option> options) {
  std::vector<Registered> registered;
  for (const Option& option : options) {
    if (!applies_to(option, subcommand)) continue;
    std::string names = "--" + option.name;
    if (option.alias.size() == 1) names.insert(0, "-" + option.alias + ",");
    CLI::Option* flag = nullptr;
    if (option.kind == OptionKind::kSwitch) {
      flag = app.add_flag(names + ",!--no-" + option.name, option.help);
    } else {
      flag = app.add_option(
          names, [](const CLI::results_t&) { return true; }, option.help);
      flag->expected(1)->type_name(option.value_name)->allow_extra_args(false)->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
    }
    flag->group(option.group);
    registered.push_back({&option, flag});
  }
  return registered;
}

[[noreturn]] void refuse_unknown(const std::string& argument, Subcommand subcommand, std::span<const Option> options) {
  if (!argument.starts_with('-')) throw UsageError(fmt::format("'{}' is not a flag", argument));
  const std::string name = argument.substr(0, argument.find('='));
  std::vector<std::string> known = {"--config", "--help"};
  for (const Option& option : options) {
    if (applies_to(option, subcommand) && !option.group.empty()) known.push_back("--" + option.name);
    if ("--" + option.name == name) throw UsageError(fmt::format("{} is not for lockstep {}", name, subcommand_name(subcommand)));
  }
  const std::string nearest = nearest_name(name, known);
  throw UsageError(nearest.empty() ? fmt::format("there is no flag {}", name)
                                   : fmt::format("there is no flag {}; did you mean {}?", name, nearest));
}

void store_flag(const Registered& entry, RunConfig& config) {
  std::vector<Scalar> values;
  try {
    for (const std::string& text : entry.flag->results()) {
      const std::vector<Scalar> more = values_from_text(entry.option->kind, text);
      values.insert(values.end(), more.begin(), more.end());
    }
    entry.option->store(config, values);
  } catch (const UsageError& error) {
    throw UsageError(fmt::format("--{}: {}", entry.option->name, error.what()));
  }
}

[[noreturn]] void refuse_subcommand(const std::string& name) {
  std::vector<std::string> known;
  for (const Subcommand subcommand : kSubcommands) known.emplace_back(subcommand_name(subcommand));
  const std::string nearest = nearest_name(name, known);
  throw UsageError(
      fmt::format("there is no subcommand {}; {}", name,
                  nearest.empty() ? fmt::format("they are {}", fmt::join(known, ", ")) : fmt::format("did you mean {}?", nearest)));
}

}  // namespace

CommandLine parse_command_line(std::span<const std::string> arguments, const Environment& environment) {
  const std::vector<Option> options = all_options();
  CLI::App app("Tensor-parallel inference with the same bits on any number of ranks", "lockstep");
  app.footer("lockstep SUBCOMMAND --help shows the flags of one.");
  CommandLine result;
  app.add_flag("--version", result.version, "print commit, numerics version, instruction sets and MPI library");
  app.allow_extras();

  std::string config_file;
  std::map<const CLI::App*, std::pair<Subcommand, std::vector<Registered>>> subcommands;
  for (const Subcommand subcommand : kSubcommands) {
    CLI::App* sub = app.add_subcommand(std::string(subcommand_name(subcommand)), describe(subcommand));
    sub->allow_extras();
    sub->add_option("--config", config_file, "TOML file of settings; flags go before it")
        ->type_name("FILE")
        ->allow_extra_args(false)
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
    subcommands[sub] = {subcommand, register_options(*sub, subcommand, options)};
  }

  std::vector<std::string> reversed = normalise(arguments, options);
  std::reverse(reversed.begin(), reversed.end());  // as CLI11 takes them
  try {
    app.parse(reversed);
  } catch (const CLI::CallForHelp&) {
    const auto chosen = app.get_subcommands();
    result.help = chosen.empty() ? app.help() : chosen.front()->help();
    return result;
  } catch (const CLI::ParseError& error) {
    throw UsageError(error.what());
  }
  if (result.version) return result;
  const auto chosen = app.get_subcommands();
  if (chosen.empty()) {
    const auto extras = app.remaining();
    if (extras.empty()) throw UsageError("a subcommand is missing: batch, generate, score, inspect, bench or quantize (lockstep --help)");
    if (extras.front().starts_with('-'))
      throw UsageError(fmt::format("{}: flags stand behind the subcommand (lockstep --help)", extras.front()));
    refuse_subcommand(extras.front());
  }
  if (chosen.size() > 1)
    throw UsageError(fmt::format("one subcommand at a time, not {} and {}", chosen[0]->get_name(), chosen[1]->get_name()));
  const auto& [subcommand, registered] = subcommands.at(chosen.front());
  auto extras = app.remaining(true);
  constexpr std::pair<std::string_view, BenchKind> kKinds[] = {
      {"comm", BenchKind::kComm}, {"latency", BenchKind::kLatency}, {"throughput", BenchKind::kThroughput}};
  for (const auto& [name, kind] : kKinds) {
    if (subcommand != Subcommand::kBench || extras.empty() || extras.front() != name) continue;
    result.config.bench = kind;
    extras.erase(extras.begin());
    break;
  }
  if (subcommand == Subcommand::kQuantize) {
    for (std::string RunConfig::*field : {&RunConfig::model, &RunConfig::quantize_output}) {
      if (extras.empty() || extras.front().starts_with('-')) break;
      result.config.*field = extras.front();
      extras.erase(extras.begin());
    }
  }
  if (!extras.empty()) refuse_unknown(extras.front(), subcommand, options);

  result.config.subcommand = subcommand;
  if (const char* instruction_set = environment("LOCKSTEP_ISA")) result.config.instruction_set = instruction_set;
  if (const char* plugin = environment("LOCKSTEP_CUDA_PLUGIN")) result.config.cuda_plugin = plugin;
  if (!config_file.empty()) apply_config_file(config_file, options, result.config);
  for (const Registered& entry : registered) {
    if (entry.flag->count() > 0) store_flag(entry, result.config);
  }
  check_consistency(result.config);
  return result;
}

}  // namespace lockstep::launcher
