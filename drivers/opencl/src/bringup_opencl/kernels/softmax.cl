// `lanes` threads go along one row, whose elements are `inner` apart.
#include "rows.h"

long first_of_row(long row, long n, long inner) { return row / inner * inner * n + row % inner; }

// No thread leaves: one behind all rows goes along none.
#define ROW_OF_THREAD                                                           \
  const long row = get_global_id(0) / lanes, inner = size == 1 ? 1 : step;      \
  const long n = row < rows ? size : 0, first = first_of_row(row, size, inner); \
  const int lane = get_local_id(0) % lanes

// The largest element of a row, NaN where there is one, for all threads.
T largest_of(global const T* x, long n, long inner, local T* part, int lanes) {
  T most = -INFINITY;
  for (long i = get_local_id(0) % lanes; i < n; i += lanes) {
    const T value = x[i * inner];
    most = value != value || value > most ? value : most;
  }
  return shared_max(most, part, lanes);
}

kernel void softmax(global const T* x, global T* out, long size, long step, long rows, int lanes) {
  local T part[LANES];
  ROW_OF_THREAD;
  const T largest = largest_of(x + first, n, inner, part, lanes);
  T sum = 0;
  for (long i = lane; i < n; i += lanes) {
    const T value = exp(x[first + i * inner] - largest);
    out[first + i * inner] = value;
    sum += value;
  }
  sum = shared_sum(sum, part, lanes);
  for (long i = lane; i < n; i += lanes) out[first + i * inner] /= sum;
}

kernel void log_softmax(global const T* x, global T* out, long size, long step, long rows,
                        int lanes) {
  local T part[LANES];
  ROW_OF_THREAD;
  const T largest = largest_of(x + first, n, inner, part, lanes);
  T sum = 0;
  for (long i = lane; i < n; i += lanes) sum += exp(x[first + i * inner] - largest);
  const T offset = log(shared_sum(sum, part, lanes));
  for (long i = lane; i < n; i += lanes) {
    out[first + i * inner] = x[first + i * inner] - largest - offset;
  }
}

kernel void softmax_backward(global const T* grad, global const T* y, global T* out, long size,
                             long step, long rows, int lanes) {
  local T part[LANES];
  ROW_OF_THREAD;
  T sum = 0;
  for (long i = lane; i < n; i += lanes) {
    sum += grad[first + i * inner] * y[first + i * inner];
  }
  sum = shared_sum(sum, part, lanes);
  for (long i = lane; i < n; i += lanes) {
    out[first + i * inner] = (grad[first + i * inner] - sum) * y[first + i * inner];
  }
}

kernel void log_softmax_backward(global const T* grad, global const T* y, global T* out, long size,
                                 long step, long rows, int lanes) {
  local T part[LANES];
  ROW_OF_THREAD;
  T sum = 0;
  for (long i = lane; i < n; i += lanes) sum += grad[first + i * inner];
  sum = shared_sum(sum, part, lanes);
  for (long i = lane; i < n; i += lanes) {
    out[first + i * inner] = grad[first + i * inner] - exp(y[first + i * inner]) * sum;
  }
}
