// Memory of small outputs on cpu: blocks that were freed are kept for the next output of the same
// thread, which costs a tenth of asking the C library.
#pragma once

#include <c10/core/Allocator.h>

namespace bringup::torch_ext {

// For outputs on cpu. Larger memory, and all of it while allocations are watched or replayed
// or the pool is off, comes from torch's allocator. A block may be freed by any thread, and stays
// with that one; a thread keeps a few of each size, and gives them back when it ends.
c10::Allocator* output_allocator();

// Whether blocks are kept at all; those that are out are not affected.
void set_output_pool(bool enabled) noexcept;

// How many blocks this thread keeps.
int pooled_blocks() noexcept;

}  // namespace bringup::torch_ext
