/* bringup functions 1: functions of float for device code, in C99, C++17 and OpenCL C.
 *
 * They have no branches, so that compilers make vectors of them; a library's are calls. Each is
 * within 1.5 units in the last place. exp: a polynomial of the rest of x / ln 2, and the power of 2
 * in two factors. log: m in [sqrt 1/2, sqrt 2) of 2^k * m; both polynomials, and that of tanh near
 * 0, are those of Cephes (Moshier). erf: near 0 N. Juffa's odd polynomial, else 1 - 2^(t * R(t)),
 * with R and 2^f fitted by Lawson's weighted least squares. NaN passes every bound. Not for code
 * that is compiled with -ffast-math.
 */
#ifndef BRINGUP_FUNCTIONS_H_
#define BRINGUP_FUNCTIONS_H_

#ifdef __OPENCL_VERSION__
#define BRINGUP_FLOAT(name) name
#ifdef FP_FAST_FMAF
#define BRINGUP_FMA(a, b, c) fma(a, b, c)
#endif
static inline float bringup_float_of(int bits) { return as_float(bits); }
static inline int bringup_bits_of(float number) { return as_int(number); }
#else
#include <math.h>
#include <string.h>
#define BRINGUP_FLOAT(name) name##f
#ifdef __FP_FAST_FMAF
#define BRINGUP_FMA(a, b, c) fmaf(a, b, c)
#endif
static inline float bringup_float_of(int bits) {
  float number;
  memcpy(&number, &bits, sizeof number);
  return number;
}
static inline int bringup_bits_of(float number) {
  int bits;
  memcpy(&bits, &number, sizeof bits);
  return bits;
}
#endif
#ifndef BRINGUP_FMA
#define BRINGUP_FMA(a, b, c) ((a) * (b) + (c))
#endif

/* The limit is not negative: of such numbers the bits compare as they do. Not for NaN. */
static inline float bringup_at_most(float x, float limit) {
  const int bits = bringup_bits_of(x), most = bringup_bits_of(limit);
  return bringup_float_of(bits < most ? bits : most);
}

/* exp(x) / 2^k; shifted is k + 1.5 * 2^23, whose last bit is 1. */
static inline float bringup_exp_of_rest(float x, float shifted) {
  const float k = shifted - 12582912.0f;
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
  const float low = -104.0f > x ? -104.0f : x, c = bringup_at_most(low, 89.0f);
  const float shifted = BRINGUP_FMA(c, 1.44269504088896341f, 12582912.0f);
  const int whole = bringup_bits_of(shifted), first = whole >> 1;
  return bringup_exp_of_rest(low, shifted) *
         bringup_float_of((int)((unsigned)(first + 127) << 23)) *
         bringup_float_of((int)((unsigned)(whole - first + 127) << 23));
}

static inline float bringup_logf(float x) {
  const int small = x < 1.17549435e-38f;
  const float s = small ? x * 8388608.0f : x;
  int bits = bringup_bits_of(s);
  int e = (bits - 0x3f3504f3) >> 23;
  const float m = bringup_float_of(bits - (e << 23)) - 1.0f;
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
  const float a = BRINGUP_FLOAT(fabs)(x), z = x * x;
  float p = -5.70498872745e-3f;
  p = BRINGUP_FMA(p, z, 2.06390887954e-2f);
  p = BRINGUP_FMA(p, z, -5.37397155531e-2f);
  p = BRINGUP_FMA(p, z, 1.33314422036e-1f);
  p = BRINGUP_FMA(p, z, -3.33332819422e-1f);
  const float q = BRINGUP_FMA(p * z, x, x);
  const float c = 2.0f * bringup_at_most(a, 10.0f);
  const float shifted = BRINGUP_FMA(c, 1.44269504088896341f, 12582912.0f);
  const unsigned scale = (unsigned)(bringup_bits_of(shifted) + 127) << 23;
  const float e = bringup_exp_of_rest(c, shifted) * bringup_float_of((int)scale);
  const float y = 1.0f - 2.0f / (e + 1.0f);
  return BRINGUP_FLOAT(copysign)(a >= 0.625f ? y : q, x);
}

static inline float bringup_erff(float x) {
  const float t = BRINGUP_FLOAT(fabs)(x), s = x * x, c = bringup_at_most(t, 4.0f);
  float r = 3.08341143e-4f;
  r = BRINGUP_FMA(r, c, -4.63511003e-3f);
  r = BRINGUP_FMA(r, c, 3.30132954e-2f);
  r = BRINGUP_FMA(r, c, -1.51845172e-1f);
  r = BRINGUP_FMA(r, c, -9.17159498e-1f);
  r = BRINGUP_FMA(r, c, 3.71901512e-1f);
  const float power = BRINGUP_FMA(r, c, -2.0f * c), shifted = power + 12582912.0f;
  const float f = power - (shifted - 12582912.0f);
  float p = 1.32647273e-3f;
  p = BRINGUP_FMA(p, f, 9.67151299e-3f);
  p = BRINGUP_FMA(p, f, 5.55073358e-2f);
  p = BRINGUP_FMA(p, f, 2.40222424e-1f);
  p = BRINGUP_FMA(p, f, 6.93147004e-1f);
  p = BRINGUP_FMA(p, f, 1.0f);
  const unsigned scale = (unsigned)bringup_bits_of(shifted) << 23;
  const float y = 1.0f - bringup_float_of((int)((unsigned)bringup_bits_of(p) + scale));
  float q = -5.96761703e-4f;
  q = BRINGUP_FMA(q, s, 4.99119423e-3f);
  q = BRINGUP_FMA(q, s, -2.67681349e-2f);
  q = BRINGUP_FMA(q, s, 1.12819925e-1f);
  q = BRINGUP_FMA(q, s, -3.76125336e-1f);
  q = BRINGUP_FMA(q, s, 1.28379166e-1f);
  return t > 0.927734375f ? BRINGUP_FLOAT(copysign)(y, x) : BRINGUP_FMA(q, x, x);
}

#undef BRINGUP_FMA
#undef BRINGUP_FLOAT

#endif /* BRINGUP_FUNCTIONS_H_ */
