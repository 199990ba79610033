"""Helpers that generated loop nests have in every language, in what C and OpenCL C share."""

from __future__ import annotations

from bringup.jit import LoopLanguage

_INTEGERS = ("int8_t", "int16_t", "int32_t", "int64_t", "uint8_t")
_FLOATS = ("float", "double")


def prelude(language: LoopLanguage, *, float64: bool) -> str:
    """Return what a generated text begins with: the language's own, then the shared helpers."""
    floats = _FLOATS if float64 else ("float",)
    text = [language.prelude, language.float64 if float64 else ""]
    text += [_OF_NUMBERS.replace("T", c_type) for c_type in (*_INTEGERS, *floats)]
    text += [_OF_INTEGERS.replace("T", c_type) for c_type in _INTEGERS]
    text += [
        _OF_FLOATS.replace("T", c_type).replace("FMOD", f"fmod{'f' * (c_type == 'float')}")
        for c_type in floats
    ]
    return "".join([*text, _PHILOX])


# NaN wins, as in torch.
_OF_NUMBERS = """\
static inline T max_T(T a, T b) { return a > b || a != a ? a : b; }
static inline T min_T(T a, T b) { return a < b || a != a ? a : b; }
static inline T sign_T(T a) { return (T)((a > 0) - (a < 0)); }
"""
_OF_INTEGERS = """\
static inline T floordiv_T(T a, T b) {
  return (T)(b == 0 ? 0 : a / b - ((a % b != 0) & ((a < 0) != (b < 0))));
}
static inline T truncdiv_T(T a, T b) { return (T)(b == 0 ? 0 : a / b); }
static inline T fmod_T(T a, T b) { return (T)(b == 0 ? 0 : a % b); }
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
# Salmon et al., Parallel random numbers: as easy as 1, 2, 3 (2011): philox4x32-10, keyed by the
# seed and counted by the offset, as at::Philox4_32(seed, 0, offset) gives its first number.
_PHILOX = """\
typedef struct { uint32_t x[4]; } philox_t;
static inline philox_t philox(int64_t seed, int64_t subsequence, int64_t offset) {
  uint32_t key0 = (uint32_t)(uint64_t)seed, key1 = (uint32_t)((uint64_t)seed >> 32);
  philox_t c = {{(uint32_t)(uint64_t)offset, (uint32_t)((uint64_t)offset >> 32),
                 (uint32_t)(uint64_t)subsequence, (uint32_t)((uint64_t)subsequence >> 32)}};
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = (uint64_t)0xD2511F53u * c.x[0], p1 = (uint64_t)0xCD9E8D57u * c.x[2];
    const philox_t next = {{(uint32_t)(p1 >> 32) ^ c.x[1] ^ key0, (uint32_t)p1,
                            (uint32_t)(p0 >> 32) ^ c.x[3] ^ key1, (uint32_t)p0}};
    c = next;
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  return c;
}
static inline float unit_float(uint32_t bits) {
  return (float)(bits & 0x7fffffffu) * 4.6566127342e-10f;
}
static inline float philox_rand(int64_t seed, int64_t offset) {
  return unit_float(philox(seed, 0, offset).x[0]);
}
static inline float philox_randn(int64_t seed, int64_t offset) {
  const philox_t c = philox(seed, 0, offset);
  const float u = 1.0f - unit_float(c.x[0]);
  return sqrtf(-2.0f * logf(u)) * cosf(6.28318530717958647692f * unit_float(c.x[1]));
}
static inline int64_t philox_randint64(int64_t seed, int64_t offset, int64_t low, int64_t high) {
  const philox_t c = philox(seed, 0, offset);
  const uint64_t range = (uint64_t)high - (uint64_t)low;
  const uint64_t bits = (uint64_t)c.x[0] | ((uint64_t)c.x[1] << 32);
  return low + (int64_t)((range >> 32 ? bits : (uint64_t)c.x[0]) % range);
}
"""
