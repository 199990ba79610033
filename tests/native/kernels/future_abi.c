/* A kernel of an ABI that does not exist yet. */
#include "bringup/kernel.h"

const int32_t bringup_abi = BRINGUP_KERNEL_ABI + 1;

int32_t run(void** args, int32_t n, const bringup_ctx* ctx) {
  (void)args, (void)ctx;
  return n;
}
