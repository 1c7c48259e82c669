#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string_view>
#include <utility>

namespace lockstep::engine {

/// An open file: closed with the object. Every failure is a std::runtime_error that names the file and the reason.
class FileDescriptor {
 public:
  FileDescriptor() = default;
  FileDescriptor(std::filesystem::path path, int flags);
  ~FileDescriptor();
  FileDescriptor(FileDescriptor&& other) noexcept : path_(std::move(other.path_)), descriptor_(std::exchange(other.descriptor_, -1)) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    std::swap(path_, other.path_);
    std::swap(descriptor_, other.descriptor_);
    return *this;
  }

  const std::filesystem::path& path() const { return path_; }
  void write_at(std::uint64_t offset, std::string_view bytes) const;
  void read_at(std::uint64_t offset, char* to, std::size_t count) const;
  void truncate(std::uint64_t size) const;
  std::uint64_t size() const;
  void sync() const;
  /// Takes the advisory lock of the file. False if another process has it.
  bool try_lock() const;
  /// Whether `path()` still names this open file.
  bool still_named() const;
  void rename_to(const std::filesystem::path& to);

 private:
  [[noreturn]] void fail(std::string_view what) const;

  std::filesystem::path path_;
  int descriptor_ = -1;
};

/// Makes renames and removals in the folder of `path` last.
void sync_folder_of(const std::filesystem::path& path);
/// Writes a whole file so that it is there completely or not at all.
void replace_file(const std::filesystem::path& path, std::string_view content);
/// `path` with `suffix` behind its name.
std::filesystem::path with_suffix(const std::filesystem::path& path, std::string_view suffix);

}  // namespace lockstep::engine
