// Products of matrices of any layout, in tiles of local memory: a block of 8 x 8 threads makes
// 64 x 64 elements, each thread 8 rows of 8. `c` may be a row, a column or one element.
#define SIDE 8
#define TILE 64
#define DEPTH 16
#define EACH 8
#define LINE (TILE + 4)
#define JOINED(type, count) type##count
#define VECTOR(type, count) JOINED(type, count)
#define T4 VECTOR(T, 4)
#define T8 VECTOR(T, 8)

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

// 4 elements that are `stride` apart, zeros behind the first `count`.
T4 read4(global const T* from, long stride, long count) {
  return (T4)(count > 0 ? from[0] : (T)0, count > 1 ? from[stride] : (T)0,
              count > 2 ? from[2 * stride] : (T)0, count > 3 ? from[3 * stride] : (T)0);
}

// DEPTH elements of each of TILE lines, a line's below each other: a thread takes 4 of 4 lines,
// along what lies together in memory. Behind the last element there are zeros; behind the last line
// is anything.
void stage(global const T* from, long line_stride, long stride, long lines, long count,
           local T* to) {
  const int thread = get_local_id(1) * SIDE + get_local_id(0);
  const bool down = stride == 1;
  const int line = 4 * (down ? thread / (DEPTH / 4) : thread % (TILE / 4));
  const int k = 4 * (down ? thread % (DEPTH / 4) : thread / (TILE / 4));
  if (line >= lines) return;
  lines -= line;
  count -= k;
  from += line * line_stride + k * stride;
  to += k * LINE + line;
  T4 row0, row1, row2, row3;
  if (down && lines >= 4 && count >= 4) {
    const T4 a = vload4(0, from), b = vload4(0, from + line_stride);
    const T4 c = vload4(0, from + 2 * line_stride), d = vload4(0, from + 3 * line_stride);
    row0 = (T4)(a.s0, b.s0, c.s0, d.s0), row1 = (T4)(a.s1, b.s1, c.s1, d.s1);
    row2 = (T4)(a.s2, b.s2, c.s2, d.s2), row3 = (T4)(a.s3, b.s3, c.s3, d.s3);
  } else if (line_stride == 1 && lines >= 4 && count >= 4) {
    row0 = vload4(0, from), row1 = vload4(0, from + stride);
    row2 = vload4(0, from + 2 * stride), row3 = vload4(0, from + 3 * stride);
  } else {
    row0 = read4(from, line_stride, count > 0 ? lines : 0);
    row1 = read4(from + stride, line_stride, count > 1 ? lines : 0);
    row2 = read4(from + 2 * stride, line_stride, count > 2 ? lines : 0);
    row3 = read4(from + 3 * stride, line_stride, count > 3 ? lines : 0);
  }
  vstore4(row0, 0, to);
  vstore4(row1, 0, to + LINE);
  vstore4(row2, 0, to + 2 * LINE);
  vstore4(row3, 0, to + 3 * LINE);
}

// The sums in registers: an array that lives across barriers may lie in memory.
void accumulate(local const T* left, local const T* right, T8 sums[EACH]) {
  T8 sum[EACH];
#pragma unroll
  for (int i = 0; i < EACH; ++i) sum[i] = sums[i];
#pragma unroll
  for (int k = 0; k < DEPTH; ++k) {
    const T8 row = vload8(0, right + k * LINE);
#pragma unroll
    for (int i = 0; i < EACH; ++i) sum[i] += left[k * LINE + i] * row;
  }
#pragma unroll
  for (int i = 0; i < EACH; ++i) sums[i] = sum[i];
}

void multiply(global const T* a, long a_row, long a_column, global const T* b, long b_row,
              long b_column, long rows, long columns, long depth, local T* left, local T* right,
              T8 sums[EACH]) {
  const int x = get_local_id(0) * 8, y = get_local_id(1) * EACH;
  const long first_row = get_group_id(1) * TILE, first_column = get_group_id(0) * TILE;
  a += first_row * a_row;
  b += first_column * b_column;
  rows -= first_row;
  columns -= first_column;
  for (int i = 0; i < EACH; ++i) sums[i] = 0;
  for (long begin = 0; begin < depth; begin += DEPTH) {
    stage(a + begin * a_column, a_row, a_column, rows, depth - begin, left);
    stage(b + begin * b_row, b_column, b_row, columns, depth - begin, right);
    barrier(CLK_LOCAL_MEM_FENCE);
    if (y < rows && x < columns) accumulate(left + y, right + x, sums);
    barrier(CLK_LOCAL_MEM_FENCE);
  }
}

kernel __attribute__((reqd_work_group_size(SIDE, SIDE, 1)))
void product(global const T* a, long a_batch, long a_row, long a_column, global const T* b,
                    long b_batch, long b_row, long b_column, global T* out, long out_batch,
                    long out_row, long out_column, long rows, long columns, long depth) {
  local T left[DEPTH * LINE], right[DEPTH * LINE];
  T8 sums[EACH];
  const long batch = get_group_id(2);
  multiply(a + batch * a_batch, a_row, a_column, b + batch * b_batch, b_row, b_column, rows,
           columns, depth, left, right, sums);
  const long row = get_group_id(1) * TILE + get_local_id(1) * EACH;
  const long column = get_group_id(0) * TILE + get_local_id(0) * 8;
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
  local T left[DEPTH * LINE], right[DEPTH * LINE];
  T8 sums[EACH];
  const long batch = get_group_id(2);
  multiply(a + batch * a_batch, a_row, a_column, b + batch * b_batch, b_row, b_column, rows,
           columns, depth, left, right, sums);
  const long row = get_group_id(1) * TILE + get_local_id(1) * EACH;
  const long column = get_group_id(0) * TILE + get_local_id(0) * 8;
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
