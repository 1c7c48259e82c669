#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::comm::cuda {

/// How an all_reduce between GPUs travels. See comm/cuda/README.md.
enum class Transport : std::uint8_t {
  kOneShot,     // mapped memory: every rank reads all roots and adds up everything
  kTwoShot,     // mapped memory: each rank adds up a slice, all read the slices
  kNcclGather,  // NCCL brings all roots to everybody, who add up everything
  kNcclSlices,  // NCCL brings each rank the roots of its slice, and then the finished slices to everybody
};

/// "one_shot", "two_shot", "nccl_gather", "nccl_slices".
std::string_view name_of(Transport transport);
bool needs_mapped_memory(Transport transport);

/// Which transport for which size. The size of an all_reduce is that of all its roots together, in bytes: 4 * count * roots.
struct TransportTable {
  struct Entry {
    std::size_t from_bytes = 0;
    Transport transport = Transport::kOneShot;
    bool operator==(const Entry&) const = default;
  };
  std::vector<Entry> entries;  // ascending; the first begins at 0

  Transport choose(std::size_t bytes) const;
  bool uses_mapped_memory() const;
  bool uses_nccl() const;
  bool operator==(const TransportTable&) const = default;
};

/// What is used without a file: for ranks that can map each other's memory, or not.
TransportTable built_in_table(bool mapped_memory);

/// A file has one line an entry, "SIZE_BYTES TRANSPORT", ascending sizes, the first 0; '#' begins a comment. @throws std::runtime_error
/// that names the file, the line and what is wrong with it.
TransportTable read_table(const std::filesystem::path& file);
TransportTable parse_table(std::string_view text, const std::string& name);
/// What read_table reads; `comment` (lines without '#') comes first.
std::string format_table(const TransportTable& table, std::string_view comment);
/// @throws std::runtime_error that names the file.
void write_table(const std::filesystem::path& file, const TransportTable& table, std::string_view comment);

}  // namespace lockstep::comm::cuda
