// `lanes` threads go along one row, whose elements are `inner` apart; each takes several together,
// of which functions are computed at once.
#include "bringup/functions.h"
#include "rows.h"

#define EACH 4
#define TS VECTOR(T, EACH)

long first_of_row(long row, long n, long inner) { return row / inner * inner * n + row % inner; }

// No thread leaves: one behind all rows goes along none.
#define ROW_OF_THREAD                                                           \
  const long row = get_global_id(0) / lanes, inner = size == 1 ? 1 : step;      \
  const long n = row < rows ? size : 0, first = first_of_row(row, size, inner); \
  const int lane = get_local_id(0) % lanes

#define ALONG_ROW(i) for (long i = lane * EACH; i < n; i += lanes * EACH)

// EACH elements, `none` behind the first `count`.
TS read(global const T* from, long inner, long count, T none) {
  if (inner == 1 && count >= EACH) return vload4(0, from);
  return (TS)(from[0], count > 1 ? from[inner] : none, count > 2 ? from[2 * inner] : none,
              count > 3 ? from[3 * inner] : none);
}

void write(TS values, global T* to, long inner, long count) {
  if (inner == 1 && count >= EACH) {
    vstore4(values, 0, to);
    return;
  }
  to[0] = values.s0;
  if (count > 1) to[inner] = values.s1;
  if (count > 2) to[2 * inner] = values.s2;
  if (count > 3) to[3 * inner] = values.s3;
}

// The largest element of a row, NaN where there is one, for all threads.
T largest_of(global const T* x, long n, long inner, local T* part, int lanes) {
  const int lane = get_local_id(0) % lanes;
  TS most = -INFINITY;
  ALONG_ROW(i) {
    const TS value = read(x + i * inner, inner, n - i, -INFINITY);
    most = shared_max_4(value, most);
  }
  return shared_max(shared_max_of_4(most), part, lanes);
}

// `safe`: of a row that is -infinity everywhere, as where all is masked, the result is 0, not NaN.
kernel void softmax(global const T* x, global T* out, long size, long step, long rows, int lanes,
                    int safe) {
  local T part[LANES];
  ROW_OF_THREAD;
  x += first, out += first;
  const T largest = largest_of(x, n, inner, part, lanes);
  const bool zeros = safe && largest == -INFINITY;
  TS sum = 0;
  ALONG_ROW(i) {
    const TS from = read(x + i * inner, inner, n - i, -INFINITY);
    const TS value = exp(from - (zeros ? (T)0 : largest));
    write(value, out + i * inner, inner, n - i);
    sum += value;
  }
  const T all = shared_sum(shared_sum_of_4(sum), part, lanes) + (zeros ? (T)1 : (T)0);
  ALONG_ROW(i) write(read(out + i * inner, inner, n - i, 0) / all, out + i * inner, inner, n - i);
}

kernel void log_softmax(global const T* x, global T* out, long size, long step, long rows,
                        int lanes) {
  local T part[LANES];
  ROW_OF_THREAD;
  x += first, out += first;
  const T largest = largest_of(x, n, inner, part, lanes);
  TS sum = 0;
  ALONG_ROW(i) sum += exp(read(x + i * inner, inner, n - i, -INFINITY) - largest);
  const T offset = bringup_logf(shared_sum(shared_sum_of_4(sum), part, lanes));
  ALONG_ROW(i) {
    const TS value = read(x + i * inner, inner, n - i, 0);
    write(value - largest - offset, out + i * inner, inner, n - i);
  }
}

kernel void softmax_backward(global const T* grad, global const T* y, global T* out, long size,
                             long step, long rows, int lanes) {
  local T part[LANES];
  ROW_OF_THREAD;
  grad += first, y += first, out += first;
  TS sum = 0;
  ALONG_ROW(i) {
    sum += read(grad + i * inner, inner, n - i, 0) * read(y + i * inner, inner, n - i, 0);
  }
  const T all = shared_sum(shared_sum_of_4(sum), part, lanes);
  ALONG_ROW(i) {
    const TS given = read(grad + i * inner, inner, n - i, 0);
    const TS made = read(y + i * inner, inner, n - i, 0);
    write((given - all) * made, out + i * inner, inner, n - i);
  }
}

kernel void log_softmax_backward(global const T* grad, global const T* y, global T* out, long size,
                                 long step, long rows, int lanes) {
  local T part[LANES];
  ROW_OF_THREAD;
  grad += first, y += first, out += first;
  TS sum = 0;
  ALONG_ROW(i) sum += read(grad + i * inner, inner, n - i, 0);
  const T all = shared_sum(shared_sum_of_4(sum), part, lanes);
  ALONG_ROW(i) {
    const TS given = read(grad + i * inner, inner, n - i, 0);
    const TS made = exp(read(y + i * inner, inner, n - i, 0));
    write(given - made * all, out + i * inner, inner, n - i);
  }
}
