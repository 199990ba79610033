/* bringup device code 1: what a kernel with plain arguments may include, where it runs on the
 * simulated NPU or on the host. Usable alone, from C99 or C++17.
 *
 * Such a kernel is a C function that returns nothing. It is called once for each thread of each
 * block of a grid, with its place first and then what `args=` lists (in C without BRINGUP_EXPORT):
 *
 *     BRINGUP_EXPORT void scale(const bringup_position* at, float* out, const float* x, int64_t n,
 *                               float factor) {
 *       const int64_t i = (int64_t)at->block_idx.x * at->block_dim.x + at->thread_idx.x;
 *       if (i < n) out[i] = x[i] * factor;
 *     }
 *
 * The words are CUDA's. Blocks run in any order, and share no memory but the device's. Ownership:
 * `at` and what it points at are valid until the call returns. Append-only within version 1:
 * struct_size says which fields exist.
 */
#ifndef BRINGUP_DEVICE_H_
#define BRINGUP_DEVICE_H_

#include "bringup/kernel.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct bringup_index {
  uint32_t x, y, z;
} bringup_index;

typedef struct bringup_position bringup_position;

struct bringup_position {
  uint32_t struct_size;    /* sizeof(bringup_position) of the caller */
  bringup_index block_idx; /* this block, from 0, and how many there are */
  bringup_index grid_dim;
  bringup_index thread_idx; /* this thread in its block, from 0, and how many it has */
  bringup_index block_dim;
  uint32_t shared_bytes; /* as the launch asks for */
  void* shared; /* the block's memory: its threads see the same, 64-byte aligned, not cleared; NULL
                   for 0 bytes */
  /* Waits until every thread of the block that has not returned waits too; what they wrote is seen
   * by all then. Never NULL. No C++ object with a destructor should be alive across it: where
   * another thread of the block throws, waiting ones do not go on. */
  void (*barrier)(const bringup_position* at);
  void* opaque; /* the caller's own */
};

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* BRINGUP_DEVICE_H_ */
