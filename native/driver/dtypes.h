// Every dtype that bringup/driver.h has a bit for, listed once.
#pragma once

// V(BIT, torch's name, its ScalarType, DLPack's code, its bits), in the order of the bits; 0 bits:
// no tensor of it is given to kernels.
#define BRINGUP_DTYPES(V)                                     \
  V(BOOL, bool, Bool, 6, 8)                                   \
  V(UINT8, uint8, Byte, 1, 8)                                 \
  V(INT8, int8, Char, 0, 8)                                   \
  V(INT16, int16, Short, 0, 16)                               \
  V(INT32, int32, Int, 0, 32)                                 \
  V(INT64, int64, Long, 0, 64)                                \
  V(UINT16, uint16, UInt16, 1, 16)                            \
  V(UINT32, uint32, UInt32, 1, 32)                            \
  V(UINT64, uint64, UInt64, 1, 64)                            \
  V(FLOAT16, float16, Half, 2, 16)                            \
  V(BFLOAT16, bfloat16, BFloat16, 4, 16)                      \
  V(FLOAT32, float32, Float, 2, 32)                           \
  V(FLOAT64, float64, Double, 2, 64)                          \
  V(COMPLEX32, complex32, ComplexHalf, 0, 0)                  \
  V(COMPLEX64, complex64, ComplexFloat, 5, 64)                \
  V(COMPLEX128, complex128, ComplexDouble, 5, 128)            \
  V(FLOAT8_E4M3FN, float8_e4m3fn, Float8_e4m3fn, 10, 8)       \
  V(FLOAT8_E5M2, float8_e5m2, Float8_e5m2, 12, 8)             \
  V(FLOAT8_E4M3FNUZ, float8_e4m3fnuz, Float8_e4m3fnuz, 11, 8) \
  V(FLOAT8_E5M2FNUZ, float8_e5m2fnuz, Float8_e5m2fnuz, 13, 8) \
  V(FLOAT8_E8M0FNU, float8_e8m0fnu, Float8_e8m0fnu, 14, 8)    \
  V(FLOAT4_E2M1FN_X2, float4_e2m1fn_x2, Float4_e2m1fn_x2, 0, 0)
