#pragma once

#include "engine/text/jinja_interpreter.h"

namespace lockstep::text::jinja {

/// How deep evaluation is; bounds the machine's stack whatever the template recurses through.
class Interpreter::Nesting {
 public:
  explicit Nesting(Interpreter& interpreter) : interpreter_(interpreter) {
    constexpr int kMaxNesting = 1200;
    if (interpreter_.nesting_ >= kMaxNesting) raise("RecursionError", "the template recurses too deeply");
    ++interpreter_.nesting_;
  }
  ~Nesting() { --interpreter_.nesting_; }
  Nesting(const Nesting&) = delete;
  Nesting& operator=(const Nesting&) = delete;

 private:
  Interpreter& interpreter_;
};

/// While it lives, output goes to `text`.
class Interpreter::Capture {
 public:
  explicit Capture(Interpreter& interpreter) : text(interpreter.heap_), interpreter_(interpreter), outer_(interpreter.out_) {
    interpreter_.out_ = &text;
  }
  ~Capture() { interpreter_.out_ = outer_; }
  Capture(const Capture&) = delete;
  Capture& operator=(const Capture&) = delete;

  TextBuilder text;

 private:
  Interpreter& interpreter_;
  TextBuilder* outer_;
};

/// While it lives, names are looked up in and written to `scope`.
class Interpreter::InScope {
 public:
  InScope(Interpreter& interpreter, ScopeRef scope)
      : interpreter_(interpreter), outer_(std::exchange(interpreter.scope_, std::move(scope))) {}
  ~InScope() { interpreter_.scope_ = std::move(outer_); }
  InScope(const InScope&) = delete;
  InScope& operator=(const InScope&) = delete;

 private:
  Interpreter& interpreter_;
  ScopeRef outer_;
};

}  // namespace lockstep::text::jinja
