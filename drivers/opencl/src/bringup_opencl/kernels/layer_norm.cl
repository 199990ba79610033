// `lanes` threads normalize one row. Of the backward's blocks those behind the rows sum columns.
#include "rows.h"

kernel void layer_norm(global const T* x, global const T* weight, global const T* bias,
                       global T* out, global T* mean, global T* rstd, long size, long rows,
                       int lanes, float eps) {
  local T part[LANES];
  // No thread leaves before the barriers: one behind all rows goes along none.
  const long row = get_global_id(0) / lanes, n = row < rows ? size : 0;
  const int lane = get_local_id(0) % lanes;
  global const T* from = x + row * size;
  T sum = 0;
  for (long i = lane; i < n; i += lanes) sum += from[i];
  const T middle = shared_sum(sum, part, lanes) / size;
  sum = 0;
  for (long i = lane; i < n; i += lanes) sum += (from[i] - middle) * (from[i] - middle);
  const T scale = 1 / sqrt(shared_sum(sum, part, lanes) / size + eps);
  for (long i = lane; i < n; i += lanes) {
    const T value = (from[i] - middle) * scale * (weight ? weight[i] : (T)1);
    out[row * size + i] = value + (bias ? bias[i] : (T)0);
  }
  if (lane == 0 && row < rows) {
    mean[row] = middle;
    rstd[row] = scale;
  }
}

kernel void layer_norm_backward(global const T* grad, global const T* x, global const T* mean,
                                global const T* rstd, global const T* weight, global T* of_x,
                                global T* of_weight, global T* of_bias, long rows, long n,
                                int lanes) {
  local T part[LANES];
  // No block leaves before the barriers: PoCL lets one that returned go on behind them.
  const long row_blocks = (rows * lanes + LANES - 1) / LANES;
  const long column = ((long)get_group_id(0) - row_blocks) * LANES + get_local_id(0);
  const bool has_column = get_group_id(0) >= row_blocks && column < n;
  T scaled = 0, plain = 0;
  for (long at = 0; has_column && at < rows; ++at) {
    const T one = grad[at * n + column];
    scaled += one * (x[at * n + column] - mean[at]) * rstd[at];
    plain += one;
  }
  if (has_column && of_weight) of_weight[column] = scaled;
  if (has_column && of_bias) of_bias[column] = plain;
  const bool has_row = (long)get_global_id(0) / lanes < rows;
  const long row = has_row ? get_global_id(0) / lanes : 0, along_row = has_row ? n : 0;
  const int lane = get_local_id(0) % lanes;
  const T middle = mean[row], scale = rstd[row];
  T along = 0, sum = 0;
  for (long i = lane; i < along_row; i += lanes) {
    const T one = grad[row * n + i] * (weight ? weight[i] : (T)1);
    along += one * (x[row * n + i] - middle) * scale;
    sum += one;
  }
  along = shared_sum(along, part, lanes) / n;
  sum = shared_sum(sum, part, lanes) / n;
  for (long i = lane; of_x && i < along_row; i += lanes) {
    const T one = grad[row * n + i] * (weight ? weight[i] : (T)1);
    of_x[row * n + i] = (one - sum - (x[row * n + i] - middle) * scale * along) * scale;
  }
}
