// Products of matrices in tiles of local memory: a block of 8 x 8 threads makes 32 x 32 elements,
// each thread 4 x 4 of them. What the matrices are, LEFT(value, row, k) and RIGHT(value, k, column)
// say, which a thread asks for elements that there are.
#define TILE 32
#define DEPTH 16
#define EACH 4
#define SIDE (TILE / EACH)
#define JOINED(t, n) t##n
#define OF_FOUR(t) JOINED(t, 4)
#define FOUR OF_FOUR(T)

#define TILES                                                  \
  local T left[DEPTH][TILE + EACH], right[DEPTH][TILE + EACH]; \
  T sums[EACH][EACH];                                          \
  const int thread = get_local_id(1) * SIDE + get_local_id(0);

// All threads of a block come here: it has barriers.
#define MULTIPLY(first_row, first_column, rows, columns, depth, LEFT, RIGHT)            \
  {                                                                                     \
    FOUR sum0 = 0, sum1 = 0, sum2 = 0, sum3 = 0;                                        \
    for (long begin = 0; begin < (depth); begin += DEPTH) {                             \
      for (int i = 0; i < TILE * DEPTH / (SIDE * SIDE); ++i) {                          \
        const int k = thread % DEPTH, row = thread / DEPTH + i * (SIDE * SIDE / DEPTH); \
        T value = 0;                                                                    \
        if ((first_row) + row < (rows) && begin + k < (depth)) {                        \
          LEFT(value, (first_row) + row, begin + k)                                     \
        }                                                                               \
        left[k][row] = value;                                                           \
      }                                                                                 \
      for (int i = 0; i < TILE * DEPTH / (SIDE * SIDE); ++i) {                          \
        const int column = thread % TILE, k = thread / TILE + i * (SIDE * SIDE / TILE); \
        T value = 0;                                                                    \
        if (begin + k < (depth) && (first_column) + column < (columns)) {               \
          RIGHT(value, begin + k, (first_column) + column)                              \
        }                                                                               \
        right[k][column] = value;                                                       \
      }                                                                                 \
      barrier(CLK_LOCAL_MEM_FENCE);                                                     \
      for (int k = 0; k < DEPTH; ++k) {                                                 \
        const FOUR one = vload4(get_local_id(1), left[k]);                              \
        const FOUR other = vload4(get_local_id(0), right[k]);                           \
        sum0 = fma((FOUR)(one.x), other, sum0);                                         \
        sum1 = fma((FOUR)(one.y), other, sum1);                                         \
        sum2 = fma((FOUR)(one.z), other, sum2);                                         \
        sum3 = fma((FOUR)(one.w), other, sum3);                                         \
      }                                                                                 \
      barrier(CLK_LOCAL_MEM_FENCE);                                                     \
    }                                                                                   \
    vstore4(sum0, 0, sums[0]);                                                          \
    vstore4(sum1, 0, sums[1]);                                                          \
    vstore4(sum2, 0, sums[2]);                                                          \
    vstore4(sum3, 0, sums[3]);                                                          \
  }
