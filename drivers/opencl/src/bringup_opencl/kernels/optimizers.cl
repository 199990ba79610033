// Steps of torch.optim (fused=True) for the tensors of lists, in one launch: a block has some
// elements of one of them. REAL is double where the device has that; LR a number, or with TENSOR_LR
// an address; ADAM is 1, 2 of AdamW, and not there of SGD. Nothing is done where *found_inf is 1.
#ifdef cl_khr_fp64
#pragma OPENCL EXTENSION cl_khr_fp64 : enable
#endif
#define EACH 1024  // elements of a block
#define THREADS 256
#ifdef TENSOR_LR
#define LR global const float*
#define LR_OF(lr) (*(lr))
#else
#define LR REAL
#define LR_OF(lr) (lr)
#endif

#define FIRST_TENSOR        \
  long block = get_group_id(0), blocks = (n0 + EACH - 1) / EACH; \
  long n = n0;
#define NEXT_BEGINS(i) \
  if (block >= blocks) { \
    block -= blocks; \
    n = n##i; \
    blocks = (n + EACH - 1) / EACH;

#define FOR_ELEMENTS(i)                                                            \
  if (found_inf && *found_inf == 1) return;                                        \
  for (long i = block * EACH + get_local_id(0), end_ = min(n, (block + 1) * EACH); \
       i < end_; i += THREADS)

// As it was before it was scaled, which is kept.
float gradient(global float* grads, long i, global const float* scale) {
  if (scale) grads[i] /= *scale;
  return grads[i];
}

#ifdef ADAM
#define TENSORS(i)                                                                       \
  global float *p##i, global float *g##i, global float *m##i, global float *v##i,        \
      global float *x##i, global const float *s##i, long n##i
#define NEXT(i)                                                            \
  NEXT_BEGINS(i) p = p##i, g = g##i, m = m##i, v = v##i, x = x##i, s = s##i; \
  }
kernel void adam(TENSORS(0), TENSORS(1), TENSORS(2), TENSORS(3), TENSORS(4), TENSORS(5),
                 TENSORS(6), TENSORS(7), LR lr, REAL beta1, REAL beta2, REAL weight_decay, REAL eps,
                 int flags, global const float* scale, global const float* found_inf) {
  local float shared[3];
  FIRST_TENSOR
  global float *p = p0, *g = g0, *m = m0, *v = v0, *x = x0;
  global const float* s = s0;
  NEXT(1) NEXT(2) NEXT(3) NEXT(4) NEXT(5) NEXT(6) NEXT(7)
  const bool largest = flags & 1, maximize = flags & 2;
  const REAL rate = LR_OF(lr);
  if (get_local_id(0) == 0) {
    shared[0] = rate / (1 - pow(beta1, (REAL)*s));
    shared[1] = sqrt(1 - pow(beta2, (REAL)*s));
    shared[2] = rate * weight_decay;
  }
  barrier(CLK_LOCAL_MEM_FENCE);
  const float step_size = shared[0], correction = shared[1], decay = shared[2];
  const float first = 1 - beta1, second = 1 - beta2, kept = beta2;
  FOR_ELEMENTS(i) {
    float grad = gradient(g, i, scale), value = p[i];
    if (maximize) grad = -grad;
    if (ADAM == 2) {
      value -= decay * value;
    } else if (weight_decay != 0) {
      grad += value * (float)weight_decay;
    }
    const float mean = m[i] + first * (grad - m[i]);
    const float square = kept * v[i] + second * grad * grad;
    m[i] = mean;
    v[i] = square;
    float under = square;
    if (largest) x[i] = under = max(x[i], square);
    p[i] = value - step_size * mean / (sqrt(under) / correction + (float)eps);
  }
}
#else
#define TENSORS(i) global float *p##i, global float *g##i, global float *m##i, long n##i
#define NEXT(i)                              \
  NEXT_BEGINS(i) p = p##i, g = g##i, m = m##i; \
  }
kernel void sgd(TENSORS(0), TENSORS(1), TENSORS(2), TENSORS(3), TENSORS(4), TENSORS(5), TENSORS(6),
                TENSORS(7), TENSORS(8), TENSORS(9), TENSORS(10), TENSORS(11), TENSORS(12),
                TENSORS(13), REAL weight_decay, REAL momentum, LR lr, REAL dampening, int flags,
                global const float* scale, global const float* found_inf) {
  FIRST_TENSOR
  global float *p = p0, *g = g0, *m = m0;
  NEXT(1) NEXT(2) NEXT(3) NEXT(4) NEXT(5) NEXT(6) NEXT(7) NEXT(8) NEXT(9) NEXT(10) NEXT(11)
  NEXT(12) NEXT(13)
  const bool nesterov = flags & 1, maximize = flags & 2, is_first = flags & 4;
  const float rate = LR_OF(lr), decay = weight_decay, kept = momentum, added = 1 - dampening;
  FOR_ELEMENTS(i) {
    float grad = gradient(g, i, scale);
    if (maximize) grad = -grad;
    grad += p[i] * decay;
    if (kept != 0) {
      const float moved = is_first ? grad : m[i] * kept + grad * added;
      m[i] = moved;
      grad = nesterov ? grad + moved * kept : moved;
    }
    p[i] -= rate * grad;
  }
}
#endif
