// Numbers that stand for objects towards C code.
#pragma once

#include <cstdint>

namespace bringup::engine {

// Never the same twice in a process, so one that ended is known as such.
uint64_t next_handle();

}  // namespace bringup::engine
