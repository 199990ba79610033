// bringup::add_layer_norm_sum(Tensor x, Tensor residual, Tensor weight, Tensor bias, float eps) ->
// (Tensor normalized, Tensor total)
//
// add_layer_norm that also returns x + residual, which a model with the norm in front of its blocks
// adds to again; see norm.h.
#include "bringup/kernel.h"
#include "norm.h"

#ifndef SCALAR
#define SCALAR float
#endif

using namespace bringup_kernels;

BRINGUP_EXPORT int32_t run(void** args, int32_t, const bringup_ctx* ctx) {
  return add_layer_norm(args, ctx, data_of<SCALAR>(args[6]), data_of<SCALAR>(args[5]));
}
