#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>

#include "engine/text/chat_template.h"

namespace lockstep::text::jinja {

/// Ends the template with an error of class `kind`; the interpreter adds the line.
[[noreturn]] inline void raise(const char* kind, std::string message) { throw TemplateError(kind, std::move(message)); }

/// What a template may spend: steps (work done, never given back) and bytes (of the values alive now).
/// One belongs to each render and one to each parsed program (for its constants); it must outlive the values that it paid for.
class Heap {
 public:
  Heap(std::size_t max_steps, std::size_t max_string_bytes, std::size_t max_memory_bytes)
      : steps_left_(max_steps), max_string_bytes_(max_string_bytes), max_memory_bytes_(max_memory_bytes) {}
  Heap(const Heap&) = delete;
  Heap& operator=(const Heap&) = delete;

  /// @throws TemplateError of kind LimitError when the steps are used up.
  void step(std::size_t count = 1) {
    if (count > steps_left_) raise("LimitError", "the template takes too many steps");
    steps_left_ -= count;
  }

  /// To be asked before a string of `bytes` is made, so that no operation can allocate more than the limit even for a moment.
  void check_string(std::size_t bytes) const {
    if (bytes > max_string_bytes_) raise("LimitError", "the template makes a text of over " + std::to_string(max_string_bytes_) + " bytes");
  }
  /// The same for `count` elements of `bytes_each`.
  void check_elements(std::size_t count, std::size_t bytes_each) const {
    if (count > max_memory_bytes_ / bytes_each) fail_memory();
  }

  void take(std::size_t bytes) {
    if (bytes > max_memory_bytes_ - bytes_used_) fail_memory();
    bytes_used_ += bytes;
  }
  void give_back(std::size_t bytes) { bytes_used_ -= bytes; }

 private:
  [[noreturn]] void fail_memory() const {
    raise("LimitError", "the template's values take over " + std::to_string(max_memory_bytes_) + " bytes of memory");
  }

  std::size_t steps_left_;
  std::size_t max_string_bytes_;
  std::size_t max_memory_bytes_;
  std::size_t bytes_used_ = 0;
};

/// Bytes that one value holds from a heap, given back when the value dies.
class Charge {
 public:
  Charge(Heap& heap, std::size_t bytes) : heap_(&heap), bytes_(bytes) { heap.take(bytes); }
  Charge(const Charge&) = delete;
  Charge& operator=(const Charge&) = delete;
  ~Charge() { heap_->give_back(bytes_); }

 private:
  Heap* heap_;
  std::size_t bytes_;
};

/// Text being made: every append is checked against the limits, so that a shared structure that prints exponentially large stops early.
class TextBuilder {
 public:
  explicit TextBuilder(Heap& heap) : heap_(heap) {}

  void append(std::string_view piece) {
    heap_.check_string(text_.size() + piece.size());
    heap_.step((text_.size() + piece.size()) / 256 - text_.size() / 256);
    text_.append(piece);
  }
  void append(char character) { append(std::string_view(&character, 1)); }
  void repeat(char character, std::size_t count) {
    heap_.check_string(count);
    append(std::string(count, character));
  }
  std::size_t size() const { return text_.size(); }
  const std::string& text() const { return text_; }
  std::string take() { return std::move(text_); }

 private:
  Heap& heap_;
  std::string text_;
};

}  // namespace lockstep::text::jinja
