// A driver's table with checks of every answer: what can be seen without touching memory is seen
// at each call, and becomes BRINGUP_ERROR with a sentence instead of a crash or a wrong number
// later.
#pragma once

#include "bringup/driver.h"

namespace bringup::driver {

// Functions that call those of `driver`, which read_table gave, and check what they answer. Those
// of BRINGUP_DRIVER_SUBSTITUTED always exist; where `driver` has none of the others there is none.
// After shutdown no call reaches the driver: what frees or destroys does nothing, the others fail.
// A process has one driver: a later call takes the place of the former one.
bringup_driver checked(const bringup_driver& driver);

// The process ends, and a driver may refuse every call: failures to destroy are not reported.
void end_release_warnings();

}  // namespace bringup::driver
