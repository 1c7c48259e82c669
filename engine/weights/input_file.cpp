#include "engine/weights/input_file.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <utility>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

namespace lockstep::engine {
namespace {

[[noreturn]] void fail(const std::filesystem::path& path, const std::string& what) {
  throw std::runtime_error(path.string() + ": " + what);
}

int open_for_reading(const std::filesystem::path& path) {
  // Without O_NONBLOCK, opening a named pipe would wait for a writer.
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) fail(path, std::string("cannot be opened: ") + std::strerror(errno));
  return descriptor;
}

}  // namespace

InputFile::InputFile(const std::filesystem::path& path) : InputFile(open_for_reading(path), path) {}

InputFile::InputFile(int descriptor, std::filesystem::path path) : descriptor_(descriptor), path_(std::move(path)) {
  struct stat status {};
  const bool known = ::fstat(descriptor_, &status) == 0;
  if (known && S_ISREG(status.st_mode)) {
    size_ = static_cast<std::uint64_t>(status.st_size);
    return;
  }
  const std::string reason = known ? "is not a regular file" : std::string("cannot be examined: ") + std::strerror(errno);
  ::close(descriptor_);
  fail(path_, reason);
}

InputFile::~InputFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

InputFile::InputFile(InputFile&& other) noexcept
    : descriptor_(std::exchange(other.descriptor_, -1)), path_(std::move(other.path_)), size_(std::exchange(other.size_, 0)) {}

InputFile& InputFile::operator=(InputFile&& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  std::swap(path_, other.path_);
  std::swap(size_, other.size_);
  return *this;
}

void InputFile::read(std::uint64_t offset, std::span<std::byte> to, std::string_view what) const {
  const auto place = [&](std::uint64_t at) { return std::string(what) + ", byte " + std::to_string(at); };
  if (offset > size_ || to.size() > size_ - offset) {
    fail(path_, place(offset) + ": " + std::to_string(to.size()) + " bytes are needed, but the file ends at byte " + std::to_string(size_));
  }
  constexpr std::size_t kMaxRead = std::size_t{1} << 30;  // Linux reads less than 2 GiB at a time
  while (!to.empty()) {
    const ssize_t count = ::pread(descriptor_, to.data(), std::min(to.size(), kMaxRead), static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail(path_, place(offset) + ": cannot be read: " + std::strerror(errno));
    if (count == 0) fail(path_, place(offset) + ": the file was cut off there after it was opened");
    offset += static_cast<std::uint64_t>(count);
    to = to.subspan(static_cast<std::size_t>(count));
  }
}

std::string read_text_file(const std::filesystem::path& path, std::uint64_t max_bytes) {
  const InputFile file(path);
  if (file.size() > max_bytes) {
    fail(path, "has " + std::to_string(file.size()) + " bytes; at most " + std::to_string(max_bytes) + " are read");
  }
  std::string text(static_cast<std::size_t>(file.size()), '\0');
  file.read(0, std::as_writable_bytes(std::span(text)), "text");
  return text;
}

}  // namespace lockstep::engine
