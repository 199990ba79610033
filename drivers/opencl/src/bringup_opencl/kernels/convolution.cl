// Convolutions of images as products of matrices. The matrix of an image's windows (im2col) is in
// no memory: a tile's elements are read where they are in the image. A block in z for each group.
#include "images.h"
#include "tiles.h"

// Element k of a window: which channel, row and column.
#define WINDOW(k) const int c = (k) / (tall * wide), in_y = (k) / wide % tall, in_x = (k) % wide;
// Element p of images, one behind the other.
#define PLACE(p, height, width) \
  const int n = (p) / (height * width), y = (p) / width % height, x = (p) % width;

#define OF_WEIGHT(value, row, k)                           \
  {                                                        \
    WINDOW((int)(k))                                       \
    value = AT(weight, first_made + (row), c, in_y, in_x); \
  }
// Of the input what element k of the window for element p of the result lies on.
#define OF_INPUT(value, k, p)                                              \
  {                                                                        \
    WINDOW((int)(k))                                                       \
    PLACE((int)(p), out_height, out_width)                                 \
    const int from_y = y * step_y - pad_y + in_y * apart_y;                \
    const int from_x = x * step_x - pad_x + in_x * apart_x;                \
    if (from_y >= 0 && from_y < height && from_x >= 0 && from_x < width) { \
      value = AT(input, n, first + c, from_y, from_x);                     \
    }                                                                      \
  }

kernel void convolution(global const T* input, long input_n, long input_c, long input_y,
                        long input_x, global const T* weight, long weight_n, long weight_c,
                        long weight_y, long weight_x, global const T* bias, global T* out,
                        long out_n, long out_c, long out_y, long out_x, int samples, int each,
                        int height, int width, int made, int out_height, int out_width, int tall,
                        int wide, int step_y, int step_x, int pad_y, int pad_x, int apart_y,
                        int apart_x) {
  TILES
  const int first = get_group_id(2) * each, first_made = get_group_id(2) * made;
  const int columns = samples * out_height * out_width;
  const int first_row = get_group_id(1) * TILE, first_column = get_group_id(0) * TILE;
  MULTIPLY(first_row, first_column, made, columns, each * tall * wide, OF_WEIGHT, OF_INPUT)
  for (int i = 0; i < EACH; ++i) {
    for (int j = 0; j < EACH; ++j) {
      const int row = first_row + get_local_id(1) * EACH + i;
      const int column = first_column + get_local_id(0) * EACH + j;
      if (row >= made || column >= columns) continue;
      PLACE(column, out_height, out_width)
      AT(out, n, first_made + row, y, x) = sums[i][j] + (bias ? bias[first_made + row] : (T)0);
    }
  }
}

// The gradient of the input is the product of the weight, over what is made and the window, and of
// what of grad the window was for; that of the weight is the product of grad and the windows, over
// all elements of the results. The bias is a weight behind the others, of an input that is 1.
#define OF_FIRST(value, row, k)                            \
  if (of_images) {                                         \
    WINDOW((int)(k))                                       \
    value = AT(weight, first_made + c, (row), in_y, in_x); \
  } else {                                                 \
    PLACE((int)(k), out_height, out_width)                 \
    value = AT(grad, n, first_made + (row), y, x);         \
  }
#define OF_SECOND(value, k, column)                                                         \
  if (of_images) {                                                                          \
    WINDOW((int)(k))                                                                        \
    PLACE((int)(column), height, width)                                                     \
    const int over_y = y + pad_y - in_y * apart_y, over_x = x + pad_x - in_x * apart_x;     \
    const int to_y = over_y / step_y, to_x = over_x / step_x;                               \
    if (over_y >= 0 && over_x >= 0 && to_y * step_y == over_y && to_x * step_x == over_x && \
        to_y < out_height && to_x < out_width) {                                            \
      value = AT(grad, n, first_made + c, to_y, to_x);                                      \
    }                                                                                       \
  } else if ((column) >= weights) {                                                         \
    value = 1;                                                                              \
  } else {                                                                                  \
    OF_INPUT(value, column, k)                                                              \
  }

kernel void convolution_backward(global const T* grad, long grad_n, long grad_c, long grad_y,
                                 long grad_x, global const T* input, long input_n, long input_c,
                                 long input_y, long input_x, global const T* weight, long weight_n,
                                 long weight_c, long weight_y, long weight_x, global T* of_input,
                                 long of_input_n, long of_input_c, long of_input_y, long of_input_x,
                                 global T* of_weight, long of_weight_n, long of_weight_c,
                                 long of_weight_y, long of_weight_x, global T* of_bias, int samples,
                                 int each, int height, int width, int made, int out_height,
                                 int out_width, int tall, int wide, int step_y, int step_x,
                                 int pad_y, int pad_x, int apart_y, int apart_x) {
  TILES
  const int first = get_group_id(2) * each, first_made = get_group_id(2) * made;
  const int weights = of_weight ? each * tall * wide : 0, pixels = samples * height * width;
  const int tiles = of_input ? (each + TILE - 1) / TILE * ((pixels + TILE - 1) / TILE) : 0;
  const bool of_images = get_group_id(0) < tiles;
  const int tile = of_images ? get_group_id(0) : get_group_id(0) - tiles;
  const int rows = of_images ? each : made, columns = of_images ? pixels : weights + (of_bias != 0);
  const int depth = of_images ? made * tall * wide : samples * out_height * out_width;
  const int across = (columns + TILE - 1) / TILE;
  const int first_row = tile / across * TILE, first_column = tile % across * TILE;
  MULTIPLY(first_row, first_column, rows, columns, depth, OF_FIRST, OF_SECOND)
  for (int i = 0; i < EACH; ++i) {
    for (int j = 0; j < EACH; ++j) {
      const int row = first_row + get_local_id(1) * EACH + i;
      const int column = first_column + get_local_id(0) * EACH + j;
      const T sum = sums[i][j];
      if (row >= rows || column >= columns) continue;
      if (of_images) {
        PLACE(column, height, width)
        AT(of_input, n, first + row, y, x) = sum;
      } else if (column >= weights) {
        of_bias[first_made + row] = sum;
      } else {
        WINDOW(column)
        AT(of_weight, first_made + row, c, in_y, in_x) = sum;
      }
    }
  }
}
