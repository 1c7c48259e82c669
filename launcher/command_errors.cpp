#include "launcher/command_errors.h"

#include <utility>

#include <boost/asio.hpp>

namespace lockstep::launcher {

namespace asio = boost::asio;
using boost::system::error_code;

void CommandErrors::start(int pipe) {
  pipe_.assign(pipe);
  read();
}

void CommandErrors::read() {
  pipe_.async_read_some(asio::buffer(buffer_), [this](error_code error, std::size_t length) {
    if (error) return;
    text_.append(buffer_.data(), length);
    for (std::size_t end = text_.find('\n'); end != std::string::npos; end = text_.find('\n')) {
      show_line(text_.substr(0, end));
      text_.erase(0, end + 1);
    }
    if (text_.size() > kMaxLine) {
      show_line(text_);
      text_.clear();
    }
    read();
  });
}

void CommandErrors::show_line(std::string line) {
  for (const std::string& shown : filter_.take(std::move(line))) terminal_.write_line(shown);
}

void CommandErrors::flush() {
  error_code error;
  pipe_.non_blocking(true, error);
  for (std::size_t length = 1; length > 0 && !error;) {
    length = pipe_.read_some(asio::buffer(buffer_), error);
    if (!error) text_.append(buffer_.data(), length);
  }
  std::size_t begin = 0;
  for (std::size_t end = text_.find('\n'); end != std::string::npos; end = text_.find('\n', begin)) {
    show_line(text_.substr(begin, end - begin));
    begin = end + 1;
  }
  if (begin < text_.size()) show_line(text_.substr(begin));
}

}  // namespace lockstep::launcher
