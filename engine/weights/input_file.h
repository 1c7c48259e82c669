#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

namespace lockstep::engine {

/// A file that is open for reading at any place. Its size is that of the moment when it was opened. Thread-safe.
class InputFile {
 public:
  /// @throws std::runtime_error that names the path if it cannot be opened or is no regular file.
  explicit InputFile(const std::filesystem::path& path);
  /// Takes over an open descriptor. `path` is for messages.
  InputFile(int descriptor, std::filesystem::path path);
  ~InputFile();
  InputFile(InputFile&& other) noexcept;
  InputFile& operator=(InputFile&& other) noexcept;

  const std::filesystem::path& path() const { return path_; }
  std::uint64_t size() const { return size_; }

  /// Fills `to` from `offset` on. `what` is for messages: "tensor 'X'".
  /// @throws std::runtime_error that names path, `what` and offset: behind the end, cut off meanwhile, or an error of the system.
  void read(std::uint64_t offset, std::span<std::byte> to, std::string_view what) const;

 private:
  int descriptor_ = -1;
  std::filesystem::path path_;
  std::uint64_t size_ = 0;
};

/// The whole of a small file. @throws std::runtime_error that names the path if it is larger than `max_bytes` or cannot be read.
std::string read_text_file(const std::filesystem::path& path, std::uint64_t max_bytes);

}  // namespace lockstep::engine
