// Products of matrices of any layout. `c` may be a row, a column or one element.
#include "tiles.h"

#define OF_A(value, row, k) value = a[batch * a_batch + (row) * a_row + (k) * a_column];
#define OF_B(value, k, column) value = b[batch * b_batch + (k) * b_row + (column) * b_column];

kernel void product(global const T* a, long a_batch, long a_row, long a_column, global const T* b,
                    long b_batch, long b_row, long b_column, global T* out, long out_batch,
                    long out_row, long out_column, long rows, long columns, long depth) {
  TILES
  const long batch = get_group_id(2);
  const long first_row = get_group_id(1) * TILE, first_column = get_group_id(0) * TILE;
  MULTIPLY(first_row, first_column, rows, columns, depth, OF_A, OF_B)
  for (int i = 0; i < EACH; ++i) {
    for (int j = 0; j < EACH; ++j) {
      const long row = first_row + get_local_id(1) * EACH + i;
      const long column = first_column + get_local_id(0) * EACH + j;
      if (row >= rows || column >= columns) continue;
      out[batch * out_batch + row * out_row + column * out_column] = sums[i][j];
    }
  }
}

kernel void added(global const T* c, long c_count, long c_columns, global const T* a, long a_batch,
                  long a_row, long a_column, global const T* b, long b_batch, long b_row,
                  long b_column, global T* out, long rows, long columns, long depth, float beta,
                  float alpha) {
  TILES
  const long batch = get_group_id(2);
  const long first_row = get_group_id(1) * TILE, first_column = get_group_id(0) * TILE;
  MULTIPLY(first_row, first_column, rows, columns, depth, OF_A, OF_B)
  for (int i = 0; i < EACH; ++i) {
    for (int j = 0; j < EACH; ++j) {
      const long row = first_row + get_local_id(1) * EACH + i;
      const long column = first_column + get_local_id(0) * EACH + j;
      if (row >= rows || column >= columns) continue;
      const long place = (batch * rows + row) * columns + column;
      const long place_in_c = c_count == c_columns ? 0 : (batch * rows + row) * c_columns;
      // With beta 0 what c holds, NaN included, does not count.
      const T more = beta == 0 ? (T)0 : (T)beta * c[place_in_c + (c_columns == 1 ? 0 : column)];
      out[place] = (T)alpha * sums[i][j] + more;
    }
  }
}
