#pragma once

#include <cstddef>
#include <cstdint>

/// Stacks, and the switch from one to another. Built without sanitizers; where the rest is built with one it is told of each switch.
namespace simt {

/// Memory that ends in a page that no one may touch.
class Stack {
 public:
  Stack();
  ~Stack();
  Stack(const Stack&) = delete;
  Stack& operator=(const Stack&) = delete;
  char* bottom() const { return bottom_; }
  std::size_t size() const { return size_; }
  char* top() const { return bottom_ + size_; }

 private:
  char* bottom_ = nullptr;
  std::size_t size_ = 0;
};

/// One flow of control: a fiber of its own stack, or the thread that runs fibers.
struct Flow {
  void* state = nullptr;  // stack pointer, or ucontext_t
  void* sanitizer = nullptr;
  const void* stack_bottom = nullptr;
  std::size_t stack_size = 0;
};

/// Makes `flow` begin at `entry` on `stack` at its next turn. `colour` spreads the tops of stacks over the cache.
void prepare_flow(Flow& flow, Stack& stack, void (*entry)(), unsigned colour);
/// The calling thread as a flow, to return to.
void adopt_thread(Flow& flow);
void release_flow(Flow& flow);
/// Leaves `from` for `to`; comes back when someone switches to `from`. `last`: `from` never comes back,
/// and the Unseen that it is in ends.
void switch_flow(Flow& from, Flow& to, bool last);
/// For a fiber that was left for good: releases `tag` in its name, and ends the Unseen (sanitizers.h) that it was in.
void retire_flow(Flow& flow, void* tag);
/// The first thing that an entry does.
void flow_entered();

}  // namespace simt
