#pragma once

#include <cstddef>

#if defined(LOCKSTEP_SIMT_ASAN)
#include <sanitizer/asan_interface.h>
#endif
#if defined(LOCKSTEP_SIMT_TSAN)
#include <sanitizer/tsan_interface.h>
extern "C" {
void __tsan_read16(void* address);
void __tsan_write16(void* address);
void __tsan_ignore_thread_begin();
void __tsan_ignore_thread_end();
}
#endif

/// The emulator is built without sanitizers; this is how it tells them what kernels do through it.
namespace simt {

/// What came before release(tag) in one thread is before what follows acquire(tag) in another.
inline void release(void* tag) {
#if defined(LOCKSTEP_SIMT_TSAN)
  __tsan_release(tag);
#endif
  static_cast<void>(tag);
}

inline void acquire(void* tag) {
#if defined(LOCKSTEP_SIMT_TSAN)
  __tsan_acquire(tag);
#endif
  static_cast<void>(tag);
}

inline void note_read_16(const void* address) {
#if defined(LOCKSTEP_SIMT_TSAN)
  __tsan_read16(const_cast<void*>(address));
#endif
  static_cast<void>(address);
}

inline void note_write_16(void* address) {
#if defined(LOCKSTEP_SIMT_TSAN)
  __tsan_write16(address);
#endif
  static_cast<void>(address);
}

inline void poison(void* address, std::size_t bytes) {
#if defined(LOCKSTEP_SIMT_ASAN)
  __asan_poison_memory_region(address, bytes);
#endif
  static_cast<void>(address);
  static_cast<void>(bytes);
}

inline void unpoison(void* address, std::size_t bytes) {
#if defined(LOCKSTEP_SIMT_ASAN)
  __asan_unpoison_memory_region(address, bytes);
#endif
  static_cast<void>(address);
  static_cast<void>(bytes);
}

inline bool is_poisoned(const void* address, std::size_t bytes) {
#if defined(LOCKSTEP_SIMT_ASAN)
  return __asan_region_is_poisoned(const_cast<void*>(address), bytes) != nullptr;
#else
  static_cast<void>(address);
  static_cast<void>(bytes);
  return false;
#endif
}

/// From here on the calling thread or fiber does what kernels do not see: library calls on the emulator's own data.
inline void begin_unseen() {
#if defined(LOCKSTEP_SIMT_TSAN)
  __tsan_ignore_thread_begin();
#endif
}

inline void end_unseen() {
#if defined(LOCKSTEP_SIMT_TSAN)
  __tsan_ignore_thread_end();
#endif
}

class Unseen {
 public:
  Unseen() { begin_unseen(); }
  ~Unseen() { end_unseen(); }
  Unseen(const Unseen&) = delete;
  Unseen& operator=(const Unseen&) = delete;
};

/// memset without the sanitizers' notice.
inline void fill_bytes(void* address, int value, std::size_t bytes) {
#if defined(__x86_64__)
  asm volatile("rep stosb" : "+D"(address), "+c"(bytes) : "a"(value) : "memory");
#else
  for (auto* at = static_cast<volatile unsigned char*>(address); bytes > 0; --bytes) *at++ = static_cast<unsigned char>(value);
#endif
}

}  // namespace simt
