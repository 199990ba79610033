// Products of matrices of any layout, in tiles of local memory: a block of 8 x 8 threads makes
// 32 x 32 elements, each thread 4 x 4 of them. `c` may be a row, a column or one element.
#define TILE 32
#define DEPTH 16
#define EACH 4

void multiply(global const T* a, long a_row, long a_column, global const T* b, long b_row,
              long b_column, long rows, long columns, long depth, local T (*left)[TILE + 1],
              local T (*right)[TILE + 1], T sums[EACH][EACH]) {
  const int x = get_local_id(0), y = get_local_id(1), thread = y * (TILE / EACH) + x;
  const int threads = (TILE / EACH) * (TILE / EACH);
  const long first_row = get_group_id(1) * TILE, first_column = get_group_id(0) * TILE;
  for (int i = 0; i < EACH; ++i) {
    for (int j = 0; j < EACH; ++j) sums[i][j] = 0;
  }
  for (long begin = 0; begin < depth; begin += DEPTH) {
    for (int at = thread; at < TILE * DEPTH; at += threads) {
      const int k = at % DEPTH, row = at / DEPTH, k_of_b = at / TILE, column = at % TILE;
      const bool in_a = first_row + row < rows && begin + k < depth;
      const bool in_b = first_column + column < columns && begin + k_of_b < depth;
      left[k][row] = in_a ? a[(first_row + row) * a_row + (begin + k) * a_column] : (T)0;
      right[k_of_b][column] =
          in_b ? b[(begin + k_of_b) * b_row + (first_column + column) * b_column] : (T)0;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int k = 0; k < DEPTH; ++k) {
      for (int i = 0; i < EACH; ++i) {
        const T value = left[k][y * EACH + i];
        for (int j = 0; j < EACH; ++j) sums[i][j] = fma(value, right[k][x * EACH + j], sums[i][j]);
      }
    }
    barrier(CLK_LOCAL_MEM_FENCE);
  }
}

kernel void product(global const T* a, long a_batch, long a_row, long a_column, global const T* b,
                    long b_batch, long b_row, long b_column, global T* out, long out_batch,
                    long out_row, long out_column, long rows, long columns, long depth) {
  local T left[DEPTH][TILE + 1], right[DEPTH][TILE + 1];
  T sums[EACH][EACH];
  const long batch = get_group_id(2);
  multiply(a + batch * a_batch, a_row, a_column, b + batch * b_batch, b_row, b_column, rows,
           columns, depth, left, right, sums);
  for (int i = 0; i < EACH; ++i) {
    for (int j = 0; j < EACH; ++j) {
      const long row = get_group_id(1) * TILE + get_local_id(1) * EACH + i;
      const long column = get_group_id(0) * TILE + get_local_id(0) * EACH + j;
      if (row >= rows || column >= columns) continue;
      out[batch * out_batch + row * out_row + column * out_column] = sums[i][j];
    }
  }
}

kernel void added(global const T* c, long c_count, long c_columns, global const T* a, long a_batch,
                  long a_row, long a_column, global const T* b, long b_batch, long b_row,
                  long b_column, global T* out, long rows, long columns, long depth, float beta,
                  float alpha) {
  local T left[DEPTH][TILE + 1], right[DEPTH][TILE + 1];
  T sums[EACH][EACH];
  const long batch = get_group_id(2);
  multiply(a + batch * a_batch, a_row, a_column, b + batch * b_batch, b_row, b_column, rows,
           columns, depth, left, right, sums);
  for (int i = 0; i < EACH; ++i) {
    for (int j = 0; j < EACH; ++j) {
      const long row = get_group_id(1) * TILE + get_local_id(1) * EACH + i;
      const long column = get_group_id(0) * TILE + get_local_id(0) * EACH + j;
      if (row >= rows || column >= columns) continue;
      const long place = (batch * rows + row) * columns + column;
      const long place_in_c = c_count == c_columns ? 0 : (batch * rows + row) * c_columns;
      // With beta 0 what c holds, NaN included, does not count.
      const T more = beta == 0 ? (T)0 : (T)beta * c[place_in_c + (c_columns == 1 ? 0 : column)];
      out[place] = (T)alpha * sums[i][j] + more;
    }
  }
}
