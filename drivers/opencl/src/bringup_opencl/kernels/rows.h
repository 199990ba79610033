// What kernels share in which a block of LANES threads, 64 if not said before, goes along one row.
#ifndef LANES
#define LANES 64
#endif

#define HEADS 8  // threads that add up what all threads have

#define ROW_TREE(name, step)                              \
  T name(T value, local T* part) {                        \
    const int lane = get_local_id(0);                     \
    barrier(CLK_LOCAL_MEM_FENCE);                         \
    part[lane] = value;                                   \
    barrier(CLK_LOCAL_MEM_FENCE);                         \
    if (lane < HEADS) {                                   \
      T one = part[lane];                                 \
      for (int i = lane + HEADS; i < LANES; i += HEADS) { \
        const T other = part[i];                          \
        one = step;                                       \
      }                                                   \
      part[lane] = one;                                   \
    }                                                     \
    barrier(CLK_LOCAL_MEM_FENCE);                         \
    T one = part[0];                                      \
    for (int i = 1; i < HEADS; ++i) {                     \
      const T other = part[i];                            \
      one = step;                                         \
    }                                                     \
    return one;                                           \
  }

// Of all threads of a block, for all of them.
ROW_TREE(row_sum, one + other)
ROW_TREE(row_max, (one != one || one > other ? one : other))
