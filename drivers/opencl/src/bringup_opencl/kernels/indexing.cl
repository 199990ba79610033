// An index outside its dimension reads and adds nothing; the call fails.

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
kernel void embedding_backward(global const T* grad, global const I* indices, global T* out,
                               long count, long width, long padding) {
  const long row = get_group_id(0);
  for (long column = get_local_id(0); column < width; column += get_local_size(0)) {
    T sum = 0;
    for (long i = 0; row != padding && i < count; ++i) {
      if (indices[i] == row) sum += grad[i * width + column];
    }
    out[row * width + column] = sum;
  }
}
