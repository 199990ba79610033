// (x - offset) * scale, with one of each for a block of x [items, rows, columns]. KIND is what an
// element of x is: a number of type T, or the bits of a float8_e4m3fn (1), float8_e5m2 (2), int4 (3)
// or float4_e2m1fn (4), of the last two of which a byte has two, the lower half first.
#define int8_t char
#define uint8_t uchar

float small_float(uint bits, uint fraction, uint bias, uint sign, uint special) {
  const uint magnitude = bits & (sign - 1);
  float value = magnitude < (1u << fraction)
                    ? ldexp((float)magnitude, 1 - (int)(bias + fraction))
                    : as_float((magnitude << (23 - fraction)) + ((127 - bias) << 23));
  if (magnitude >= special) value = as_float(as_uint(value) | 0x7f800000u);
  return bits & sign ? -value : value;
}

float element(global const T* x, long i) {
#if KIND == 1
  return small_float(x[i], 3, 7, 0x80, 0x7f);
#elif KIND == 2
  return small_float(x[i], 2, 15, 0x80, 0x7c);
#elif KIND == 3
  return (float)((int)((x[i / 2] >> i % 2 * 4 & 15) ^ 8) - 8);
#elif KIND == 4
  return small_float(x[i / 2] >> i % 2 * 4 & 15, 1, 1, 8, 8);
#else
  return (float)x[i];
#endif
}

#define PLACE(name)                                                                         \
  ((item * name##_item) + (row / block_rows * name##_row) + (column / block_columns * name##_column))

kernel void dequantize(global const T* x, global const float* scale, long scale_item,
                       long scale_row, long scale_column, global const float* offset,
                       long offset_item, long offset_row, long offset_column, global float* out,
                       long rows, long columns, long block_rows, long block_columns, long count) {
  const long i = get_global_id(0);
  if (i >= count) return;
  const long column = i % columns, row = i / columns % rows, item = i / columns / rows;
  out[i] = (element(x, i) - offset[PLACE(offset)]) * scale[PLACE(scale)];
}
