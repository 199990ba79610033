// A driver's table with checks of every answer: what can be seen without touching memory is seen
// at each call, and becomes BRINGUP_ERROR with a sentence instead of a crash or a wrong number
// later.
#pragma once

#include "bringup/driver.h"

namespace bringup::driver {

// Functions that call those of `real` and check what they answer; where `real` has none there is
// none. A process has one driver: a later call takes the place of the former one.
bringup_driver checked(const bringup_driver& real);

}  // namespace bringup::driver
