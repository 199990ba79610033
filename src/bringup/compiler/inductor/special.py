"""Special functions that generated code has beyond math.h, in what C and OpenCL C share."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial

_CALLED = re.compile(r"\b(digamma|polygamma|zeta|chebyshev|recurrent)_(float|double)\(")


def special_functions(text: str, floats: Sequence[str]) -> str:
    """Return those for each of `floats`, the widest last, if a text calls any."""
    return "".join(map(partial(_for, floats[-1]), floats)) if _CALLED.search(text) else ""


def _for(wide: str, c_type: str) -> str:
    ends = {"float": "f", "double": ""}
    text = re.sub(r"\bM_(\w+)", rf"\1{ends[c_type]}", _FUNCTIONS)
    text = re.sub(r"\bW_(\w+)", rf"\1{ends[wide]}", text)
    text = re.sub(r"\d\.\d+e[-\d]+", rf"\g<0>{ends[wide]}", text)
    facts = {"T": c_type, "WIDE": wide, "PI": f"3.14159265358979323846{ends[c_type]}"}
    facts |= {"EPSILON": "1.1e-16" if wide == "double" else "6e-8f"}
    facts |= {"LARGEST": "128" if c_type == "float" else "512"}
    text = re.sub(rf"\b({'|'.join(facts)})\b", lambda found: facts[found[0]], text)
    return text.replace("_T(", f"_{c_type}(")


# zeta: Euler and Maclaurin's sum, Abramowitz and Stegun (1964) 23.1.30, whose numbers are
# (2 k)! / B(2 k). digamma and trigamma: 6.3.18 and 6.4.12, reflected by 6.3.7 and 6.4.7.
# Chebyshev polynomials of kinds 1 to 4 (t, u, v, w): 22.3.15 and 22.3.16, and 22.7.4. The others:
# 22.7.13 (h), 22.7.14 (he), 22.7.12 (l), 22.7.10 (p). Values at ends and limits are torch's.
_FUNCTIONS = """\
static inline T zeta_T(T x, T q) {
  const WIDE terms[12] = {12, -720, 30240, -1209600, 47900160, (WIDE)-1.8924375803183791606e9,
      (WIDE)7.47242496e10, (WIDE)-2.950130727918164224e12, (WIDE)1.1646782814350067249e14,
      (WIDE)-4.5979787224074726105e15, (WIDE)1.8152105401943546773e17,
      (WIDE)-7.1661652561756670113e18};
  if (x == 1 || (!(x < 1) && q <= 0 && q == M_floor(q))) return INFINITY;
  if (x < 1 || (q <= 0 && x != M_floor(x))) return NAN;
  WIDE a = q, sum = W_pow(a, -(WIDE)x), b = 0;
  for (int i = 0; i < 9 || a <= 9; ++i) {
    b = W_pow(++a, -(WIDE)x);
    sum += b;
    if (-EPSILON * sum < b && b < EPSILON * sum) return (T)sum;
  }
  sum += b * a / (x - 1) - b / 2;
  WIDE factor = 1;
  for (int i = 0; i < 12; ++i) {
    factor *= x + 2 * i;
    b /= a;
    const WIDE term = factor * b / terms[i];
    sum += term;
    if (W_fabs(term) < EPSILON * W_fabs(sum)) break;
    factor *= x + 2 * i + 1;
    b /= a;
  }
  return (T)sum;
}
static inline T digamma_T(T x) {
  if (x == 0) return M_copysign((T)INFINITY, -x);
  if (x < 0 && x == M_trunc(x)) return NAN;
  T sum = 0;
  if (x < 0) {
    sum = -PI / M_tan(PI * (x - M_rint(x)));
    x = 1 - x;
  }
  for (; x < 10; ++x) sum -= 1 / x;
  const T z = 1 / (x * x);
  const T series = z * ((T)1 / 12 - z * ((T)1 / 120 - z * ((T)1 / 252 - z * ((T)1 / 240 -
      z * ((T)1 / 132 - z * ((T)691 / 32760 - z * ((T)1 / 12)))))));
  return sum + M_log(x) - 1 / (2 * x) - series;
}
static inline T polygamma_T(T order, T x) {
  if (order == 0) return digamma_T(x);
  if (order != 1) {
    const T sign = M_fmod(order, (T)2) == 0 ? -1 : 1;
    return sign * M_exp(M_lgamma(order + 1)) * zeta_T(order + 1, x);
  }
  const bool mirrored = 2 * x < 1;
  T sum = 0;
  if (mirrored) {
    const T sine = M_sin(PI * x);
    sum = -PI * PI / (sine * sine);
    x = 1 - x;
  }
  for (int i = 0; i < 6; ++i, ++x) sum += 1 / (x * x);
  const T z = 1 / (x * x);
  sum += (1 + 1 / (2 * x) + z * ((T)1 / 6 - z * ((T)1 / 30 - z * ((T)1 / 42)))) / x;
  return mirrored ? -sum : sum;
}
static inline T chebyshev_T(T x, T degree, int kind, int limit) {
  const int64_t n = degree - degree == 0 ? (int64_t)degree : -1;
  if (n < 0) return 0;
  const T one = kind == 4 ? n + n + 1 : kind == 2 ? n + 1 : 1;
  const T minus_one = kind == 3 ? n + n + 1 : kind == 2 ? n + 1 : 1;
  if (x == 1 || x == -1) return x == 1 ? one : n % 2 == 0 ? minus_one : -minus_one;
  if (n > limit && M_fabs(x) < 1) {
    const T a = M_acos(x), between = n + (T)1 / 2;
    return kind == 1   ? M_cos(n * a)
           : kind == 2 ? M_sin((n + 1) * a) / M_sin(a)
           : kind == 3 ? M_cos(between * a) / M_cos(a / 2)
                       : M_sin(between * a) / M_sin(a / 2);
  }
  T before = 1, now = kind == 1 ? x : x + x + (kind == 2 ? 0 : kind == 3 ? -1 : 1);
  for (int64_t k = 2; k <= n && now == now; ++k) {
    const T next = (x + x) * now - before;
    before = now;
    now = next;
  }
  return n == 0 ? 1 : now;
}
static inline T recurrent_T(T x, T degree, int kind) {
  const int64_t n = degree - degree == 0 ? (int64_t)degree : -1;
  if (n < 0) return 0;
  if (n == 0 || (kind == 'l' && x == 0)) return 1;
  if (kind == 'p' && M_fabs(x) == 1) return x > 0 || n % 2 == 0 ? 1 : -1;
  if ((kind == 'h' || kind == 'e') && n > LARGEST) return NAN;
  T before = 1, now = kind == 'h' ? x + x : kind == 'l' ? 1 - x : x;
  for (int64_t k = 1; k < n && now == now; ++k) {
    const T next = kind == 'h'   ? (x + x) * now - 2 * k * before
                   : kind == 'e' ? x * now - k * before
                   : kind == 'l' ? ((k + k + (1 - x)) * now - k * before) / (k + 1)
                                 : ((k + k + 1) * x * now - k * before) / (k + 1);
    before = now;
    now = next;
  }
  return now;
}
"""
