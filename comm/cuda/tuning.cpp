#include "comm/cuda/tuning.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <fstream>
#include <sstream>
#include <stdexcept>

namespace lockstep::comm::cuda {
namespace {

constexpr std::array<std::string_view, 4> transport_names = {"one_shot", "two_shot", "nccl_gather", "nccl_slices"};

[[noreturn]] void refuse(const std::string& name, std::size_t line, const std::string& what) {
  throw std::runtime_error(name + ":" + std::to_string(line) + ": " + what);
}

std::vector<std::string_view> words_of(std::string_view line) {
  std::vector<std::string_view> words;
  line = line.substr(0, line.find('#'));
  constexpr std::string_view spaces = " \t\r";
  while (true) {
    const std::size_t begin = line.find_first_not_of(spaces);
    if (begin == std::string_view::npos) return words;
    const std::size_t end = std::min(line.find_first_of(spaces, begin), line.size());
    words.push_back(line.substr(begin, end - begin));
    line.remove_prefix(end);
  }
}

TransportTable::Entry parse_entry(const std::vector<std::string_view>& words, const std::string& name, std::size_t line) {
  if (words.size() != 2) refuse(name, line, "expected \"SIZE_BYTES TRANSPORT\", found " + std::to_string(words.size()) + " words");
  TransportTable::Entry entry;
  const auto [end, error] = std::from_chars(words[0].data(), words[0].data() + words[0].size(), entry.from_bytes);
  if (error != std::errc() || end != words[0].data() + words[0].size())
    refuse(name, line, "\"" + std::string(words[0].substr(0, 80)) + "\" is not a size in bytes");
  const auto found = std::find(transport_names.begin(), transport_names.end(), words[1]);
  if (found == transport_names.end()) {
    std::string known;
    for (const std::string_view each : transport_names) known += (known.empty() ? "" : ", ") + std::string(each);
    refuse(name, line, "there is no transport \"" + std::string(words[1].substr(0, 80)) + "\"; there are " + known);
  }
  entry.transport = static_cast<Transport>(found - transport_names.begin());
  return entry;
}

}  // namespace

std::string_view name_of(Transport transport) { return transport_names.at(static_cast<std::size_t>(transport)); }

bool needs_mapped_memory(Transport transport) { return transport == Transport::kOneShot || transport == Transport::kTwoShot; }

Transport TransportTable::choose(std::size_t bytes) const {
  const auto behind =
      std::upper_bound(entries.begin(), entries.end(), bytes, [](std::size_t size, const Entry& entry) { return size < entry.from_bytes; });
  return std::prev(behind)->transport;
}

bool TransportTable::uses_mapped_memory() const {
  return std::any_of(entries.begin(), entries.end(), [](const Entry& entry) { return needs_mapped_memory(entry.transport); });
}

bool TransportTable::uses_nccl() const {
  return std::any_of(entries.begin(), entries.end(), [](const Entry& entry) { return !needs_mapped_memory(entry.transport); });
}

TransportTable built_in_table(bool mapped_memory) {
  constexpr std::size_t kib = 1024, mib = 1024 * kib;
  if (mapped_memory) return {{{0, Transport::kOneShot}, {mib, Transport::kTwoShot}, {32 * mib, Transport::kNcclSlices}}};
  return {{{0, Transport::kNcclGather}, {512 * kib, Transport::kNcclSlices}}};
}

TransportTable parse_table(std::string_view text, const std::string& name) {
  TransportTable table;
  std::size_t line = 0;
  while (!text.empty()) {
    ++line;
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::vector<std::string_view> words = words_of(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
    if (words.empty()) continue;
    const TransportTable::Entry entry = parse_entry(words, name, line);
    if (table.entries.empty() && entry.from_bytes != 0) refuse(name, line, "the first size must be 0, not " + std::string(words[0]));
    if (!table.entries.empty() && entry.from_bytes <= table.entries.back().from_bytes)
      refuse(name, line, "sizes must ascend: " + std::string(words[0]) + " comes after " + std::to_string(table.entries.back().from_bytes));
    table.entries.push_back(entry);
  }
  if (table.entries.empty()) refuse(name, line, "there is no entry; expected lines \"SIZE_BYTES TRANSPORT\"");
  return table;
}

TransportTable read_table(const std::filesystem::path& file) {
  std::ifstream stream(file, std::ios::binary);
  std::stringstream text;
  if (stream) text << stream.rdbuf();
  if (!stream) throw std::runtime_error(file.string() + ": cannot be read (a table of transports, as `lockstep bench comm` writes it)");
  return parse_table(text.str(), file.string());
}

std::string format_table(const TransportTable& table, std::string_view comment) {
  std::ostringstream text;
  std::istringstream lines{std::string(comment)};
  for (std::string line; std::getline(lines, line);) text << "# " << line << '\n';
  for (const TransportTable::Entry& entry : table.entries) text << entry.from_bytes << ' ' << name_of(entry.transport) << '\n';
  return text.str();
}

void write_table(const std::filesystem::path& file, const TransportTable& table, std::string_view comment) {
  std::ofstream stream(file, std::ios::binary | std::ios::trunc);
  stream << format_table(table, comment);
  stream.close();
  if (!stream) throw std::runtime_error(file.string() + ": cannot be written");
}

}  // namespace lockstep::comm::cuda
