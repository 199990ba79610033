// What an index names. One beyond its dimension reads nothing, and gives NaN or 0.
T outside(float nan) { return (T)0.5f != 0 ? (T)nan : (T)0; }

long from_start(long index, long n) { return index < 0 ? index + n : index; }

kernel void index_select(global const T* x, global const I* index, global T* out, long n,
                         long x_step, long m, long out_step, long count) {
  const long inner = n != 1 ? x_step : m != 1 ? out_step : 1;
  for (long at = get_global_id(0); at < count; at += get_global_size(0)) {
    const long outer = at / (inner * m), chosen = from_start(index[at / inner % m], n);
    out[at] = chosen < 0 || chosen >= n ? outside(NAN) : x[(outer * n + chosen) * inner + at % inner];
  }
}

// A block for each row of the weight: what is added to one element comes in the indices' order.
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
