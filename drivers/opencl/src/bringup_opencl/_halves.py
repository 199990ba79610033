"""Half precision in OpenCL C as every device has it: kept in 16 bits, computed with as float."""

from __future__ import annotations

__all__ = ["HALVES"]

HALVES = """\
float bringup_from_bfloat16(ushort bits) { return as_float((uint)bits << 16); }
ushort bringup_to_bfloat16(float value) {
  const uint bits = as_uint(value);
  if (isnan(value)) return 0x7fc0;
  return (ushort)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
float bringup_round_bfloat16(float value) {
  return bringup_from_bfloat16(bringup_to_bfloat16(value));
}
float bringup_round_half(float value) {
  ushort bits;
  vstore_half(value, 0, (half*)&bits);
  return vload_half(0, (const half*)&bits);
}
"""
