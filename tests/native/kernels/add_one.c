/* Adds 1 to the int that args[0] is; says what it got when that is negative. */
#include "bringup/kernel.h"

int32_t run(void** args, int32_t n, const bringup_ctx* ctx) {
  int64_t* value = (int64_t*)args[0];
  if (n != 1 || *value < 0) {
    ctx->set_error(ctx, "the value is negative");
    return 7;
  }
  *value += 1;
  return 0;
}
