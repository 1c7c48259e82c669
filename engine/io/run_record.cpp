#include "engine/io/run_record.h"

#include <charconv>
#include <fstream>
#include <iterator>
#include <limits>
#include <type_traits>
#include <utility>

#include <nlohmann/json.hpp>

#include "engine/io/file_descriptor.h"
#include "engine/io/stable_hash.h"
#include "engine/io/usage_error.h"

namespace lockstep::engine {
namespace {

constexpr int kFormat = 1;
constexpr std::size_t kFingerprintDigits = 8;

std::string to_text(const std::vector<std::uint32_t>& fingerprints) {
  std::string text;
  text.reserve(fingerprints.size() * kFingerprintDigits);
  for (const std::uint32_t fingerprint : fingerprints) text.append(hex_digits(fingerprint), 16 - kFingerprintDigits, kFingerprintDigits);
  return text;
}

std::vector<std::uint32_t> to_fingerprints(const std::string& text) {
  std::vector<std::uint32_t> fingerprints(text.size() / kFingerprintDigits);
  for (std::size_t i = 0; i < fingerprints.size(); ++i) {
    const char* const begin = text.data() + i * kFingerprintDigits;
    if (std::from_chars(begin, begin + kFingerprintDigits, fingerprints[i], 16).ptr != begin + kFingerprintDigits) {
      throw UsageError("line_fingerprints is not made of hexadecimal digits");
    }
  }
  return fingerprints;
}

[[noreturn]] void refuse(const std::string& name, const std::string& then, const std::string& now) {
  throw UsageError("--resume: " + name + " was " + then + " when the job was started, and is " + now + " now");
}

/// A number that does not fit is refused: the library would turn it into another.
template <class Number>
void read_number(const nlohmann::json& json, const char* key, Number& number) {
  const nlohmann::json& value = json.at(key);
  bool fits = value.is_number_unsigned();
  if constexpr (std::is_signed_v<Number>) {
    fits = value.is_number_integer() && (!fits || value.get<std::uint64_t>() <= std::uint64_t{std::numeric_limits<Number>::max()});
  }
  if (!fits) throw UsageError(std::string(key) + " is " + value.dump() + ", which is no whole number that it can be");
  value.get_to(number);
}

std::string quoted(const std::string& text) { return "\"" + text + "\""; }

}  // namespace

std::uint32_t line_fingerprint(std::uint64_t line_number, std::uint64_t text_fingerprint) {
  return static_cast<std::uint32_t>(mix_bits(text_fingerprint ^ mix_bits(line_number)));
}

void write_run_record(const std::filesystem::path& path, const RunRecord& record) {
  nlohmann::ordered_json json;
  json["format"] = kFormat;
  json["seed"] = record.seed;
  json["start_time"] = record.start_time;
  json["template_time"] = record.template_time;
  json["model_hash"] = record.model_hash;
  json["numerics_version"] = record.numerics_version;
  json["settings"] = record.settings;
  json["input_file"] = record.input_file;
  if (record.line_fingerprints) {
    json["request_lines"] = record.line_fingerprints->size();
    json["line_fingerprints"] = to_text(*record.line_fingerprints);
  }
  replace_file(path, json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n");
}

RunRecord read_run_record(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw UsageError(path.string() + ": can not be opened");
  try {
    const auto json = nlohmann::json::parse(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
    if (json.at("format") != kFormat) throw UsageError("format is " + json.at("format").dump() + ", not " + std::to_string(kFormat));
    RunRecord record;
    read_number(json, "seed", record.seed);
    read_number(json, "start_time", record.start_time);
    read_number(json, "template_time", record.template_time);
    json.at("model_hash").get_to(record.model_hash);
    read_number(json, "numerics_version", record.numerics_version);
    json.at("settings").get_to(record.settings);
    json.at("input_file").get_to(record.input_file);
    if (json.contains("line_fingerprints")) {
      record.line_fingerprints = to_fingerprints(json.at("line_fingerprints").get_ref<const std::string&>());
    }
    return record;
  } catch (const nlohmann::json::exception& error) {
    throw UsageError(path.string() + ": is not the record of a job: " + error.what());
  } catch (const UsageError& error) {
    throw UsageError(path.string() + ": is not the record of a job: " + error.what());
  }
}

void check_same_settings(const RunRecord& record, const std::string& model_hash, std::uint64_t numerics_version,
                         const std::map<std::string, std::string>& settings, bool partly) {
  if (record.numerics_version != numerics_version) {
    refuse("the numerics version", std::to_string(record.numerics_version), std::to_string(numerics_version));
  }
  if (record.model_hash != model_hash && !(partly && model_hash.empty())) refuse("the model", record.model_hash, model_hash);
  for (const auto& [name, then] : record.settings) {
    const auto now = settings.find(name);
    if (now == settings.end() && !partly) refuse(name, quoted(then), "not given");
    if (now != settings.end() && now->second != then) refuse(name, quoted(then), quoted(now->second));
  }
  for (const auto& [name, now] : settings) {
    if (!record.settings.contains(name)) refuse(name, "not given", quoted(now));
  }
}

}  // namespace lockstep::engine
