// A block normalizes one channel of [samples, channels, height, width], in any layout.
#define LANES 256
#include "images.h"
#include "rows.h"

// Element i of the channel.
#define PLACE(i) const int n = (i) / (height * width), y = (i) / width % height, x = (i) % width;

kernel void batch_norm(global const T* in, long in_n, long in_c, long in_y, long in_x,
                       global const T* weight, global const T* bias, global T* running_mean,
                       global T* running_var, global T* out, long out_n, long out_c, long out_y,
                       long out_x, global T* mean, global T* scale, int training, float momentum,
                       float eps, int height, int width, int count) {
  local T part[LANES];
  const int channel = get_group_id(0);
  T middle = training ? (T)0 : running_mean[channel];
  T variance = training ? (T)0 : running_var[channel];
  // No barrier is in a branch: all blocks sum, and use it where they train.
  const int summed = training ? count : 0;
  T sum = 0;
  for (int i = get_local_id(0); i < summed; i += LANES) {
    PLACE(i)
    sum += AT(in, n, channel, y, x);
  }
  sum = row_sum(sum, part);
  middle = training ? sum / count : middle;
  sum = 0;
  for (int i = get_local_id(0); i < summed; i += LANES) {
    PLACE(i)
    const T over = AT(in, n, channel, y, x) - middle;
    sum += over * over;
  }
  sum = row_sum(sum, part);
  variance = training ? sum / count : variance;
  if (get_local_id(0) == 0) {
    mean[channel] = middle;
    scale[channel] = 1 / sqrt(variance + eps);
    if (training && running_mean) {
      running_mean[channel] = (1 - momentum) * running_mean[channel] + momentum * middle;
    }
    if (training && running_var) {
      const T unbiased = sum / (count - 1);
      running_var[channel] = (1 - momentum) * running_var[channel] + momentum * unbiased;
    }
  }
  const T factor = (weight ? weight[channel] : (T)1) / sqrt(variance + eps);
  const T more = bias ? bias[channel] : (T)0;
  for (int i = get_local_id(0); i < count; i += LANES) {
    PLACE(i)
    AT(out, n, channel, y, x) = (AT(in, n, channel, y, x) - middle) * factor + more;
  }
}

kernel void batch_norm_backward(global const T* grad, long grad_n, long grad_c, long grad_y,
                                long grad_x, global const T* in, long in_n, long in_c, long in_y,
                                long in_x, global const T* weight, global const T* running_mean,
                                global const T* running_var, global const T* mean,
                                global const T* scale, global T* out, long out_n, long out_c,
                                long out_y, long out_x, global T* of_weight, global T* of_bias,
                                int training, float eps, int height, int width, int count) {
  local T part[LANES];
  const int channel = get_group_id(0);
  const T middle = training ? mean[channel] : running_mean[channel];
  const T inverse = training ? scale[channel] : 1 / sqrt(running_var[channel] + eps);
  T along = 0, sum = 0;
  for (int i = get_local_id(0); i < count; i += LANES) {
    PLACE(i)
    const T one = AT(grad, n, channel, y, x);
    along += one * (AT(in, n, channel, y, x) - middle);
    sum += one;
  }
  along = row_sum(along, part);
  sum = row_sum(sum, part);
  if (get_local_id(0) == 0 && of_weight) of_weight[channel] = along * inverse;
  if (get_local_id(0) == 0 && of_bias) of_bias[channel] = sum;
  const T factor = (weight ? weight[channel] : (T)1) * inverse;
  const T slope = training ? inverse * inverse * along / count : (T)0;
  const T level = training ? sum / count : (T)0;
  const int written = out ? count : 0;
  for (int i = get_local_id(0); i < written; i += LANES) {
    PLACE(i)
    const T over = AT(in, n, channel, y, x) - middle;
    AT(out, n, channel, y, x) = (AT(grad, n, channel, y, x) - level - over * slope) * factor;
  }
}
