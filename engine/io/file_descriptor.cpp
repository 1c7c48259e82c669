#include "engine/io/file_descriptor.h"

#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <string>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

namespace lockstep::engine {

FileDescriptor::FileDescriptor(std::filesystem::path path, int flags) : path_(std::move(path)) {
  descriptor_ = ::open(path_.c_str(), flags | O_CLOEXEC, 0666);
  if (descriptor_ < 0) fail("can not be opened");
}

FileDescriptor::~FileDescriptor() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

void FileDescriptor::fail(std::string_view what) const {
  const int reason = errno;
  throw std::runtime_error(path_.string() + ": " + std::string(what) + ": " + std::strerror(reason));
}

void FileDescriptor::write_at(std::uint64_t offset, std::string_view bytes) const {
  while (!bytes.empty()) {
    const ssize_t count = ::pwrite(descriptor_, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) fail("can not be written");
    offset += static_cast<std::uint64_t>(count);
    bytes.remove_prefix(static_cast<std::size_t>(count));
  }
}

void FileDescriptor::read_at(std::uint64_t offset, char* to, std::size_t count) const {
  while (count > 0) {
    const ssize_t got = ::pread(descriptor_, to, count, static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail("can not be read");
    if (got == 0) throw std::runtime_error(path_.string() + ": is shorter than it was: another program has changed it");
    offset += static_cast<std::uint64_t>(got);
    to += got;
    count -= static_cast<std::size_t>(got);
  }
}

void FileDescriptor::truncate(std::uint64_t size) const {
  if (::ftruncate(descriptor_, static_cast<off_t>(size)) != 0) fail("can not be truncated");
}

std::uint64_t FileDescriptor::size() const {
  struct stat status = {};
  if (::fstat(descriptor_, &status) != 0) fail("can not be examined");
  return static_cast<std::uint64_t>(status.st_size);
}

void FileDescriptor::sync() const {
  if (::fsync(descriptor_) != 0 && errno != EINVAL) fail("can not be written to the disk");  // EINVAL: a file system without it
}

bool FileDescriptor::try_lock() const {
  if (::flock(descriptor_, LOCK_EX | LOCK_NB) == 0) return true;
  if (errno != EWOULDBLOCK) fail("can not be locked");
  return false;
}

bool FileDescriptor::still_named() const {
  struct stat mine = {}, named = {};
  if (::fstat(descriptor_, &mine) != 0) fail("can not be examined");
  return ::stat(path_.c_str(), &named) == 0 && mine.st_dev == named.st_dev && mine.st_ino == named.st_ino;
}

void FileDescriptor::rename_to(const std::filesystem::path& to) {
  if (::rename(path_.c_str(), to.c_str()) != 0) fail("can not be renamed to " + to.string());
  path_ = to;
}

void sync_folder_of(const std::filesystem::path& path) {
  const std::filesystem::path folder = path.has_parent_path() ? path.parent_path() : std::filesystem::path(".");
  FileDescriptor(folder, O_RDONLY | O_DIRECTORY).sync();
}

void replace_file(const std::filesystem::path& path, std::string_view content) {
  FileDescriptor file(with_suffix(path, ".tmp"), O_WRONLY | O_CREAT | O_TRUNC);
  try {
    file.write_at(0, content);
    file.sync();
    file.rename_to(path);
  } catch (...) {
    ::unlink(with_suffix(path, ".tmp").c_str());
    throw;
  }
  sync_folder_of(path);
}

std::filesystem::path with_suffix(const std::filesystem::path& path, std::string_view suffix) {
  std::filesystem::path result = path;
  result += suffix;
  return result;
}

}  // namespace lockstep::engine
