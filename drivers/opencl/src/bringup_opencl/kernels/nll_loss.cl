// Of scores [samples, classes, inner] and targets [samples, inner]. A target that names no class
// reads nothing; the call fails.
#include "rows.h"

enum { NONE, MEAN, SUM };

kernel void nll_loss(global const T* x, global const I* target, global const T* weight,
                     global T* out, global T* total, long reduction, long ignored, long classes,
                     long inner, long count, global int* fault) {
  local T part[LANES];
  T sum = 0, weights = 0;
  for (long at = get_local_id(0); at < count; at += LANES) {
    const long named = target[at];
    const bool known = named >= 0 && named < classes, counts = named != ignored;
    if (counts && !known) *fault = 1;
    const T scale = !counts ? (T)0 : weight && known ? weight[named] : (T)1;
    const T score = known ? x[(at / inner * classes + named) * inner + at % inner] : (T)NAN;
    const T loss = counts ? -score * scale : (T)0;
    if (reduction == NONE) out[at] = loss;
    sum += loss;
    weights += scale;
  }
  sum = row_sum(sum, part);
  weights = row_sum(weights, part);
  if (get_local_id(0) != 0) return;
  total[0] = reduction == NONE ? 0 : weights;
  if (reduction != NONE) out[0] = reduction == MEAN ? sum / weights : sum;
}

kernel void nll_loss_backward(global const T* grad, global const I* target,
                              global const T* weight, global const T* total, global T* out,
                              long reduction, long ignored, long classes, long inner, long count,
                              global int* fault) {
  for (long at = get_global_id(0); at < count; at += get_global_size(0)) {
    const long sample = at / (classes * inner) * inner + at % inner;
    const long named = target[sample];
    const bool known = named >= 0 && named < classes;
    if (!known && named != ignored) *fault = 1;
    const T given = grad[reduction == NONE ? sample : 0];
    const T scale = weight ? weight[known ? named : 0] : (T)1;
    const bool hit = named == at / inner % classes && named != ignored;
    out[at] = hit ? -given * scale / (reduction == MEAN ? total[0] : (T)1) : (T)0;
  }
}
