// A function called for each thread of each block of a grid, as bringup/device.h says.
#pragma once

#include <cstdint>

#include "bringup/device.h"
#include "grid/c_call.h"

namespace bringup::grid {

struct GridRun {
  const void* function;
  bringup_index grid;
  bringup_index block;
  uint32_t shared_bytes;
  bool independent;  // a thread that comes to a barrier is an error
  Places arguments;  // the first integer is the position's
};

// Runs all of it on this thread, block after block. The threads of a block are fibers, which take
// turns only at barriers. Throws what the function throws, std::bad_alloc, and std::runtime_error
// for a barrier of an independent thread or one that is given what is no position of the running
// block.
void run_grid(GridRun run);

}  // namespace bringup::grid
