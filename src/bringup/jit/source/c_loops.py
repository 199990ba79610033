"""Loop nests in C, for targets whose code is built like the host's."""

from __future__ import annotations

from bringup.jit.source.loop_language import LoopLanguage

KEEPS_VECTORS = """\
#if defined __GNUC__ && !defined __clang__
/* Threads through conditional values are branches, and loops with branches are no vectors. */
#pragma GCC optimize("no-thread-jumps")
#endif
"""
"""What a generated text begins with."""
_PRELUDE = """\
#include <bringup/device.h>
#include <bringup/functions.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#define BRINGUP_GLOBAL
/* Threads, in blocks as the driver likes. */
#define BRINGUP_WORKERS ((int64_t)at->grid_dim.x * at->block_dim.x)
#define BRINGUP_WORKER ((int64_t)at->block_idx.x * at->block_dim.x + at->thread_idx.x)
#define BRINGUP_BEGIN(n, worker) ((n) / BRINGUP_WORKERS * (worker) + \\
  (n) % BRINGUP_WORKERS * (worker) / BRINGUP_WORKERS)
#define BRINGUP_FIRST(n) BRINGUP_BEGIN(n, BRINGUP_WORKER)
#define BRINGUP_LAST(n) BRINGUP_BEGIN(n, BRINGUP_WORKER + 1)
#define BRINGUP_STEP 1
typedef _Float16 half_t;
typedef uint16_t bfloat16_t;
#define BRINGUP_BITCAST(from, from_type, to, to_type)                  \\
  static inline to_type bitcast_##from##_##to(from_type v) {           \\
    to_type r;                                                         \\
    memcpy(&r, &v, sizeof r);                                          \\
    return r;                                                          \\
  }
BRINGUP_BITCAST(float, float, int32, int32_t)
BRINGUP_BITCAST(int32, int32_t, float, float)
BRINGUP_BITCAST(double, double, int64, int64_t)
BRINGUP_BITCAST(int64, int64_t, double, double)
static inline float load_half(const half_t* p, int64_t i) { return (float)p[i]; }
static inline void store_half(half_t* p, int64_t i, float v) { p[i] = (half_t)v; }
static inline float round_half(float v) { return (float)(half_t)v; }
static inline float widen_bfloat16(bfloat16_t v) {
  return bitcast_int32_float((int32_t)((uint32_t)v << 16));
}
static inline bfloat16_t narrow_bfloat16(float v) {
  const uint32_t bits = (uint32_t)bitcast_float_int32(v);
  return v != v ? 0x7fc0 : (bfloat16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
static inline float load_bfloat16(const bfloat16_t* p, int64_t i) { return widen_bfloat16(p[i]); }
static inline void store_bfloat16(bfloat16_t* p, int64_t i, float v) { p[i] = narrow_bfloat16(v); }
static inline float round_bfloat16(float v) { return widen_bfloat16(narrow_bfloat16(v)); }
#define BRINGUP_ATOMIC_ADD(type)                                                                  \\
  static inline void locked_add_##type(type* p, type v) {                                         \\
    type expected, sum;                                                                           \\
    __atomic_load(p, &expected, __ATOMIC_RELAXED);                                                \\
    do {                                                                                          \\
      sum = (type)(expected + v);                                                                 \\
    } while (!__atomic_compare_exchange(p, &expected, &sum, 1, __ATOMIC_RELAXED,                  \\
                                        __ATOMIC_RELAXED));                                       \\
  }
BRINGUP_ATOMIC_ADD(float)
BRINGUP_ATOMIC_ADD(double)
BRINGUP_ATOMIC_ADD(int64_t)
BRINGUP_ATOMIC_ADD(int32_t)
BRINGUP_ATOMIC_ADD(int16_t)
BRINGUP_ATOMIC_ADD(int8_t)
BRINGUP_ATOMIC_ADD(uint8_t)
/* The one thread of a launch adds without waiting for others. */
#define BRINGUP_ADD(type, p, v) \\
  (BRINGUP_WORKERS == 1 ? (void)(*(p) = (type)(*(p) + (v))) : locked_add_##type(p, v))
#define atomic_add_float(p, v) BRINGUP_ADD(float, p, v)
#define atomic_add_double(p, v) BRINGUP_ADD(double, p, v)
#define atomic_add_int64_t(p, v) BRINGUP_ADD(int64_t, p, v)
#define atomic_add_int32_t(p, v) BRINGUP_ADD(int32_t, p, v)
#define atomic_add_int16_t(p, v) BRINGUP_ADD(int16_t, p, v)
#define atomic_add_int8_t(p, v) BRINGUP_ADD(int8_t, p, v)
#define atomic_add_uint8_t(p, v) BRINGUP_ADD(uint8_t, p, v)
#if defined __has_builtin
#if __has_builtin(__builtin_shufflevector)
#define BRINGUP_SHUFFLES
#endif
#endif
#ifdef BRINGUP_SHUFFLES
typedef uint32_t bringup_eight __attribute__((vector_size(32), aligned(4), may_alias));
static inline void transpose_eight(uint32_t* to, const uint32_t* from, int64_t step) {
  bringup_eight a[8], b[8];
  for (int i = 0; i < 8; ++i) a[i] = *(const bringup_eight*)(from + i * step);
  for (int i = 0; i < 8; i += 2) {
    b[i] = __builtin_shufflevector(a[i], a[i + 1], 0, 8, 1, 9, 4, 12, 5, 13);
    b[i + 1] = __builtin_shufflevector(a[i], a[i + 1], 2, 10, 3, 11, 6, 14, 7, 15);
  }
  for (int i = 0; i < 8; i += 4) {
    for (int k = 0; k < 2; ++k) {
      const bringup_eight low = b[i + k], high = b[i + k + 2];
      a[i + 2 * k] = __builtin_shufflevector(low, high, 0, 1, 8, 9, 4, 5, 12, 13);
      a[i + 2 * k + 1] = __builtin_shufflevector(low, high, 2, 3, 10, 11, 6, 7, 14, 15);
    }
  }
  for (int i = 0; i < 4; ++i) {
    *(bringup_eight*)(to + i * 16) =
        __builtin_shufflevector(a[i], a[i + 4], 0, 1, 2, 3, 8, 9, 10, 11);
    *(bringup_eight*)(to + (i + 4) * 16) =
        __builtin_shufflevector(a[i], a[i + 4], 4, 5, 6, 7, 12, 13, 14, 15);
  }
}
#endif
#if defined BRINGUP_SHUFFLES && defined __AVX512F__
typedef uint32_t bringup_sixteen __attribute__((vector_size(64), aligned(4), may_alias));
#define BRINGUP_PAIRED(a, b, i, j, k, l)                                                         \\
  __builtin_shufflevector(a, b, i, j, k, l, i + 4, j + 4, k + 4, l + 4, i + 8, j + 8, k + 8,      \\
                          l + 8, i + 12, j + 12, k + 12, l + 12)
#define BRINGUP_QUARTERS(a, b, i)                                                                 \\
  __builtin_shufflevector(a, b, i, i + 1, i + 2, i + 3, i + 8, i + 9, i + 10, i + 11, i + 16,     \\
                          i + 17, i + 18, i + 19, i + 24, i + 25, i + 26, i + 27)
static inline void transpose_square(void* to, const void* from, int64_t step) {
  bringup_sixteen a[16], b[16];
  for (int i = 0; i < 16; ++i) a[i] = *(const bringup_sixteen*)((const uint32_t*)from + i * step);
  for (int i = 0; i < 16; i += 2) {
    b[i] = BRINGUP_PAIRED(a[i], a[i + 1], 0, 16, 1, 17);
    b[i + 1] = BRINGUP_PAIRED(a[i], a[i + 1], 2, 18, 3, 19);
  }
  for (int i = 0; i < 16; i += 4) {
    for (int k = 0; k < 2; ++k) {
      a[i + 2 * k] = BRINGUP_PAIRED(b[i + k], b[i + k + 2], 0, 1, 16, 17);
      a[i + 2 * k + 1] = BRINGUP_PAIRED(b[i + k], b[i + k + 2], 2, 3, 18, 19);
    }
  }
  for (int i = 0; i < 16; i += 8) {
    for (int k = 0; k < 4; ++k) {
      b[i + k] = BRINGUP_QUARTERS(a[i + k], a[i + k + 4], 0);
      b[i + k + 4] = BRINGUP_QUARTERS(a[i + k], a[i + k + 4], 4);
    }
  }
  bringup_sixteen* const rows = (bringup_sixteen*)to;
  for (int k = 0; k < 8; ++k) {
    rows[k] = BRINGUP_QUARTERS(b[k], b[k + 8], 0);
    rows[k + 8] = BRINGUP_QUARTERS(b[k], b[k + 8], 4);
  }
}
#else
static inline void transpose_square(void* to, const void* from, int64_t step) {
  uint32_t* const rows = (uint32_t*)to;
  const uint32_t* const lines = (const uint32_t*)from;
  for (int x = 0; x < 16; x += 8) {
    for (int row = 0; row < 16; row += 8) {
#ifdef BRINGUP_SHUFFLES
      transpose_eight(rows + row * 16 + x, lines + x * step + row, step);
#else
      for (int i = 0; i < 8; ++i) {
        for (int k = 0; k < 8; ++k) {
          memcpy(rows + (row + k) * 16 + x + i, lines + (x + i) * step + row + k, sizeof(uint32_t));
        }
      }
#endif
    }
  }
}
#endif
static inline void report_fault(int32_t* fault, int32_t number, int64_t value) {
  int32_t none = 0;
  if (__atomic_compare_exchange_n(fault + 1, &none, 1, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
    *(int64_t*)(fault + 2) = value;
    __atomic_store_n(fault, number, __ATOMIC_RELEASE);
  }
}
#if defined __x86_64__ && defined __GNUC__ && !defined __clang__ && defined __GLIBC__
/* glibc's libm has vectors of these, within 2 units in the last place; its header offers them where
 * code is compiled with -ffast-math. */
#define BRINGUP_VECTORS(type, f)                                      \\
  __attribute__((__simd__("notinbranch"))) type sin##f(type);         \\
  __attribute__((__simd__("notinbranch"))) type cos##f(type);         \\
  __attribute__((__simd__("notinbranch"))) type pow##f(type, type);
BRINGUP_VECTORS(float, f)
BRINGUP_VECTORS(double, )
#endif
#define expf bringup_expf
#define logf bringup_logf
#define tanhf bringup_tanhf
#define erff bringup_erff
"""

C_LOOPS = LoopLanguage(
    suffix=".c",
    prelude=KEEPS_VECTORS + _PRELUDE,
    entry="void {name}(const bringup_position* at, {parameters})",
    # Signed overflow wraps, as torch's integers do; the pragmas of lanes are read without OpenMP.
    flags=("-fwrapv", "-fopenmp-simd"),
    lanes=16,
    most_blocks=64,
    atomics=("float", "double", "int64_t", "int32_t", "int16_t", "int8_t", "uint8_t"),
)
