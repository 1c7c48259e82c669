#pragma once

// What the files of one instruction set share. Kernels are written once, in *.inl files that are included into a namespace of the
// instruction set, between LOCKSTEP_TARGET_BEGIN(...) and LOCKSTEP_TARGET_END. They use no lambda (its body would not get the target) and
// nothing of the standard library (its inline functions would be compiled for the target, and the linker might keep that copy for
// everyone).

#define LOCKSTEP_INLINE static inline __attribute__((always_inline))
#define LOCKSTEP_NOINLINE static __attribute__((noinline))

#define LOCKSTEP_PRAGMA(text) _Pragma(#text)
#if defined(__clang__)
#define LOCKSTEP_UNROLL _Pragma("clang loop unroll(full)")
#define LOCKSTEP_TARGET_BEGIN(features) LOCKSTEP_PRAGMA(clang attribute push(__attribute__((target(features))), apply_to = function))
#define LOCKSTEP_TARGET_END _Pragma("clang attribute pop")
#else
#define LOCKSTEP_UNROLL _Pragma("GCC unroll 16")
#define LOCKSTEP_TARGET_BEGIN(features) _Pragma("GCC push_options") LOCKSTEP_PRAGMA(GCC target(features))
#define LOCKSTEP_TARGET_END _Pragma("GCC pop_options")
#endif
