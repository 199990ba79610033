// The vendor's device code: functions of the kernel ABI (bringup/kernel.h), no torch. Arguments are
// in the order of the comment; all tensors of a call have one dtype and, where nothing else is
// said, one shape.
#pragma once

#include <bringup/kernel.h>

namespace vendor {

// Elementwise kernels for float, double, int32 and int64, picked by dtype. nullptr: none for it.
bringup_kernel_fn relu_kernel(DLDataType dtype);     // x, out
bringup_kernel_fn abs_kernel(DLDataType dtype);      // x, out
bringup_kernel_fn maximum_kernel(DLDataType dtype);  // x, y, out

// Elementwise kernels for float.
int32_t hardswish(void** args, int32_t n, const bringup_ctx* ctx);          // x, out
int32_t threshold(void** args, int32_t n, const bringup_ctx* ctx);          // x, cut, out
int32_t cube(void** args, int32_t n, const bringup_ctx* ctx);               // x, out
int32_t cube_backward(void** args, int32_t n, const bringup_ctx* ctx);      // grad, x, out
int32_t softclip(void** args, int32_t n, const bringup_ctx* ctx);           // x, limit, out
int32_t softclip_backward(void** args, int32_t n, const bringup_ctx* ctx);  // grad, x, limit, out

// Attention over float tensors [batch, heads, length, head size]. lse [batch, heads, length] is the
// logarithm of each row's sum of exponentials. `causal` (integer): a row sees no later column.
// query, key, value, causal, scale, out, lse
int32_t attention(void** args, int32_t n, const bringup_ctx* ctx);
// grad, query, key, value, out, lse, causal, scale, grad_query, grad_key, grad_value
int32_t attention_backward(void** args, int32_t n, const bringup_ctx* ctx);

}  // namespace vendor
