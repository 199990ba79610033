"""Helpers that generated loop nests have in every language, in what C and OpenCL C share."""

from __future__ import annotations

from bringup.compiler.inductor.special import special_functions
from bringup.jit import LoopLanguage

_INTEGERS = ("int8_t", "int16_t", "int32_t", "int64_t", "uint8_t")
_FLOATS = ("float", "double")


def prelude(language: LoopLanguage, text: str, *, float64: bool) -> str:
    """Return what a generated text begins with: the language's own, then the shared helpers."""
    floats = _FLOATS if float64 else ("float",)
    head = [language.prelude, language.float64 if float64 else ""]
    head += [_OF_NUMBERS.replace("T", c_type) for c_type in (*_INTEGERS, *floats)]
    head += [_OF_INTEGERS.replace("T", c_type) for c_type in _INTEGERS]
    head += [
        _OF_FLOATS.replace("T", c_type).replace("FMOD", f"fmod{'f' * (c_type == 'float')}")
        for c_type in floats
    ]
    return "".join([*head, _COPIED, _PHILOX, special_functions(text, floats)])


# Structures: what computes with them is no program.
_COPIED = """\
typedef struct { uint8_t bits; } bits8_t;
typedef struct { uint16_t bits; } bits16_t;
typedef struct { uint32_t bits; } bits32_t;
typedef struct { uint64_t bits; } bits64_t;
typedef struct { uint64_t bits[2]; } bits128_t;
"""

# NaN wins, as in torch: one comparison with b decides for a, which is kept where that is false.
_OF_NUMBERS = """\
static inline T max_T(T a, T b) { const T m = b > a ? b : a; return b != b ? b : m; }
static inline T min_T(T a, T b) { const T m = b < a ? b : a; return b != b ? b : m; }
static inline T sign_T(T a) { return (T)((a > 0) - (a < 0)); }
"""
# The least number by -1 wraps; a processor's division ends the process there, as by 0.
_OF_INTEGERS = """\
static inline T truncdiv_T(T a, T b) {
  return (T)(b == 0 ? 0 : b + 1 == 0 ? 0 - (uint64_t)a : (uint64_t)(a / b));
}
static inline T fmod_T(T a, T b) { return (T)(b == 0 || b + 1 == 0 ? 0 : a % b); }
static inline T floordiv_T(T a, T b) {
  return (T)(truncdiv_T(a, b) - ((fmod_T(a, b) != 0) & ((a < 0) != (b < 0))));
}
static inline T remainder_T(T a, T b) {
  const T r = fmod_T(a, b);
  return (T)(r != 0 && (r < 0) != (b < 0) ? r + b : r);
}
static inline T shift_left_T(T a, T b) {
  return (T)(b < 0 || b >= (T)(8 * sizeof(T)) ? 0 : (uint64_t)a << b);
}
static inline T shift_right_T(T a, T b) {
  return (T)(b < 0 || b >= (T)(8 * sizeof(T)) ? (a < 0 ? -1 : 0) : a >> b);
}
"""
_OF_FLOATS = """\
static inline T remainder_T(T a, T b) {
  const T r = FMOD(a, b);
  return r != 0 && (r < 0) != (b < 0) ? r + b : r;
}
"""
# Of at::Philox4_32(seed, 0, offset), whose first numbers are those of element 0 at the offset.
_PHILOX = """\
#include "bringup/random.h"
static inline float unit_float(uint32_t bits) {
  return (float)(bits & 0x7fffffffu) * 4.6566127342e-10f;
}
static inline float philox_rand(int64_t seed, int64_t offset) {
  return unit_float(bringup_random_at(seed, offset, 0).word[0]);
}
static inline float philox_randn(int64_t seed, int64_t offset) {
  const bringup_random drawn = bringup_random_at(seed, offset, 0);
  const float u = 1.0f - unit_float(drawn.word[0]);
  return sqrtf(-2.0f * logf(u)) * cosf(6.28318530717958647692f * unit_float(drawn.word[1]));
}
static inline int64_t philox_randint64(int64_t seed, int64_t offset, int64_t low, int64_t high) {
  const bringup_random drawn = bringup_random_at(seed, offset, 0);
  const uint64_t range = (uint64_t)high - (uint64_t)low;
  const uint64_t bits = (uint64_t)drawn.word[0] | ((uint64_t)drawn.word[1] << 32);
  return low + (int64_t)((range >> 32 ? bits : (uint64_t)drawn.word[0]) % range);
}
"""
