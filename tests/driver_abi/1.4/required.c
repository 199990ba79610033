/* No optional function; its table ends where they begin. With -DREFUSED a required one is missing.
 */
#include "board.h"

static const bringup_driver driver = {
    .struct_size = offsetof(bringup_driver, last_error),
    .description = "the required functions of ABI 1.4",
#ifndef REFUSED
    .copy_async = copy_async,
#endif
    .fill_async = fill_async,
    .stream_synchronize = stream_done,
    .stream_query = stream_done,
    BOARD_REQUIRED,
};

__attribute__((visibility("default"))) const bringup_driver* bringup_driver_get(uint32_t version) {
  (void)copy_async;
  return version == BRINGUP_DRIVER_ABI ? &driver : NULL;
}
