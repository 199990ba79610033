// Products of matrices in tiles of local memory: a block of 8 x 8 threads makes 32 x 32 elements,
// each thread 4 x 4 of them. What the matrices are, LEFT(value, row, k) and RIGHT(value, k, column)
// say, which a thread asks for elements that there are.
#define TILE 32
#define DEPTH 16
#define EACH 4
#define SIDE (TILE / EACH)

#define TILES                                            \
  local T left[DEPTH][TILE + 1], right[DEPTH][TILE + 1]; \
  T sums[EACH][EACH];                                    \
  const int thread = get_local_id(1) * SIDE + get_local_id(0);

// All threads of a block come here: it has barriers.
#define MULTIPLY(first_row, first_column, rows, columns, depth, LEFT, RIGHT)          \
  for (int i = 0; i < EACH; ++i) {                                                    \
    for (int j = 0; j < EACH; ++j) sums[i][j] = 0;                                    \
  }                                                                                   \
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
      for (int i = 0; i < EACH; ++i) {                                                \
        const T value = left[k][get_local_id(1) * EACH + i];                          \
        for (int j = 0; j < EACH; ++j) {                                              \
          sums[i][j] = fma(value, right[k][get_local_id(0) * EACH + j], sums[i][j]);  \
        }                                                                             \
      }                                                                               \
    }                                                                                 \
    barrier(CLK_LOCAL_MEM_FENCE);                                                     \
  }
