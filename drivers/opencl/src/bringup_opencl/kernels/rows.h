// What kernels share in which a block of LANES threads, 64 if not said before, goes along one row.
#ifndef LANES
#define LANES 64
#endif

#define JOINED(type, count) type##count
#define VECTOR(type, count) JOINED(type, count)

#define HEADS 8  // threads that add up what all threads have

// `step` joins `one` and `other`, two numbers or two vectors.
#define ROW_TREE(name, step)                                                   \
  VECTOR(T, 4) name##_4(VECTOR(T, 4) one, VECTOR(T, 4) other) { return step; } \
  VECTOR(T, 2) name##_2(VECTOR(T, 2) one, VECTOR(T, 2) other) { return step; } \
  T name##_1(T one, T other) { return step; }                                  \
  T name##_of_4(VECTOR(T, 4) each) {                                           \
    const VECTOR(T, 2) two = name##_2(each.lo, each.hi);                       \
    return name##_1(two.s0, two.s1);                                           \
  }                                                                            \
  T name(T value, local T* part, int lanes) {                                  \
    const int thread = get_local_id(0);                                        \
    const int lane = thread % lanes, first = thread - lane;                    \
    barrier(CLK_LOCAL_MEM_FENCE);                                              \
    part[thread] = value;                                                      \
    barrier(CLK_LOCAL_MEM_FENCE);                                              \
    if (lane < HEADS) {                                                        \
      T all = part[thread];                                                    \
      for (int i = lane + HEADS; i < lanes; i += HEADS) {                      \
        all = name##_1(all, part[first + i]);                                  \
      }                                                                        \
      part[thread] = all;                                                      \
    }                                                                          \
    barrier(CLK_LOCAL_MEM_FENCE);                                              \
    const VECTOR(T, 8) heads = vload8(0, part + first);                        \
    return name##_of_4(name##_4(heads.lo, heads.hi));                          \
  }

// Of the `lanes` threads (HEADS or more) that share a row, for all of them.
ROW_TREE(shared_sum, one + other)
ROW_TREE(shared_max, select(other, one, one != one | one > other))

// Of all threads of a block.
T row_sum(T value, local T* part) { return shared_sum(value, part, LANES); }
