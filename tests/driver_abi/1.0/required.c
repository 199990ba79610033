/* The 19 functions and no other; its table ends where the optional ones began. With -DREFUSED one
 * of them is missing. */
#include "board.h"

static const bringup_driver driver = {
    .struct_size = offsetof(bringup_driver, last_error),
    .description = "the required functions of ABI 1.0",
#ifndef REFUSED
    .copy_async = copy_async,
#endif
    BOARD_REQUIRED,
};

__attribute__((visibility("default"))) const bringup_driver* bringup_driver_get(uint32_t version) {
  (void)copy_async;
  return version == BRINGUP_DRIVER_ABI ? &driver : NULL;
}
