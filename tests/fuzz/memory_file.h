#pragma once

#include <cstdint>
#include <cstdlib>

#include <sys/mman.h>
#include <unistd.h>

#include "engine/weights/input_file.h"

namespace lockstep::fuzz {

/// A file in memory that holds these bytes.
inline engine::InputFile memory_file(const std::uint8_t* data, std::size_t size) {
  const int descriptor = ::memfd_create("fuzz", MFD_CLOEXEC);
  if (descriptor < 0 || ::write(descriptor, data, size) != static_cast<ssize_t>(size)) std::abort();
  return engine::InputFile(descriptor, "fuzz");
}

}  // namespace lockstep::fuzz
