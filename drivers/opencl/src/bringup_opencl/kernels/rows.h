// What kernels share in which a block of LANES threads, 64 if not said before, goes along one row.
#ifndef LANES
#define LANES 64
#endif

#define HEADS 8  // threads that add up what all threads have

#define ROW_TREE(name, step)                                \
  T name(T value, local T* part, int lanes) {               \
    const int thread = get_local_id(0);                     \
    const int lane = thread % lanes, first = thread - lane; \
    barrier(CLK_LOCAL_MEM_FENCE);                           \
    part[thread] = value;                                   \
    barrier(CLK_LOCAL_MEM_FENCE);                           \
    if (lane < HEADS) {                                     \
      T one = part[thread];                                 \
      for (int i = lane + HEADS; i < lanes; i += HEADS) {   \
        const T other = part[first + i];                    \
        one = step;                                         \
      }                                                     \
      part[thread] = one;                                   \
    }                                                       \
    barrier(CLK_LOCAL_MEM_FENCE);                           \
    T one = part[first];                                    \
    for (int i = 1; i < HEADS; ++i) {                       \
      const T other = part[first + i];                      \
      one = step;                                           \
    }                                                       \
    return one;                                             \
  }

// Of the `lanes` threads (HEADS or more) that share a row, for all of them.
ROW_TREE(shared_sum, one + other)
ROW_TREE(shared_max, (one != one || one > other ? one : other))

// Of all threads of a block.
T row_sum(T value, local T* part) { return shared_sum(value, part, LANES); }
