// The error slot: one thread-local message of a kernel, driver or the runtime for its caller.
#pragma once

#include <string>
#include <string_view>

#include "runtime/export.h"

namespace bringup::runtime {

// Replaces this thread's message.
BRINGUP_API void set_last_error(std::string_view message);

// Returns this thread's message and clears it; empty when nothing was said.
BRINGUP_API std::string take_last_error();

// This thread's message itself; the address is the thread's own as long as it lives.
std::string& error_slot() noexcept;

}  // namespace bringup::runtime
