#pragma once

#include <stdexcept>
#include <string>
#include <utility>

namespace lockstep::engine {

/// A request line that is refused: its answer is an error body with this status. Costs the line, never the job.
class RequestError : public std::runtime_error {
 public:
  /// `code`: a short machine-readable reason ("invalid_value"); `param`: the parameter at fault ("temperature", "messages[1].role"), or
  /// empty.
  RequestError(int status, std::string code, std::string param, const std::string& message)
      : std::runtime_error(message), status_(status), code_(std::move(code)), param_(std::move(param)) {}

  int status() const { return status_; }  // 400 or 404
  const std::string& code() const { return code_; }
  const std::string& param() const { return param_; }

 private:
  int status_;
  std::string code_;
  std::string param_;
};

}  // namespace lockstep::engine
