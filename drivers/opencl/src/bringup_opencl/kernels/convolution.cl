// Convolutions of images as products of matrices, in tiles of local memory: a block of 8 x 8 threads
// makes 32 x 32 elements, each thread 4 x 4 of them; a block in z for each group. The matrix of an
// image's windows (im2col) is in no memory: a tile's elements are read where they are in the image.
#include "images.h"

#define TILE 32
#define DEPTH 16
#define EACH 4
#define SIDE (TILE / EACH)
#define THREADS (SIDE * SIDE)
#define JOINED(type, count) type##count
#define VECTOR(type) JOINED(type, 4)
#define T4 VECTOR(T)

// How the index of a row or column of a matrix is taken apart, `index` / (high * wide), rows and
// columns: where it is in the left operand, and in the images that are the right one.
typedef struct {
  int high, wide;
  long left, left_y, left_x, outer;
  int step_y, step_x, first_y, first_x;
} axis;

typedef struct {
  long left, outer;
  int y, x;
} spot;

// Images with elements at `divide` times their places alone, and `ones` columns that are 1 last.
typedef struct {
  global const T* from;
  long y_stride, x_stride;
  int height, width, divide_y, divide_x, columns, ones;
} images;

spot spot_of(const axis* taken, int index) {
  const int y = index / taken->wide % taken->high, x = index % taken->wide;
  const int outer = index / (taken->high * taken->wide);
  spot made;
  made.left = outer * taken->left + y * taken->left_y + x * taken->left_x;
  made.outer = outer * taken->outer;
  made.y = y * taken->step_y + taken->first_y;
  made.x = x * taken->step_x + taken->first_x;
  return made;
}

T element(const images* in, local const spot* one, local const spot* other) {
  int y = one->y + other->y, x = one->x + other->x;
  bool inside = y >= 0 && x >= 0;
  if (in->divide_y != 1 || in->divide_x != 1) {
    const int from_y = y / in->divide_y, from_x = x / in->divide_x;
    inside = inside && from_y * in->divide_y == y && from_x * in->divide_x == x;
    y = from_y;
    x = from_x;
  }
  inside = inside && y < in->height && x < in->width;
  return inside ? in->from[one->outer + other->outer + y * in->y_stride + x * in->x_stride] : (T)0;
}

// All threads of a block come here: it has barriers.
void multiply(global const T* left_from, long row_stride, int rows, const images* in, int depth,
              const axis* of_k, const axis* of_column, int first_row, int first_column,
              local T (*left)[TILE + EACH], local T (*right)[TILE + EACH], local spot* columns,
              local spot (*steps)[DEPTH], T sums[EACH][EACH]) {
  const int thread = get_local_id(1) * SIDE + get_local_id(0);
  T4 sum0 = 0, sum1 = 0, sum2 = 0, sum3 = 0;
  if (thread < TILE) columns[thread] = spot_of(of_column, first_column + thread);
  if (thread < DEPTH) steps[0][thread] = spot_of(of_k, thread);
  barrier(CLK_LOCAL_MEM_FENCE);
  int now = 0;
  for (int begin = 0; begin < depth; begin += DEPTH) {
    for (int at = thread; at < TILE * DEPTH; at += THREADS) {
      const int k = at % DEPTH, row = at / DEPTH;
      const bool there = first_row + row < rows && begin + k < depth;
      const long place = (first_row + row) * row_stride + steps[now][k].left;
      left[k][row] = there ? left_from[place] : (T)0;
    }
    for (int at = thread; at < TILE * DEPTH; at += THREADS) {
      const int k = at / TILE, column = at % TILE, number = first_column + column;
      const bool there = number < in->columns && begin + k < depth;
      const bool is_one = number >= in->columns - in->ones;
      T value = 0;
      if (there) value = is_one ? (T)1 : element(in, &steps[now][k], &columns[column]);
      right[k][column] = value;
    }
    // Those of the next step, where no thread reads.
    if (thread < DEPTH) steps[1 - now][thread] = spot_of(of_k, begin + DEPTH + thread);
    now = 1 - now;
    barrier(CLK_LOCAL_MEM_FENCE);
#pragma unroll
    for (int k = 0; k < DEPTH; ++k) {
      const T4 one = vload4(get_local_id(1), left[k]);
      const T4 other = vload4(get_local_id(0), right[k]);
      sum0 = fma((T4)(one.x), other, sum0);
      sum1 = fma((T4)(one.y), other, sum1);
      sum2 = fma((T4)(one.z), other, sum2);
      sum3 = fma((T4)(one.w), other, sum3);
    }
    barrier(CLK_LOCAL_MEM_FENCE);
  }
  vstore4(sum0, 0, sums[0]);
  vstore4(sum1, 0, sums[1]);
  vstore4(sum2, 0, sums[2]);
  vstore4(sum3, 0, sums[3]);
}

#define TILES                                                  \
  local T left[DEPTH][TILE + EACH], right[DEPTH][TILE + EACH]; \
  local spot columns[TILE], steps[2][DEPTH];                   \
  T sums[EACH][EACH];

kernel void convolution(global const T* input, long input_n, long input_c, long input_y,
                        long input_x, global const T* weight, long weight_n, long weight_c,
                        long weight_y, long weight_x, global const T* bias, global T* out,
                        long out_n, long out_c, long out_y, long out_x, int samples, int each,
                        int height, int width, int made, int out_height, int out_width, int tall,
                        int wide, int step_y, int step_x, int pad_y, int pad_x, int apart_y,
                        int apart_x) {
  TILES
  const int first = get_group_id(2) * each, first_made = get_group_id(2) * made;
  const int count = samples * out_height * out_width;
  const int first_row = get_group_id(1) * TILE, first_column = get_group_id(0) * TILE;
  const axis window = {tall,    wide,    weight_c, weight_y, weight_x, input_c,
                       apart_y, apart_x, 0,        0};
  const axis place = {out_height, out_width, 0, 0, 0, input_n, step_y, step_x, -pad_y, -pad_x};
  const images in = {input + first * input_c, input_y, input_x, height, width, 1, 1, count, 0};
  multiply(weight + first_made * weight_n, weight_n, made, &in, each * tall * wide, &window, &place,
           first_row, first_column, left, right, columns, steps, sums);
  for (int i = 0; i < EACH; ++i) {
    for (int j = 0; j < EACH; ++j) {
      const int row = first_row + get_local_id(1) * EACH + i;
      const int column = first_column + get_local_id(0) * EACH + j;
      if (row >= made || column >= count) continue;
      const int n = column / (out_height * out_width), y = column / out_width % out_height;
      const T more = bias ? bias[first_made + row] : (T)0;
      AT(out, n, first_made + row, y, column % out_width) = sums[i][j] + more;
    }
  }
}

// The gradient of the input is the product of the weight, over what is made and the window, and of
// what of grad the window was for; that of the weight is the product of grad and the windows, over
// all elements of the results. The bias is a weight behind the others, of an input that is 1.
kernel void convolution_backward(
    global const T* grad, long grad_n, long grad_c, long grad_y, long grad_x,
    global const T* input, long input_n, long input_c, long input_y, long input_x,
    global const T* weight, long weight_n, long weight_c, long weight_y, long weight_x,
    global T* of_input, long of_input_n, long of_input_c, long of_input_y, long of_input_x,
    global T* of_weight, long of_weight_n, long of_weight_c, long of_weight_y, long of_weight_x,
    global T* of_bias, int samples, int each, int height, int width, int made, int out_height,
    int out_width, int tall, int wide, int step_y, int step_x, int pad_y, int pad_x, int apart_y,
    int apart_x) {
  TILES
  const int first = get_group_id(2) * each, first_made = get_group_id(2) * made;
  const int weights = of_weight ? each * tall * wide : 0, pixels = samples * height * width;
  const int tiles = of_input ? (each + TILE - 1) / TILE * ((pixels + TILE - 1) / TILE) : 0;
  const bool of_images = get_group_id(0) < tiles;
  const int tile = of_images ? get_group_id(0) : get_group_id(0) - tiles;
  const int ones = !of_images && of_bias ? 1 : 0;
  const int rows = of_images ? each : made, count = of_images ? pixels : weights + ones;
  const int depth = of_images ? made * tall * wide : samples * out_height * out_width;
  const int across = (count + TILE - 1) / TILE;
  const int first_row = tile / across * TILE, first_column = tile % across * TILE;
  axis of_k = {tall, wide, weight_n, weight_y, weight_x, grad_c, -apart_y, -apart_x, 0, 0};
  axis of_column = {height, width, 0, 0, 0, grad_n, 1, 1, pad_y, pad_x};
  images in = {grad + first_made * grad_c, grad_y, grad_x, out_height, out_width, step_y, step_x,
               count, 0};
  global const T* left_from = weight + first_made * weight_n;
  if (!of_images) {
    const axis place = {out_height, out_width, grad_n, grad_y, grad_x, input_n,
                        step_y,     step_x,    -pad_y, -pad_x};
    const axis window = {tall, wide, 0, 0, 0, input_c, apart_y, apart_x, 0, 0};
    const images windows = {input + first * input_c, input_y, input_x, height, width, 1, 1,
                            count, ones};
    of_k = place;
    of_column = window;
    in = windows;
    left_from = grad + first_made * grad_c;
  }
  multiply(left_from, of_images ? weight_c : grad_c, rows, &in, depth, &of_k, &of_column, first_row,
           first_column, left, right, columns, steps, sums);
  for (int i = 0; i < EACH; ++i) {
    for (int j = 0; j < EACH; ++j) {
      const int row = first_row + get_local_id(1) * EACH + i;
      const int column = first_column + get_local_id(0) * EACH + j;
      if (row >= rows || column >= count) continue;
      if (of_images) {
        const int n = column / (height * width), y = column / width % height;
        AT(of_input, n, first + row, y, column % width) = sums[i][j];
      } else if (column >= weights) {
        of_bias[first_made + row] = sums[i][j];
      } else {
        const int c = column / (tall * wide), y = column / wide % tall;
        AT(of_weight, first_made + row, c, y, column % wide) = sums[i][j];
      }
    }
  }
}
