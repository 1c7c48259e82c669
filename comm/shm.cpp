#include "comm/shm.h"

#include <array>
#include <cerrno>
#include <charconv>
#include <random>
#include <system_error>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "comm/region_communicator.h"

namespace lockstep::comm {
namespace {

std::string reason_of(int error) { return std::generic_category().message(error); }

class File {
 public:
  explicit File(int descriptor) : descriptor_(descriptor) {}
  ~File() {
    if (descriptor_ >= 0) close(descriptor_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  int get() const { return descriptor_; }

 private:
  int descriptor_;
};

/// The memory of a whole file, shared.
class Mapping {
 public:
  Mapping(int file, std::size_t bytes) : bytes_(bytes) {
    void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (memory == MAP_FAILED) throw CommError("shared memory: cannot map " + std::to_string(bytes) + " bytes: " + reason_of(errno));
    data_ = static_cast<std::byte*>(memory);
  }
  ~Mapping() { munmap(data_, bytes_); }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  std::byte* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }

 private:
  std::byte* data_ = nullptr;
  std::size_t bytes_;
};

struct flock lock_of(int rank) {
  struct flock lock {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  lock.l_start = rank;
  lock.l_len = 1;
  return lock;
}

/// process.descriptor.token, all in decimal.
struct RegionName {
  std::uint64_t process = 0;
  std::uint64_t descriptor = 0;
  std::uint64_t token = 0;

  std::string text() const { return std::to_string(process) + "." + std::to_string(descriptor) + "." + std::to_string(token); }
  std::string path() const { return "/proc/" + std::to_string(process) + "/fd/" + std::to_string(descriptor); }
  std::string title() const { return "lockstep-" + std::to_string(token); }

  static RegionName parse(const std::string& text) {
    std::array<std::uint64_t, 3> numbers{};
    const char* place = text.data();
    const char* end = text.data() + text.size();
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      if (i > 0 && (place == end || *place++ != '.'))
        throw CommError("shared memory: \"" + text.substr(0, 100) + "\" is not the name of a region");
      const auto [after, error] = std::from_chars(place, end, numbers[i]);
      if (error != std::errc()) throw CommError("shared memory: \"" + text.substr(0, 100) + "\" is not the name of a region");
      place = after;
    }
    if (place != end) throw CommError("shared memory: \"" + text.substr(0, 100) + "\" is not the name of a region");
    return {numbers[0], numbers[1], numbers[2]};
  }
};

/// Opens the maker's memory anew: a rank needs an open file of its own, for the lock that shows that it lives.
int open_region(const RegionName& name) {
  const std::string path = name.path();
  std::array<char, 256> target{};
  const ssize_t length = readlink(path.c_str(), target.data(), target.size());
  const int error = errno;
  if (length < 0 || std::string_view(target.data(), static_cast<std::size_t>(length)).find(name.title()) == std::string_view::npos) {
    throw CommError("shared memory: " + path + " is not the region " + name.text() + (length < 0 ? " (" + reason_of(error) + ")" : "") +
                    "; its maker has ended, or is on another machine, of another user, or in another container");
  }
  const int file = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (file < 0) throw CommError("shared memory: cannot open " + path + ": " + reason_of(errno));
  return file;
}

std::size_t size_of(int file) {
  struct stat status {};
  if (fstat(file, &status) != 0 || status.st_size <= 0) throw CommError("shared memory: the region has no size: " + reason_of(errno));
  return static_cast<std::size_t>(status.st_size);
}

class AttachedRegion final : public SharedRegion {
 public:
  AttachedRegion(const RegionName& name, int rank) : file_(open_region(name)), mapping_(file_.get(), size_of(file_.get())) {
    open(mapping_.data(), mapping_.bytes(), name.token);
    struct flock lock = lock_of(rank);
    if (fcntl(file_.get(), F_OFD_SETLK, &lock) != 0) {
      throw CommError("shared memory: rank " + std::to_string(rank) +
                      " is taken by another process, or locks do not work: " + reason_of(errno));
    }
  }

  bool alive(int rank) override {
    struct flock lock = lock_of(rank);
    return fcntl(file_.get(), F_OFD_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
  }

 private:
  File file_;
  Mapping mapping_;
};

class RegionMaker final : public SharedRegion {
 public:
  /// Leaves a region in the memory of `file`.
  RegionMaker(int file, int size, const CommunicatorOptions& options, std::uint64_t token) {
    const std::size_t bytes = bytes_needed(size, options);
    // Allocated at once: a process that touches memory which is not there later would die of SIGBUS.
    if (const int error = posix_fallocate(file, 0, static_cast<off_t>(bytes)); error != 0) {
      throw CommError("shared memory: cannot allocate " + std::to_string(bytes) + " bytes for " + std::to_string(size) +
                      " ranks: " + reason_of(error));
    }
    const Mapping mapping(file, bytes);
    create(mapping.data(), size, options, token);
  }
  bool alive(int) override { return true; }
};

}  // namespace

ShmRegion::ShmRegion(int size, const CommunicatorOptions& options) {
  check_options(options, size);
  std::random_device random;
  RegionName name;
  name.token = (std::uint64_t{random()} << 32) | random();
  file_ = memfd_create(name.title().c_str(), MFD_CLOEXEC);
  if (file_ < 0) throw CommError("shared memory: cannot be made: " + reason_of(errno));
  try {
    const RegionMaker maker(file_, size, options, name.token);
  } catch (...) {
    close(file_);
    throw;
  }
  name.process = static_cast<std::uint64_t>(getpid());
  name.descriptor = static_cast<std::uint64_t>(file_);
  name_ = name.text();
}

ShmRegion::~ShmRegion() { close(file_); }

std::unique_ptr<Communicator> make_shm_communicator(const std::string& name, int rank, int size, const CommunicatorOptions& options) {
  check_options(options, size);
  if (rank < 0 || rank >= size) throw std::invalid_argument("shared memory: rank " + std::to_string(rank) + " of " + std::to_string(size));
  const auto region = std::make_shared<AttachedRegion>(RegionName::parse(name), rank);
  if (region->size() != size || region->slot_bytes() != options.slot_bytes ||
      region->slice_from_additions() != options.slice_from_additions) {
    const std::string reason = "shared memory: rank " + std::to_string(rank) + " expects " + std::to_string(size) + " ranks and slots of " +
                               std::to_string(options.slot_bytes) + " bytes, the region has " + std::to_string(region->size()) + " and " +
                               std::to_string(region->slot_bytes());
    region->abort(reason);
    throw CommError(reason);
  }
  auto communicator = std::make_unique<RegionCommunicator>(region, rank, options, "shm");
  communicator->barrier();
  return communicator;
}

}  // namespace lockstep::comm
