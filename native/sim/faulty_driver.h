// The simulator's function table with faults in front of it.
#pragma once

#include "bringup/driver.h"

namespace bringup::sim {

// Each function asks whether a fault concerns the call before it calls that of `real`, which has to
// outlive the result.
bringup_driver with_faults(const bringup_driver& real);

}  // namespace bringup::sim
