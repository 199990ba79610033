/* A kernel of ABI 1 that uses all of it. abi1_add_x86_64.so was built from this file before the
 * first release and is never built again: later versions have to run that binary.
 *
 *     gcc -O2 -shared -fPIC -nostdlib -s -Wl,-z,noseparate-code,--build-id=none -Iinclude \
 *         -o abi1_add_x86_64.so abi1_add.c
 *
 * run(Tensor x, Tensor y, float alpha, int beta, int[] i, float[] f, Tensor[] t, str s, Tensor?
 * none)
 *   -> out = alpha * x + beta * y + last of i + last of f + last of t + length of s
 */
#include "bringup/kernel.h"

const int32_t bringup_abi = BRINGUP_KERNEL_ABI;

struct work {
  const DLTensor *x, *y, *out;
  float* scratch;
  double alpha, shift;
  int64_t beta;
};

static float* element(const DLTensor* t, int64_t i) {
  return (float*)((char*)t->data + t->byte_offset) + i * t->strides[0];
}

static void chunk(int64_t begin, int64_t end, void* user) {
  struct work* w = (struct work*)user;
  for (int64_t i = begin; i < end; ++i) {
    w->scratch[i] = (float)(w->alpha * *element(w->x, i) + (double)w->beta * *element(w->y, i));
    *element(w->out, i) = (float)(w->scratch[i] + w->shift);
  }
}

int32_t run(void** args, int32_t n, const bringup_ctx* ctx) {
  if (ctx->struct_size < sizeof(bringup_ctx) || ctx->abi_version < 1) return 2;
  if (n != 10) {
    ctx->set_error(ctx, "abi1_add: expected nine inputs and one output");
    return 3;
  }
  const DLTensor* x = (const DLTensor*)args[0];
  const DLTensor* out = (const DLTensor*)args[9];
  const bringup_list* indices = (const bringup_list*)args[4];
  const bringup_list* weights = (const bringup_list*)args[5];
  const bringup_list* more = (const bringup_list*)args[6];
  const char* name = (const char*)args[7];
  if (x->ndim != 1 || x->dtype.code != 2 || x->dtype.bits != 32 || x->dtype.lanes != 1 ||
      x->device.device_type != 1 || args[8] != NULL || ctx->block_index != 0 ||
      ctx->block_count != 1 || ctx->device.device_type != 1 || ctx->stream != NULL) {
    ctx->set_error(ctx, "abi1_add: an argument is not what ABI 1 says");
    return 4;
  }
  struct work w = {x, (const DLTensor*)args[1], out, NULL, *(const double*)args[2],
                   0, *(const int64_t*)args[3]};
  w.shift = (double)((const int64_t*)indices->data)[indices->size - 1] +
            ((const double*)weights->data)[weights->size - 1] +
            *element(((DLTensor* const*)more->data)[more->size - 1], 0);
  while (*name++) w.shift += 1;
  w.scratch = (float*)ctx->workspace(ctx, (size_t)x->shape[0] * sizeof(float));
  if (w.scratch == NULL) return 5;
  ctx->parallel_for(ctx, x->shape[0], 4, chunk, &w);
  return 0;
}
