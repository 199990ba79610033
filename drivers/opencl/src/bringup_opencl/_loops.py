"""Loop nests of torch.compile in OpenCL C: one work item for each result, or a group for one that
much is reduced to.

Words with a leading `bringup_` are this package's, the others those of `jit.LoopLanguage`.
"""

from __future__ import annotations

from bringup import jit
from bringup_opencl._halves import HALVES

__all__ = ["LOOPS"]

_MATH = (
    "exp exp2 expm1 log log1p log2 log10 sqrt sin cos tan asin acos atan sinh cosh tanh asinh "
    "acosh atanh erf erfc floor ceil trunc rint lgamma fabs pow atan2 fmod copysign nextafter "
    "hypot ldexp"
)
_TYPES = """\
#pragma OPENCL FP_CONTRACT OFF
typedef char int8_t;
typedef short int16_t;
typedef int int32_t;
typedef long int64_t;
typedef uchar uint8_t;
typedef ushort uint16_t;
typedef uint uint32_t;
typedef ulong uint64_t;
typedef half half_t;
typedef ushort bfloat16_t;
#define INT64_C(number) number##L
#include "bringup/functions.h"
#define inline
#define BRINGUP_GLOBAL global
#define BRINGUP_FIRST(n) ((long)get_global_id(0))
#define BRINGUP_LAST(n) (n)
#define BRINGUP_STEP ((long)get_global_size(0))
#define BRINGUP_LOCAL local
#define BRINGUP_THREAD ((long)get_local_id(0))
#define BRINGUP_BLOCK ((long)get_group_id(0))
#ifdef POCL_DEVICE_ADDRESS_BITS
#define BRINGUP_TOGETHER() barrier(CLK_LOCAL_MEM_FENCE)
#else
#define BRINGUP_TOGETHER()
#endif
#define BRINGUP_BARRIER() barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE)
"""
_NUMBERS = """\
static int32_t bitcast_float_int32(float v) { return as_int(v); }
static float bitcast_int32_float(int32_t v) { return as_float(v); }
static float load_half(global const half_t* p, long i) { return vload_half(i, p); }
static void store_half(global half_t* p, long i, float v) { vstore_half(v, i, p); }
static float load_bfloat16(global const bfloat16_t* p, long i) {
  return bringup_from_bfloat16(p[i]);
}
static void store_bfloat16(global bfloat16_t* p, long i, float v) {
  p[i] = bringup_to_bfloat16(v);
}
#define round_half bringup_round_half
#define round_bfloat16 bringup_round_bfloat16
static void atomic_add_int32_t(global int32_t* p, int32_t v) {
  atomic_add((volatile global int*)p, v);
}
static void atomic_add_float(global float* p, float v) {
  volatile global int* const place = (volatile global int*)p;
  int known = *place, found = known;
  do {
    known = found;
    found = atomic_cmpxchg(place, known, as_int(as_float(known) + v));
  } while (found != known);
}
static void report_fault(global int32_t* fault, int32_t number, int64_t value) {
  if (atomic_cmpxchg((volatile global int*)(fault + 1), 0, 1) != 0) return;
  *(global int64_t*)(fault + 2) = value;
  mem_fence(CLK_GLOBAL_MEM_FENCE);
  *fault = number;
}
"""
_DOUBLES = """\
#pragma OPENCL EXTENSION cl_khr_fp64 : enable
static int64_t bitcast_double_int64(double v) { return as_long(v); }
static double bitcast_int64_double(int64_t v) { return as_double(v); }
"""


_MACROS = "".join(
    f"#define {name}f {'bringup_erff' if name == 'erf' else name}\n" for name in _MATH.split()
)

LOOPS = jit.LoopLanguage(
    suffix=".cl",
    prelude=f"{_TYPES}{_MACROS}{HALVES}{_NUMBERS}",
    float64=_DOUBLES,
    entry="kernel void {name}({parameters})",
    flags=("-w",),
    threads=64,
    shared=True,
    elements=64,
    most_blocks=(1 << 31) - 1,
    atomics=("float", "int32_t"),
)
