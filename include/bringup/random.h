/* bringup random 1: random numbers for device code, in C99, C++17 and OpenCL C.
 *
 * A random call of an operator has a point, a seed and an offset that no other call has, and each
 * of its elements has four words of 32 bits at that point: those of Philox4x32-10 (J. Salmon,
 * M. Moraes, R. Dror and D. Shaw, "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011) with the
 * seed as key, and the offset and the element's number as counter. They are the same on every
 * device:
 *
 *     const bringup_random random = bringup_random_at(seed, offset, i);
 *     out[i] = bringup_uniform_float(random, 0) < p;
 */
#ifndef BRINGUP_RANDOM_H_
#define BRINGUP_RANDOM_H_

#ifdef __OPENCL_VERSION__
typedef uint bringup_random_word;
typedef ulong bringup_random_wide;
#else
#include <stdint.h>
typedef uint32_t bringup_random_word;
typedef uint64_t bringup_random_wide;
#endif

typedef struct bringup_random {
  bringup_random_word word[4];
} bringup_random;

/* The words of element `number`. */
static inline bringup_random bringup_random_at(bringup_random_wide seed, bringup_random_wide offset,
                                               bringup_random_wide number) {
  bringup_random_word key0 = (bringup_random_word)seed;
  bringup_random_word key1 = (bringup_random_word)(seed >> 32);
  bringup_random_word a = (bringup_random_word)offset;
  bringup_random_word b = (bringup_random_word)(offset >> 32);
  bringup_random_word c = (bringup_random_word)number;
  bringup_random_word d = (bringup_random_word)(number >> 32);
  bringup_random made;
  int round;
  for (round = 0; round < 10; ++round) {
    const bringup_random_wide from_a = (bringup_random_wide)0xD2511F53u * a;
    const bringup_random_wide from_c = (bringup_random_wide)0xCD9E8D57u * c;
    a = (bringup_random_word)(from_c >> 32) ^ b ^ key0;
    b = (bringup_random_word)from_c;
    c = (bringup_random_word)(from_a >> 32) ^ d ^ key1;
    d = (bringup_random_word)from_a;
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  made.word[0] = a;
  made.word[1] = b;
  made.word[2] = c;
  made.word[3] = d;
  return made;
}

/* Two of the words as one. `which`: 0 or 1. */
static inline bringup_random_wide bringup_random_pair(bringup_random random, int which) {
  return (bringup_random_wide)random.word[2 * which] << 32 | random.word[2 * which + 1];
}

/* In [0, 1), in steps of 2^-24. `which`: of the four that are independent, from 0. */
static inline float bringup_uniform_float(bringup_random random, int which) {
  return (float)(random.word[which] >> 8) * 5.9604644775390625e-8f;
}

#if !defined(__OPENCL_VERSION__) || defined(cl_khr_fp64)
/* The same in steps of 2^-53. `which`: of the two that are independent. */
static inline double bringup_uniform_double(bringup_random random, int which) {
  return (double)(bringup_random_pair(random, which) >> 11) * 1.1102230246251565e-16;
}
#endif

#endif /* BRINGUP_RANDOM_H_ */
