#include "comm/options.h"

#include <stdexcept>
#include <string>

namespace lockstep::comm {

void check_options(const CommunicatorOptions& options, int size) {
  if (size < 1 || size > 4096) throw std::invalid_argument("communicator: " + std::to_string(size) + " ranks; it must be 1 to 4096");
  if (options.deadline.count() <= 0) {
    throw std::invalid_argument("communicator: deadline of " + std::to_string(options.deadline.count()) + " ms; it must be above 0");
  }
  if (options.slot_bytes < min_slot_bytes || options.slot_bytes > (std::size_t{1} << 30) || options.slot_bytes % 64 != 0) {
    throw std::invalid_argument("communicator: slot of " + std::to_string(options.slot_bytes) +
                                " bytes; it must be a multiple of 64 from " + std::to_string(min_slot_bytes) + " to 1073741824");
  }
}

}  // namespace lockstep::comm
