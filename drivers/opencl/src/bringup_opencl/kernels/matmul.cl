// Products of matrices of any layout, in tiles of local memory: a block of 8 x 8 threads makes
// 32 x 64 elements, each thread 4 rows of 8. `c` may be a row, a column or one element.
#define SIDE 8
#define ROWS 32
#define COLUMNS 64
#define DEPTH 16
#define EACH 4
#define LINE (DEPTH + 1)
#define JOINED(type, count) type##count
#define VECTOR(type) JOINED(type, 8)
#define T8 VECTOR(T)

// 8 elements, zeros behind the first `count`.
T8 read(global const T* from, long stride, long count) {
  if (stride == 1 && count >= 8) return vload8(0, from);
  T each[8];
  for (int i = 0; i < 8; ++i) each[i] = i < count ? from[i * stride] : (T)0;
  return vload8(0, each);
}

void write(T8 values, global T* to, long stride, long count) {
  if (stride == 1 && count >= 8) {
    vstore8(values, 0, to);
    return;
  }
  T each[8];
  vstore8(values, 0, each);
  for (int i = 0; i < 8 && i < count; ++i) to[i * stride] = each[i];
}

// A tile of `all_lines` lines of `all` elements (a multiple of 8), zeros outside the matrix.
void stage(global const T* from, long line_stride, long stride, long lines, long count,
           local T* to, int line_step, int step, int all_lines, int all) {
  const int first = get_local_id(1) * SIDE + get_local_id(0);
#pragma unroll
  for (int at = first; at < all_lines * all / 8; at += SIDE * SIDE) {
    const int line = at / (all / 8), begin = at % (all / 8) * 8;
    const long left = line < lines ? count - begin : 0;
    const T8 values = read(from + line * line_stride + begin * stride, stride, left);
    local T* there = to + line * line_step + begin * step;
    if (step == 1) {
      vstore8(values, 0, there);
    } else {
      T each[8];
      vstore8(values, 0, each);
      for (int i = 0; i < 8; ++i) there[i * step] = each[i];
    }
  }
}

// The sums in registers: an array that lives across barriers may lie in memory.
void accumulate(local const T* left, local const T* right, T8 sums[EACH]) {
  T8 first = sums[0], second = sums[1], third = sums[2], fourth = sums[3];
#pragma unroll
  for (int k = 0; k < DEPTH; ++k) {
    const T8 row = vload8(0, right + k * (COLUMNS + 1));
    first += left[k] * row;
    second += left[LINE + k] * row;
    third += left[2 * LINE + k] * row;
    fourth += left[3 * LINE + k] * row;
  }
  sums[0] = first, sums[1] = second, sums[2] = third, sums[3] = fourth;
}

void multiply(global const T* a, long a_row, long a_column, global const T* b, long b_row,
              long b_column, long rows, long columns, long depth, local T* left, local T* right,
              T8 sums[EACH]) {
  const int x = get_local_id(0), y = get_local_id(1);
  const long first_row = get_group_id(1) * ROWS, first_column = get_group_id(0) * COLUMNS;
  a += first_row * a_row;
  b += first_column * b_column;
  rows -= first_row;
  columns -= first_column;
  for (int i = 0; i < EACH; ++i) sums[i] = 0;
  for (long begin = 0; begin < depth; begin += DEPTH) {
    global const T* from_a = a + begin * a_column;
    global const T* from_b = b + begin * b_row;
    // Along what lies together in memory.
    if (a_row == 1) {
      stage(from_a, a_column, 1, depth - begin, rows, left, 1, LINE, DEPTH, ROWS);
    } else {
      stage(from_a, a_row, a_column, rows, depth - begin, left, LINE, 1, ROWS, DEPTH);
    }
    if (b_row == 1) {
      stage(from_b, b_column, 1, columns, depth - begin, right, 1, COLUMNS + 1, COLUMNS, DEPTH);
    } else {
      stage(from_b, b_row, b_column, depth - begin, columns, right, COLUMNS + 1, 1, DEPTH, COLUMNS);
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    accumulate(left + y * EACH * LINE, right + x * 8, sums);
    barrier(CLK_LOCAL_MEM_FENCE);
  }
}

kernel __attribute__((reqd_work_group_size(SIDE, SIDE, 1)))
void product(global const T* a, long a_batch, long a_row, long a_column, global const T* b,
                    long b_batch, long b_row, long b_column, global T* out, long out_batch,
                    long out_row, long out_column, long rows, long columns, long depth) {
  local T left[ROWS * LINE], right[DEPTH * (COLUMNS + 1)];
  T8 sums[EACH];
  const long batch = get_group_id(2);
  multiply(a + batch * a_batch, a_row, a_column, b + batch * b_batch, b_row, b_column, rows,
           columns, depth, left, right, sums);
  const long row = get_group_id(1) * ROWS + get_local_id(1) * EACH;
  const long column = get_group_id(0) * COLUMNS + get_local_id(0) * 8;
  out += batch * out_batch + row * out_row + column * out_column;
  for (int i = 0; i < EACH && row + i < rows; ++i) {
    write(sums[i], out + i * out_row, out_column, columns - column);
  }
}

kernel __attribute__((reqd_work_group_size(SIDE, SIDE, 1)))
void added(global const T* c, long c_count, long c_columns, global const T* a, long a_batch,
                  long a_row, long a_column, global const T* b, long b_batch, long b_row,
                  long b_column, global T* out, long rows, long columns, long depth, float beta,
                  float alpha) {
  local T left[ROWS * LINE], right[DEPTH * (COLUMNS + 1)];
  T8 sums[EACH];
  const long batch = get_group_id(2);
  multiply(a + batch * a_batch, a_row, a_column, b + batch * b_batch, b_row, b_column, rows,
           columns, depth, left, right, sums);
  const long row = get_group_id(1) * ROWS + get_local_id(1) * EACH;
  const long column = get_group_id(0) * COLUMNS + get_local_id(0) * 8;
  for (int i = 0; i < EACH && row + i < rows; ++i) {
    const long line = batch * rows + row + i;
    T8 result = (T)alpha * sums[i];
    // With beta 0 what c holds, NaN included, does not count.
    if (beta != 0) {
      global const T* more = c + (c_count == c_columns ? 0 : line * c_columns);
      const bool one = c_columns == 1;
      result += (T)beta * read(more + (one ? 0 : column), one ? 0 : 1, columns - column);
    }
    write(result, out + line * columns + column, 1, columns - column);
  }
}
