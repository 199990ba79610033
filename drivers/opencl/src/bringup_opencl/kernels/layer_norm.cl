// A block normalizes one row. Of the backward's blocks those behind the rows sum columns.
#include "rows.h"

kernel void layer_norm(global const T* x, global const T* weight, global const T* bias,
                       global T* out, global T* mean, global T* rstd, long n, float eps) {
  local T part[LANES];
  const long row = get_group_id(0);
  global const T* from = x + row * n;
  T sum = 0;
  for (long i = get_local_id(0); i < n; i += LANES) sum += from[i];
  const T middle = row_sum(sum, part) / n;
  sum = 0;
  for (long i = get_local_id(0); i < n; i += LANES) {
    sum += (from[i] - middle) * (from[i] - middle);
  }
  const T scale = 1 / sqrt(row_sum(sum, part) / n + eps);
  for (long i = get_local_id(0); i < n; i += LANES) {
    const T value = (from[i] - middle) * scale * (weight ? weight[i] : (T)1);
    out[row * n + i] = value + (bias ? bias[i] : (T)0);
  }
  if (get_local_id(0) == 0) {
    mean[row] = middle;
    rstd[row] = scale;
  }
}

kernel void layer_norm_backward(global const T* grad, global const T* x, global const T* mean,
                                global const T* rstd, global const T* weight, global T* of_x,
                                global T* of_weight, global T* of_bias, long rows, long n) {
  local T part[LANES];
  if (get_group_id(0) >= rows) {
    const long i = (get_group_id(0) - rows) * LANES + get_local_id(0);
    T scaled = 0, plain = 0;
    for (long row = 0; i < n && row < rows; ++row) {
      const T one = grad[row * n + i];
      scaled += one * (x[row * n + i] - mean[row]) * rstd[row];
      plain += one;
    }
    if (i < n && of_weight) of_weight[i] = scaled;
    if (i < n && of_bias) of_bias[i] = plain;
    return;
  }
  const long row = get_group_id(0);
  const T middle = mean[row], scale = rstd[row];
  T along = 0, sum = 0;
  for (long i = get_local_id(0); i < n; i += LANES) {
    const T one = grad[row * n + i] * (weight ? weight[i] : (T)1);
    along += one * (x[row * n + i] - middle) * scale;
    sum += one;
  }
  along = row_sum(along, part) / n;
  sum = row_sum(sum, part) / n;
  for (long i = get_local_id(0); of_x && i < n; i += LANES) {
    const T one = grad[row * n + i] * (weight ? weight[i] : (T)1);
    of_x[row * n + i] = (one - sum - (x[row * n + i] - middle) * scale * along) * scale;
  }
}
