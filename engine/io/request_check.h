#pragma once

#include <stdexcept>

#include "engine/io/request_error.h"
#include "engine/runtime/engine.h"

namespace lockstep::engine {

/// Asks the engine before a request is submitted, so that what it can not compute costs a line and not the job. @throws RequestError
inline void check_request(const Engine& engine, const Request& request) {
  try {
    engine.check(request);
  } catch (const std::invalid_argument& error) {
    throw RequestError(400, "invalid_request", "", error.what());
  }
}

}  // namespace lockstep::engine
