#pragma once

#include <stdexcept>

namespace lockstep::engine {

/// The user asked for something that can not be done as asked: exit code 2. Nothing was changed.
class UsageError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace lockstep::engine
