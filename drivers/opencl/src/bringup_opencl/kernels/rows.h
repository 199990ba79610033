// What kernels share in which a block of LANES threads, 64 if not said before, goes along one row.
#ifndef LANES
#define LANES 64
#endif

#define ROW_TREE(name, step)                                  \
  T name(T value, local T* part) {                            \
    const int lane = get_local_id(0);                         \
    barrier(CLK_LOCAL_MEM_FENCE);                             \
    part[lane] = value;                                       \
    barrier(CLK_LOCAL_MEM_FENCE);                             \
    for (int half_ = LANES / 2; half_ > 0; half_ /= 2) {      \
      if (lane < half_) {                                     \
        const T one = part[lane], other = part[lane + half_]; \
        part[lane] = step;                                    \
      }                                                       \
      barrier(CLK_LOCAL_MEM_FENCE);                           \
    }                                                         \
    return part[0];                                           \
  }

// Of all threads of a block, for all of them.
ROW_TREE(row_sum, one + other)
ROW_TREE(row_max, (one != one || one > other ? one : other))
