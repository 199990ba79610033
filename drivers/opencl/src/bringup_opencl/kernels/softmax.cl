// A block goes along one row, whose elements are `inner` apart.
#include "rows.h"

long first_of_row(long row, long n, long inner) { return row / inner * inner * n + row % inner; }

// The largest element of a row, NaN where there is one, for all threads.
T largest_of(global const T* x, long n, long inner, local T* part) {
  T most = -INFINITY;
  for (long i = get_local_id(0); i < n; i += LANES) {
    const T value = x[i * inner];
    most = value != value || value > most ? value : most;
  }
  return row_max(most, part);
}

kernel void softmax(global const T* x, global T* out, long n, long step) {
  local T part[LANES];
  const long inner = n == 1 ? 1 : step, first = first_of_row(get_group_id(0), n, inner);
  const T largest = largest_of(x + first, n, inner, part);
  T sum = 0;
  for (long i = get_local_id(0); i < n; i += LANES) {
    const T value = exp(x[first + i * inner] - largest);
    out[first + i * inner] = value;
    sum += value;
  }
  sum = row_sum(sum, part);
  for (long i = get_local_id(0); i < n; i += LANES) out[first + i * inner] /= sum;
}

kernel void log_softmax(global const T* x, global T* out, long n, long step) {
  local T part[LANES];
  const long inner = n == 1 ? 1 : step, first = first_of_row(get_group_id(0), n, inner);
  const T largest = largest_of(x + first, n, inner, part);
  T sum = 0;
  for (long i = get_local_id(0); i < n; i += LANES) sum += exp(x[first + i * inner] - largest);
  const T offset = log(row_sum(sum, part));
  for (long i = get_local_id(0); i < n; i += LANES) {
    out[first + i * inner] = x[first + i * inner] - largest - offset;
  }
}

kernel void softmax_backward(global const T* grad, global const T* y, global T* out, long n,
                             long step) {
  local T part[LANES];
  const long inner = n == 1 ? 1 : step, first = first_of_row(get_group_id(0), n, inner);
  T sum = 0;
  for (long i = get_local_id(0); i < n; i += LANES) {
    sum += grad[first + i * inner] * y[first + i * inner];
  }
  sum = row_sum(sum, part);
  for (long i = get_local_id(0); i < n; i += LANES) {
    out[first + i * inner] = (grad[first + i * inner] - sum) * y[first + i * inner];
  }
}

kernel void log_softmax_backward(global const T* grad, global const T* y, global T* out, long n,
                                 long step) {
  local T part[LANES];
  const long inner = n == 1 ? 1 : step, first = first_of_row(get_group_id(0), n, inner);
  T sum = 0;
  for (long i = get_local_id(0); i < n; i += LANES) sum += grad[first + i * inner];
  sum = row_sum(sum, part);
  for (long i = get_local_id(0); i < n; i += LANES) {
    out[first + i * inner] = grad[first + i * inner] - exp(y[first + i * inner]) * sum;
  }
}
