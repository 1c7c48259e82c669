#include "simt/fiber.h"

#include <new>

#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include "simt/sanitizers.h"

#if defined(LOCKSTEP_SIMT_ASAN)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(LOCKSTEP_SIMT_TSAN)
extern "C" {
void* __tsan_create_fiber(unsigned flags);
void __tsan_destroy_fiber(void* fiber);
void __tsan_switch_to_fiber(void* fiber, unsigned flags);
void* __tsan_get_current_fiber();
}
#endif

#if defined(__x86_64__)
// Saves what the calling convention leaves to the callee, on the stack itself. About half the time of a general library.
extern "C" void simt_switch_stacks(void** save, void* to);
asm(R"(.text
.globl simt_switch_stacks
.type simt_switch_stacks,@function
simt_switch_stacks:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size simt_switch_stacks, .-simt_switch_stacks
)");
#else
#include <ucontext.h>
#endif

namespace simt {

namespace {

#if defined(LOCKSTEP_SIMT_ASAN) || defined(LOCKSTEP_SIMT_TSAN)
constexpr std::size_t kStackBytes = 256 * 1024;
#else
constexpr std::size_t kStackBytes = 64 * 1024;
#endif

}  // namespace

Stack::Stack() : size_(kStackBytes) {
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  void* memory = mmap(nullptr, size_ + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  mprotect(memory, page, PROT_NONE);
  bottom_ = static_cast<char*>(memory) + page;
}

Stack::~Stack() {
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
#if defined(LOCKSTEP_SIMT_ASAN)
  __asan_unpoison_memory_region(bottom_, size_);
#endif
  munmap(bottom_ - page, size_ + page);
}

void prepare_flow(Flow& flow, Stack& stack, void (*entry)(), unsigned colour) {
  flow.stack_bottom = stack.bottom();
  flow.stack_size = stack.size();
#if defined(LOCKSTEP_SIMT_ASAN)
  __asan_unpoison_memory_region(stack.bottom(), stack.size());
#endif
#if defined(LOCKSTEP_SIMT_TSAN)
  if (flow.sanitizer == nullptr) flow.sanitizer = __tsan_create_fiber(0);
#endif
#if defined(__x86_64__)
  void** top = reinterpret_cast<void**>((reinterpret_cast<std::uintptr_t>(stack.top()) - 64 * (colour % 61)) & ~std::uintptr_t{15});
  *--top = nullptr;
  *--top = reinterpret_cast<void*>(entry);
  for (int i = 0; i < 6; ++i) *--top = nullptr;
  flow.state = top;
#else
  static_cast<void>(colour);
  if (flow.state == nullptr) flow.state = new ucontext_t;
  auto* context = static_cast<ucontext_t*>(flow.state);
  getcontext(context);
  context->uc_stack.ss_sp = stack.bottom();
  context->uc_stack.ss_size = stack.size();
  context->uc_link = nullptr;
  makecontext(context, entry, 0);
#endif
}

void adopt_thread(Flow& flow) {
#if defined(LOCKSTEP_SIMT_ASAN)
  pthread_attr_t attributes;
  if (flow.stack_bottom == nullptr && pthread_getattr_np(pthread_self(), &attributes) == 0) {
    void* bottom = nullptr;
    pthread_attr_getstack(&attributes, &bottom, &flow.stack_size);
    flow.stack_bottom = bottom;
    pthread_attr_destroy(&attributes);
  }
#endif
#if defined(LOCKSTEP_SIMT_TSAN)
  flow.sanitizer = __tsan_get_current_fiber();
#endif
#if !defined(__x86_64__)
  if (flow.state == nullptr) flow.state = new ucontext_t;
#endif
  static_cast<void>(flow);
}

void release_flow(Flow& flow) {
#if defined(LOCKSTEP_SIMT_TSAN)
  if (flow.sanitizer != nullptr) __tsan_destroy_fiber(flow.sanitizer);
  flow.sanitizer = nullptr;
#endif
#if !defined(__x86_64__)
  delete static_cast<ucontext_t*>(flow.state);
  flow.state = nullptr;
#endif
  static_cast<void>(flow);
}

void switch_flow(Flow& from, Flow& to, bool last) {
#if defined(LOCKSTEP_SIMT_ASAN)
  void* fake_stack = nullptr;
  __sanitizer_start_switch_fiber(last ? nullptr : &fake_stack, to.stack_bottom, to.stack_size);
#endif
#if defined(LOCKSTEP_SIMT_TSAN)
  if (last) end_unseen();
  __tsan_switch_to_fiber(to.sanitizer, 1);  // 1: the switch orders nothing
#endif
  static_cast<void>(last);
#if defined(__x86_64__)
  simt_switch_stacks(&from.state, to.state);
#else
  swapcontext(static_cast<ucontext_t*>(from.state), static_cast<ucontext_t*>(to.state));
#endif
#if defined(LOCKSTEP_SIMT_ASAN)
  __sanitizer_finish_switch_fiber(fake_stack, nullptr, nullptr);
#endif
}

void retire_flow(Flow& flow, void* tag) {
#if defined(LOCKSTEP_SIMT_TSAN)
  void* const here = __tsan_get_current_fiber();
  __tsan_switch_to_fiber(flow.sanitizer, 1);
  release(tag);
  end_unseen();
  __tsan_switch_to_fiber(here, 1);
#endif
  static_cast<void>(flow);
  static_cast<void>(tag);
}

void flow_entered() {
#if defined(LOCKSTEP_SIMT_ASAN)
  __sanitizer_finish_switch_fiber(nullptr, nullptr, nullptr);
#endif
}

}  // namespace simt
