// What this program does where it is started by one of its own checks.
#pragma once

#include <string>

namespace bringup::driver_check {

// Opens the handle on its standard input with the driver `path`; the exit code. See checks_ipc.cpp.
int open_for_other_process(const std::string& path);

}  // namespace bringup::driver_check
