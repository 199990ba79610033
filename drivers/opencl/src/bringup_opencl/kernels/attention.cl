// Attention and its gradients in the form of torch's flash attention for the cpu: tensors [batch,
// heads, length, head size], dense in the last dimension, and the logarithm of each row's sum of
// exponentials (Dao et al., arXiv:2205.14135). A thread makes SOME rows, so that what it reads of
// the others counts for all of them; it meets EACH keys at a time with a running maximum and sum.
#define JOINED(type, count) type##count
#define VECTOR(type, count) JOINED(type, count)
#define SOME 4
#define EACH 8
#define WIDE 16
#define MOST 16  // vectors of a head: 256 elements
#define TE VECTOR(T, EACH)
#define TW VECTOR(T, WIDE)

// What a thread keeps of SOME rows.
typedef struct {
  TW row[SOME][MOST];
} rows_t;

// The mask, the shapes and the options; each argument list ends with these.
#define SHAPE                                                                                  \
  global const T *mask, long mask_batch, long mask_head, long mask_row, long mask_key,         \
      int has_mask, long heads, long key_heads, long rows, long keys, int depth, int width,    \
      float given_scale, int has_scale, int causal, float dropout, global int *fault
#define PLACES(name) long name##_batch, long name##_head, long name##_row
#define AT(name, head, row) (name + batch * name##_batch + (head)*name##_head + (row)*name##_row)
#define SCALE (has_scale ? (T)given_scale : 1 / sqrt((T)depth))
#define MASK(row, key) (has_mask ? AT(mask, head, row)[(key)*mask_key] : (T)0)

T added(TW x) {
  const VECTOR(T, 8) eight = x.lo + x.hi;
  const VECTOR(T, 4) four = eight.lo + eight.hi;
  return four.s0 + four.s1 + (four.s2 + four.s3);
}

TW read(global const T* from, int count) {
  if (count >= WIDE) return vload16(0, from);
  T each[WIDE];
  for (int i = 0; i < WIDE; ++i) each[i] = i < count ? from[i] : (T)0;
  return vload16(0, each);
}

void write(TW value, global T* to, int count) {
  if (count >= WIDE) {
    vstore16(value, 0, to);
    return;
  }
  T each[WIDE];
  vstore16(value, 0, each);
  for (int i = 0; i < count; ++i) to[i] = each[i];
}

// The first `count` rows, `stride` apart; the others are zeros.
void read_rows(global const T* from, long stride, long count, int size, rows_t* to) {
  for (int r = 0; r < SOME; ++r)
    for (int c = 0; c * WIDE < size; ++c)
      to->row[r][c] = r < count ? read(from + r * stride + c * WIDE, size - c * WIDE) : (TW)0;
}

void clear_rows(rows_t* sums, int size) {
  for (int r = 0; r < SOME; ++r)
    for (int c = 0; c * WIDE < size; ++c) sums->row[r][c] = 0;
}

// The products of each row with each of `count` rows from `b`, zeros behind them.
void multiply(const rows_t* a, global const T* b, long stride, int count, int size,
              T to[SOME][EACH]) {
  for (int j = 0; j < EACH; ++j, b += stride) {
    TW s0 = 0, s1 = 0, s2 = 0, s3 = 0;
    for (int c = 0; j < count && c * WIDE < size; ++c) {
      const TW other = read(b + c * WIDE, size - c * WIDE);
      s0 += a->row[0][c] * other;
      s1 += a->row[1][c] * other;
      s2 += a->row[2][c] * other;
      s3 += a->row[3][c] * other;
    }
    to[0][j] = added(s0), to[1][j] = added(s1), to[2][j] = added(s2), to[3][j] = added(s3);
  }
}

// Adds to each sum `count` rows from `b`, times its factors.
void accumulate(rows_t* sums, T factors[SOME][EACH], global const T* b, long stride, int count,
                int size) {
  for (int c = 0; c * WIDE < size; ++c) {
    TW s0 = sums->row[0][c], s1 = sums->row[1][c], s2 = sums->row[2][c], s3 = sums->row[3][c];
    for (int j = 0; j < count; ++j) {
      const TW other = read(b + j * stride + c * WIDE, size - c * WIDE);
      s0 += factors[0][j] * other;
      s1 += factors[1][j] * other;
      s2 += factors[2][j] * other;
      s3 += factors[3][j] * other;
    }
    sums->row[0][c] = s0, sums->row[1][c] = s1, sums->row[2][c] = s2, sums->row[3][c] = s3;
  }
}

void write_row(const TW* from, T factor, global T* to, int size) {
  for (int c = 0; c * WIDE < size; ++c) write(from[c] * factor, to + c * WIDE, size - c * WIDE);
}

T product(global const T* a, global const T* b, int size) {
  TW sum = 0;
  for (int c = 0; c * WIDE < size; ++c)
    sum += read(a + c * WIDE, size - c * WIDE) * read(b + c * WIDE, size - c * WIDE);
  return added(sum);
}

kernel void attention(global const T* q, PLACES(q), global const T* k, PLACES(k),
                      global const T* v, PLACES(v), global T* out, PLACES(out), global T* lse,
                      PLACES(lse), long count, SHAPE) {
  const long id = get_global_id(0), parts = (rows + SOME - 1) / SOME;
  if (id >= count) return;
  if (dropout != 0) *fault = 1;
  const long first = id % parts * SOME, head = id / parts % heads, batch = id / parts / heads;
  const long shared = head / (heads / key_heads), own = min((long)SOME, rows - first);
  const long seen = causal ? min(first + own, keys) : keys;
  const T scale = SCALE;
  rows_t query, sums;
  read_rows(AT(q, head, first), q_row, own, depth, &query);
  clear_rows(&sums, width);
  T most[SOME], total[SOME];
  for (int r = 0; r < SOME; ++r) most[r] = -INFINITY, total[r] = 0;
  for (long begin = 0; begin < seen; begin += EACH) {
    const int some = min((long)EACH, seen - begin);
    T each[SOME][EACH];
    multiply(&query, AT(k, shared, begin), k_row, some, depth, each);
    for (int r = 0; r < SOME; ++r) {
      for (int j = 0; j < EACH; ++j) {
        const bool hidden = j >= some || r >= own || (causal && begin + j > first + r);
        each[r][j] = hidden ? -INFINITY : each[r][j] * scale + MASK(first + r, begin + j);
      }
    }
    for (int r = 0; r < own; ++r) {
      T largest = most[r];
      for (int j = 0; j < EACH; ++j) largest = max(largest, each[r][j]);
      const T shift = largest == -INFINITY ? (T)0 : largest;
      const TE weights = exp(vload8(0, each[r]) - shift);
      vstore8(weights, 0, each[r]);
      if (largest > most[r]) {
        const T factor = exp(most[r] - shift);
        total[r] *= factor;
        for (int c = 0; c * WIDE < width; ++c) sums.row[r][c] *= factor;
        most[r] = largest;
      }
      for (int j = 0; j < EACH; ++j) total[r] += each[r][j];
    }
    for (int r = own; r < SOME; ++r)
      for (int j = 0; j < EACH; ++j) each[r][j] = 0;
    accumulate(&sums, each, AT(v, shared, begin), v_row, some, width);
  }
  for (int r = 0; r < own; ++r) {
    const bool blind = total[r] == 0;  // a row that sees nothing
    write_row(sums.row[r], blind ? (T)0 : 1 / total[r], AT(out, head, first + r), width);
    *AT(lse, head, first + r) = blind ? -INFINITY : most[r] + log(total[r]);
  }
}

// The first `count` threads make rows of the gradient of q, the others rows of those of k and v.
kernel void attention_backward(global const T* grad, PLACES(grad), global const T* q, PLACES(q),
                               global const T* k, PLACES(k), global const T* v, PLACES(v),
                               global const T* out, PLACES(out), global const T* lse, PLACES(lse),
                               global T* grad_q, PLACES(grad_q), global T* grad_k, PLACES(grad_k),
                               global T* grad_v, PLACES(grad_v), long count, long key_count,
                               SHAPE) {
  const bool of_keys = (long)get_global_id(0) >= count;
  const long id = get_global_id(0) - (of_keys ? count : 0), length = of_keys ? keys : rows;
  if (of_keys && id >= key_count) return;
  if (dropout != 0) *fault = 1;
  const long parts = (length + SOME - 1) / SOME, of = of_keys ? key_heads : heads;
  const long first = id % parts * SOME, batch = id / parts / of, group = heads / key_heads;
  const long place = id / parts % of, own = min((long)SOME, length - first);
  const T scale = SCALE;
  rows_t left, right, sums, more;
  clear_rows(&sums, depth);
  T each[SOME][EACH], slopes[SOME][EACH], whole[EACH];
  if (!of_keys) {
    const long head = place, shared = head / group, seen = causal ? min(first + own, keys) : keys;
    T of_row[SOME];
    read_rows(AT(q, head, first), q_row, own, depth, &left);
    read_rows(AT(grad, head, first), grad_row, own, width, &right);
    for (int r = 0; r < own; ++r) {
      whole[r] = product(AT(grad, head, first + r), AT(out, head, first + r), width);
      of_row[r] = *AT(lse, head, first + r);
    }
    for (long begin = 0; begin < seen; begin += EACH) {
      const int some = min((long)EACH, seen - begin);
      multiply(&left, AT(k, shared, begin), k_row, some, depth, each);
      multiply(&right, AT(v, shared, begin), v_row, some, width, slopes);
      for (int r = 0; r < SOME; ++r) {
        for (int j = 0; j < EACH; ++j) {
          const bool hidden =
              j >= some || r >= own || isinf(of_row[r]) || (causal && begin + j > first + r);
          each[r][j] =
              hidden ? -INFINITY : each[r][j] * scale + MASK(first + r, begin + j) - of_row[r];
        }
        if (r >= own) whole[r] = 0;
        const TE weights = exp(vload8(0, each[r]));
        vstore8(weights * (vload8(0, slopes[r]) - whole[r]), 0, slopes[r]);
      }
      accumulate(&sums, slopes, AT(k, shared, begin), k_row, some, depth);
    }
    for (int r = 0; r < own; ++r)
      write_row(sums.row[r], scale, AT(grad_q, head, first + r), depth);
    return;
  }
  const long shared = place;
  clear_rows(&more, width);
  read_rows(AT(k, shared, first), k_row, own, depth, &left);
  read_rows(AT(v, shared, first), v_row, own, width, &right);
  for (long head = shared * group; head < (shared + 1) * group; ++head) {
    for (long begin = causal ? first : 0; begin < rows; begin += EACH) {
      const int some = min((long)EACH, rows - begin);
      T of_row[EACH];
      for (int j = 0; j < EACH; ++j) {
        of_row[j] = j < some ? *AT(lse, head, begin + j) : -INFINITY;
        whole[j] = 0;
        if (j < some) whole[j] = product(AT(grad, head, begin + j), AT(out, head, begin + j), width);
      }
      multiply(&left, AT(q, head, begin), q_row, some, depth, each);
      multiply(&right, AT(grad, head, begin), grad_row, some, width, slopes);
      for (int r = 0; r < SOME; ++r) {
        for (int j = 0; j < EACH; ++j) {
          const bool hidden = r >= own || isinf(of_row[j]) || (causal && first + r > begin + j);
          each[r][j] =
              hidden ? -INFINITY : each[r][j] * scale + MASK(begin + j, first + r) - of_row[j];
        }
        const TE weights = exp(vload8(0, each[r]));
        vstore8(weights, 0, each[r]);
        vstore8(weights * (vload8(0, slopes[r]) - vload8(0, whole)), 0, slopes[r]);
      }
      accumulate(&sums, slopes, AT(q, head, begin), q_row, some, depth);
      accumulate(&more, each, AT(grad, head, begin), grad_row, some, width);
    }
  }
  for (int r = 0; r < own; ++r) {
    write_row(sums.row[r], scale, AT(grad_k, shared, first + r), depth);
    write_row(more.row[r], 1, AT(grad_v, shared, first + r), width);
  }
}
