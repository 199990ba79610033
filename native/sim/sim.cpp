// The simulated NPU's entry point.
#include "bringup/driver.h"

BRINGUP_EXPORT const bringup_driver* bringup_driver_get(uint32_t) { return nullptr; }
