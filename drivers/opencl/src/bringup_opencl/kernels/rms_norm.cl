// A block normalizes one row. Of the backward's blocks those behind the rows sum columns.
#include "rows.h"

kernel void rms_norm(global const T* x, global const T* weight, global T* out, global T* rstd,
                     long n, float eps, int has_eps) {
  local T part[LANES];
  const long row = get_group_id(0);
  T sum = 0;
  for (long i = get_local_id(0); i < n; i += LANES) sum += x[row * n + i] * x[row * n + i];
  const T scale = 1 / sqrt(row_sum(sum, part) / n + (has_eps ? (T)eps : (T)FLT_EPSILON));
  for (long i = get_local_id(0); i < n; i += LANES) {
    out[row * n + i] = x[row * n + i] * scale * (weight ? weight[i] : (T)1);
  }
  if (get_local_id(0) == 0) rstd[row] = scale;
}

kernel void rms_norm_backward(global const T* grad, global const T* x, global const T* rstd,
                              global const T* weight, global T* of_x, global T* of_weight,
                              long rows, long n) {
  local T part[LANES];
  // No block leaves before the barriers: PoCL lets one that returned go on behind them.
  const long row = get_group_id(0) < rows ? get_group_id(0) : 0;
  const long along_row = get_group_id(0) < rows ? n : 0;
  const long column = ((long)get_group_id(0) - rows) * LANES + get_local_id(0);
  const bool has_column = get_group_id(0) >= rows && column < n;
  T scaled = 0;
  for (long at = 0; has_column && at < rows; ++at) {
    scaled += grad[at * n + column] * x[at * n + column] * rstd[at];
  }
  if (has_column && of_weight) of_weight[column] = scaled;
  const T scale = rstd[row];
  T along = 0;
  for (long i = get_local_id(0); i < along_row; i += LANES) {
    along += grad[row * n + i] * (weight ? weight[i] : (T)1) * x[row * n + i] * scale;
  }
  along = row_sum(along, part) / n;
  for (long i = get_local_id(0); of_x && i < along_row; i += LANES) {
    const T one = grad[row * n + i] * (weight ? weight[i] : (T)1);
    of_x[row * n + i] = (one - x[row * n + i] * scale * along) * scale;
  }
}
