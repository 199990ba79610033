// The process that loads the driver and makes checks, one after the other.
#pragma once

#include <string>
#include <vector>

#include "driver_check/context.h"
#include "driver_check/journal.h"

namespace bringup::driver_check {

// Loads `library` and makes the checks of these names. Returns the exit code.
int run_checks(SharedMemory& memory, const std::string& library, const Kernels& kernels,
               const std::vector<std::string>& names);

}  // namespace bringup::driver_check
