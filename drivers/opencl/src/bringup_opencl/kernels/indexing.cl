// An index outside its dimension reads and adds nothing; the call fails.
#define half ushort  // moved as bits, which every device can

// Elements between two neighbours along a dimension of `n` and of `m` elements; with a single one
// in both, any number does.
long inner_of(long n, long step, long m, long other) { return n != 1 ? step : m != 1 ? other : 1; }

kernel void index_select(global const T* x, global const I* index, global T* out, long n,
                         long x_step, long m, long out_step, long count, global int* fault) {
  const long inner = inner_of(n, x_step, m, out_step);
  for (long at = get_global_id(0); at < count; at += get_global_size(0)) {
    const long outer = at / (inner * m), chosen = index[at / inner % m];
    const bool inside = chosen >= 0 && chosen < n;
    if (!inside) *fault = 1;
    out[at] = inside ? x[(outer * n + chosen) * inner + at % inner] : (T)0;
  }
}

// Of the 5 dimensions of x an array of indices with 4, or NULL; they are alike in shape. Their
// dimensions stand in the result where the first array is, and before all others where dimensions
// without indices lie between them.
#define FIVE(type, name) type name##0, type name##1, type name##2, type name##3, type name##4
#define EIGHT(name) FIVE(long, name), long name##5, long name##6, long name##7
#define STEPS(d) long d##0, long d##1, long d##2, long d##3
#define ALL(name) {name##0, name##1, name##2, name##3, name##4}

kernel void index_elements(global const T* x, FIVE(long, n), FIVE(long, s),
                           FIVE(global const I*, i), STEPS(a), STEPS(b), STEPS(c), STEPS(d),
                           STEPS(e), global T* out, EIGHT(m), EIGHT(o), int rank, int out_rank,
                           long count, global int* fault) {
  const long sizes[5] = ALL(n), strides[5] = ALL(s);
  global const I* const indices[5] = ALL(i);
  const long steps[5][4] = {{a0, a1, a2, a3}, {b0, b1, b2, b3}, {c0, c1, c2, c3},
                            {d0, d1, d2, d3}, {e0, e1, e2, e3}};
  const long extents[8] = {m0, m1, m2, m3, m4, m5, m6, m7};
  const long out_strides[8] = {o0, o1, o2, o3, o4, o5, o6, o7};
  int arrays = 0, first = -1, last = -1;
  for (int k = 0; k < rank; ++k) {
    if (!indices[k]) continue;
    if (arrays++ == 0) first = k;
    last = k;
  }
  const int begin = last - first + 1 == arrays ? first : 0;
  const int end = begin + out_rank - (rank - arrays);
  long x_steps[8];  // of the result's dimensions; of those of the indices 0
  for (int j = 0, k = 0; j < out_rank; ++j) {
    const bool chosen = begin <= j && j < end;
    while (!chosen && indices[k]) ++k;
    x_steps[j] = chosen ? 0 : strides[k++];
  }
  for (long at = get_global_id(0); at < count; at += get_global_size(0)) {
    long rest = at, from = 0, to = 0, places[5] = {0, 0, 0, 0, 0};
    for (int j = out_rank - 1; j >= 0; --j) {
      const long here = rest % extents[j];
      rest /= extents[j];
      from += here * x_steps[j], to += here * out_strides[j];
      for (int k = 0; begin <= j && j < end && k < rank; ++k) places[k] += here * steps[k][j - begin];
    }
    bool inside = true;
    for (int k = first; k <= last; ++k) {
      if (!indices[k]) continue;
      const long given = indices[k][places[k]], chosen = given < 0 ? given + sizes[k] : given;
      const bool fits = chosen >= 0 && chosen < sizes[k];
      inside = inside && fits;
      from += fits ? chosen * strides[k] : 0;
    }
    if (!inside) *fault = 1;
    out[to] = inside ? x[from] : (T)0;
  }
}

kernel void gather(global const T* x, global const I* index, long n, long x_step, long m,
                   long index_step, global T* out, long count, global int* fault) {
  const long inner = inner_of(n, x_step, m, index_step);
  for (long at = get_global_id(0); at < count; at += get_global_size(0)) {
    const long outer = at / (inner * m), chosen = index[at];
    const bool inside = chosen >= 0 && chosen < n;
    if (!inside) *fault = 1;
    out[at] = inside ? x[(outer * n + chosen) * inner + at % inner] : (T)0;
  }
}

// Threads share the elements of a line, and each goes along all its indices: what is added to one
// element comes in their order.
kernel void scatter_add(global const T* x, global const I* index, long n, long x_step, long m,
                        long index_step, global const T* source, global T* out, long count,
                        global int* fault) {
  const long inner = inner_of(n, x_step, m, index_step), lines = count / n;
  const long shares = lines < 4096 ? min(n, 64L) : 1;
  for (long at = get_global_id(0); at < lines * shares; at += get_global_size(0)) {
    const long share = at / lines, line = at % lines, outer = line / inner;
    const long begin = outer * n * inner + line % inner;
    for (long i = share; i < n; i += shares) out[begin + i * inner] = x[begin + i * inner];
    for (long i = 0; i < m; ++i) {
      const long from = (outer * m + i) * inner + line % inner, chosen = index[from];
      const bool inside = chosen >= 0 && chosen < n;
      if (!inside) *fault = 1;
      if (inside && chosen % shares == share) out[begin + chosen * inner] += source[from];
    }
  }
}

// A block for each row of the weight: what is added to one element comes in the indices' order. As
// on the CPU, an index that names no row adds nothing: the forward pass has refused it.
#define THREADS 64

kernel __attribute__((reqd_work_group_size(THREADS, 1, 1)))
void embedding_backward(global const T* grad, global const I* indices, global T* out, long count,
                        long width, long padding) {
  local int hits[THREADS], found[THREADS + 1];  // last how many there are
  const long row = get_group_id(0);
  const int thread = get_local_id(0);
  for (long first = 0; first < width; first += THREADS) {
    const long column = first + thread;
    T sum = 0;
    for (long begin = 0; begin < count; begin += THREADS) {
      const long i = begin + thread;
      hits[thread] = i < count && row != padding && indices[i] == row;
      barrier(CLK_LOCAL_MEM_FENCE);
      if (thread == 0) {
        int many = 0;
        for (int k = 0; k < THREADS; ++k) {
          found[many] = k;
          many += hits[k];
        }
        found[THREADS] = many;
      }
      barrier(CLK_LOCAL_MEM_FENCE);
      for (int k = 0; column < width && k < found[THREADS]; ++k) {
        sum += grad[(begin + found[k]) * width + column];
      }
    }
    if (column < width) out[row * width + column] = sum;
  }
}
