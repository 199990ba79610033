"""Loop nests in C, for targets whose code is built like the host's."""

from __future__ import annotations

from bringup.jit.source.loop_language import LoopLanguage

_PRELUDE = """\
#include <bringup/device.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#if defined __GNUC__ && !defined __clang__
/* Threads through conditional values are branches, and loops with branches are no vectors. */
#pragma GCC optimize("no-thread-jumps")
#endif
#define BRINGUP_GLOBAL
#define BRINGUP_FIRST(n) ((n) / at->grid_dim.x * at->block_idx.x + \\
  ((n) % at->grid_dim.x) * at->block_idx.x / at->grid_dim.x)
#define BRINGUP_LAST(n) ((n) / at->grid_dim.x * (at->block_idx.x + 1) + \\
  ((n) % at->grid_dim.x) * (at->block_idx.x + 1) / at->grid_dim.x)
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
  static inline void atomic_add_##type(type* p, type v) {                                         \\
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
static inline void report_fault(int64_t* fault, int64_t number, int64_t value) {
  int64_t none = 0;
  if (__atomic_compare_exchange_n(fault, &none, number, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
    fault[1] = value;
  }
}
"""

# No branches, so that compilers make vectors of them; the C library's are calls. Each is within 1.5
# units in the last place. exp: a polynomial of the rest of x / ln 2, and the power of 2 in two
# factors; in one where neither over- nor underflow matters. log: m in [sqrt 1/2, sqrt 2) of 2^k *
# m; both polynomials, and that of tanh near 0, are those of Cephes (Moshier). erf: N. Juffa's
# polynomials, as an odd one near 0 and through exp. A bound is written so that NaN passes it.
_FUNCTIONS = """\
#ifdef __FP_FAST_FMAF
#define BRINGUP_FMA(a, b, c) fmaf(a, b, c)
#else
#define BRINGUP_FMA(a, b, c) ((a) * (b) + (c))
#endif
static inline float bringup_exp_of_rest(float x, float k) {
  float r = BRINGUP_FMA(k, -0.693359375f, x);
  r = BRINGUP_FMA(k, 2.12194440e-4f, r);
  float p = 1.9875691500e-4f;
  p = BRINGUP_FMA(p, r, 1.3981999507e-3f);
  p = BRINGUP_FMA(p, r, 8.3334519073e-3f);
  p = BRINGUP_FMA(p, r, 4.1665795894e-2f);
  p = BRINGUP_FMA(p, r, 1.6666665459e-1f);
  p = BRINGUP_FMA(p, r, 5.0000001201e-1f);
  return BRINGUP_FMA(p, r * r, r) + 1.0f;
}
static inline float bringup_expf(float x) {
  const float low = -104.0f > x ? -104.0f : x, c = 89.0f < low ? 89.0f : low;
  const float k = rintf(c * 1.44269504088896341f);
  const int32_t whole = (int32_t)k, half = whole >> 1;
  return bringup_exp_of_rest(c, k) * bitcast_int32_float((half + 127) << 23) *
         bitcast_int32_float((whole - half + 127) << 23);
}
static inline float bringup_exp_within(float x) {
  const float low = -87.0f > x ? -87.0f : x, c = 88.0f < low ? 88.0f : low;
  const float k = rintf(c * 1.44269504088896341f);
  return bringup_exp_of_rest(c, k) * bitcast_int32_float(((int32_t)k + 127) << 23);
}
static inline float bringup_logf(float x) {
  const int small = x < 1.17549435e-38f;
  const float s = small ? x * 8388608.0f : x;
  int32_t bits = bitcast_float_int32(s);
  int32_t e = (bits - 0x3f3504f3) >> 23;
  const float m = bitcast_int32_float(bits - (e << 23)) - 1.0f;
  const float k = (float)(e - (small ? 23 : 0));
  float p = 7.0376836292e-2f;
  p = BRINGUP_FMA(p, m, -1.1514610310e-1f);
  p = BRINGUP_FMA(p, m, 1.1676998740e-1f);
  p = BRINGUP_FMA(p, m, -1.2420140846e-1f);
  p = BRINGUP_FMA(p, m, 1.4249322787e-1f);
  p = BRINGUP_FMA(p, m, -1.6668057665e-1f);
  p = BRINGUP_FMA(p, m, 2.0000714765e-1f);
  p = BRINGUP_FMA(p, m, -2.4999993993e-1f);
  p = BRINGUP_FMA(p, m, 3.3333331174e-1f);
  const float z = m * m;
  float y = BRINGUP_FMA(k, -2.12194440e-4f, m * z * p);
  y = BRINGUP_FMA(z, -0.5f, y);
  y = m + y;
  y = BRINGUP_FMA(k, 0.693359375f, y);
  y = x == INFINITY ? x : y;
  y = x == 0 ? -INFINITY : y;
  return x < 0 || x != x ? NAN : y;
}
static inline float bringup_tanhf(float x) {
  const float a = fabsf(x), z = x * x;
  float p = -5.70498872745e-3f;
  p = BRINGUP_FMA(p, z, 2.06390887954e-2f);
  p = BRINGUP_FMA(p, z, -5.37397155531e-2f);
  p = BRINGUP_FMA(p, z, 1.33314422036e-1f);
  p = BRINGUP_FMA(p, z, -3.33332819422e-1f);
  const float q = BRINGUP_FMA(p * z, x, x);
  const float y = 1.0f - 2.0f / (bringup_exp_within(2.0f * a) + 1.0f);
  return a < 0.625f ? q : copysignf(y, x);
}
static inline float bringup_erff(float x) {
  const float t = fabsf(x), s = x * x;
  float r = BRINGUP_FMA(BRINGUP_FMA(-1.72853470e-5f, t, 3.83197126e-4f), s,
                        BRINGUP_FMA(-3.88396438e-3f, t, 2.42546219e-2f));
  r = BRINGUP_FMA(r, t, -1.06777877e-1f);
  r = BRINGUP_FMA(r, t, -6.34846687e-1f);
  r = BRINGUP_FMA(r, t, -1.28717512e-1f);
  const float y = 1.0f - bringup_exp_within(BRINGUP_FMA(r, t, -t));
  float q = -5.96761703e-4f;
  q = BRINGUP_FMA(q, s, 4.99119423e-3f);
  q = BRINGUP_FMA(q, s, -2.67681349e-2f);
  q = BRINGUP_FMA(q, s, 1.12819925e-1f);
  q = BRINGUP_FMA(q, s, -3.76125336e-1f);
  q = BRINGUP_FMA(q, s, 1.28379166e-1f);
  return t > 0.927734375f ? copysignf(y, x) : BRINGUP_FMA(q, x, x);
}
#define expf bringup_expf
#define logf bringup_logf
#define tanhf bringup_tanhf
#define erff bringup_erff
"""

C_LOOPS = LoopLanguage(
    suffix=".c",
    prelude=_PRELUDE + _FUNCTIONS,
    entry="void {name}(const bringup_position* at, {parameters})",
    # Signed overflow wraps, as torch's integers do; the pragmas of lanes are read without OpenMP.
    flags=("-fwrapv", "-fopenmp-simd"),
    lanes=16,
    most_blocks=64,
    atomics=("float", "double", "int64_t", "int32_t", "int16_t", "int8_t", "uint8_t"),
)
