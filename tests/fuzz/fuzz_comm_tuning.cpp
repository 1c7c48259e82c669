// A table of transports, and what is written of it.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <stdexcept>
#include <string_view>

#include "comm/cuda/tuning.h"

using namespace lockstep::comm::cuda;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    const TransportTable table = parse_table({reinterpret_cast<const char*>(data), size}, "fuzz");
    if (parse_table(format_table(table, "as it was read"), "again") != table) std::abort();
  } catch (const std::runtime_error& error) {
    if (!std::string_view(error.what()).starts_with("fuzz")) std::abort();
  }
  return 0;
}
