#pragma once

// What the files of one instruction set share. Kernels are written once, in *.inl files that are included into a namespace of the
// instruction set, between LOCKSTEP_TARGET_BEGIN(...) and LOCKSTEP_TARGET_END. They use no lambda (its body would not get the target) and
// nothing of the standard library (its inline functions would be compiled for the target, and the linker might keep that copy for
// everyone).

#define LOCKSTEP_INLINE static inline __attribute__((always_inline))
#define LOCKSTEP_NOINLINE static __attribute__((noinline))

#define LOCKSTEP_PRAGMA(text) _Pragma(#text)

// Unrolled tiles with a sanitizer's checks at every load take the compiler minutes; rolled ones compute the same.
#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define LOCKSTEP_UNROLL
#endif
#elif defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define LOCKSTEP_UNROLL
#endif

#if defined(__clang__)
#if !defined(LOCKSTEP_UNROLL)
#define LOCKSTEP_UNROLL _Pragma("clang loop unroll(full)")
#endif
#define LOCKSTEP_TARGET_BEGIN(features) LOCKSTEP_PRAGMA(clang attribute push(__attribute__((target(features))), apply_to = function))
#define LOCKSTEP_TARGET_END _Pragma("clang attribute pop")
#else
#if !defined(LOCKSTEP_UNROLL)
#define LOCKSTEP_UNROLL _Pragma("GCC unroll 16")
#endif
#define LOCKSTEP_TARGET_BEGIN(features) _Pragma("GCC push_options") LOCKSTEP_PRAGMA(GCC target(features))
#define LOCKSTEP_TARGET_END _Pragma("GCC pop_options")
#endif
