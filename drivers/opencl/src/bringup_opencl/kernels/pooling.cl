// Windows over the planes of images in any layout: their largest element and where it is, and their
// mean. A thread makes one element; those of a gradient look for the windows that they were in.
#include "images.h"

#define PLACE(at, height, width)                         \
  const int x = (at) % width, y = (at) / width % height; \
  const int c = (at) / (width * height) % channels, n = (at) / (width * height) / channels;

kernel void max_pool(global const T* in, long in_n, long in_c, long in_y, long in_x, global T* out,
                     long out_n, long out_c, long out_y, long out_x, global long* places,
                     long places_n, long places_c, long places_y, long places_x, int channels,
                     int height, int width, int out_height, int out_width, int tall, int wide,
                     int step_y, int step_x, int pad_y, int pad_x, int apart_y, int apart_x,
                     int count) {
  for (long at_ = get_global_id(0); at_ < count; at_ += get_global_size(0)) {
    PLACE((int)at_, out_height, out_width)
    T best = -INFINITY;
    int place = -1;
    for (int j = 0; j < tall; ++j) {
      const int from_y = y * step_y - pad_y + j * apart_y;
      for (int i = 0; i < wide; ++i) {
        const int from_x = x * step_x - pad_x + i * apart_x;
        const bool inside = from_y >= 0 && from_y < height && from_x >= 0 && from_x < width;
        const T value = inside ? AT(in, n, c, from_y, from_x) : -INFINITY;
        if (inside && (place < 0 || value > best || value != value)) {
          best = value;
          place = from_y * width + from_x;
        }
      }
    }
    AT(out, n, c, y, x) = best;
    AT(places, n, c, y, x) = place;
  }
}

// The first and the last window, and one more, that begin at most `pad` before `place` and reach
// it.
#define FIRST(place, pad, reach, step) \
  ((place) + (pad) >= (reach) ? ((place) + (pad) - (reach)) / (step) + 1 : 0)
#define END(place, pad, step, count) min(((place) + (pad)) / (step) + 1, count)

kernel void max_pool_backward(global const T* grad, long grad_n, long grad_c, long grad_y,
                              long grad_x, global const long* places, long places_n, long places_c,
                              long places_y, long places_x, global T* out, long out_n, long out_c,
                              long out_y, long out_x, int channels, int height, int width,
                              int out_height, int out_width, int tall, int wide, int step_y,
                              int step_x, int pad_y, int pad_x, int apart_y, int apart_x,
                              int count) {
  const int high = (tall - 1) * apart_y + 1, broad = (wide - 1) * apart_x + 1;
  for (long at_ = get_global_id(0); at_ < count; at_ += get_global_size(0)) {
    PLACE((int)at_, height, width)
    const int end_y = END(y, pad_y, step_y, out_height), end_x = END(x, pad_x, step_x, out_width);
    T sum = 0;
    for (int j = FIRST(y, pad_y, high, step_y); j < end_y; ++j) {
      for (int i = FIRST(x, pad_x, broad, step_x); i < end_x; ++i) {
        const bool chosen = AT(places, n, c, j, i) == y * width + x;
        sum += chosen ? AT(grad, n, c, j, i) : (T)0;
      }
    }
    AT(out, n, c, y, x) = sum;
  }
}

// By what the sum over window (y, x) is divided.
int divisor(int y, int x, int height, int width, int tall, int wide, int step_y, int step_x,
            int pad_y, int pad_x, int counts_pads, int given) {
  const int begin_y = y * step_y - pad_y, begin_x = x * step_x - pad_x;
  const int end_y = min(begin_y + tall, height + pad_y), end_x = min(begin_x + wide, width + pad_x);
  const int inside = (min(end_y, height) - max(begin_y, 0)) * (min(end_x, width) - max(begin_x, 0));
  return given ? given : counts_pads ? (end_y - begin_y) * (end_x - begin_x) : inside;
}

kernel void mean_pool(global const T* in, long in_n, long in_c, long in_y, long in_x, global T* out,
                      long out_n, long out_c, long out_y, long out_x, int channels, int height,
                      int width, int out_height, int out_width, int tall, int wide, int step_y,
                      int step_x, int pad_y, int pad_x, int counts_pads, int given, int count) {
  for (long at_ = get_global_id(0); at_ < count; at_ += get_global_size(0)) {
    PLACE((int)at_, out_height, out_width)
    const int begin_y = y * step_y - pad_y, begin_x = x * step_x - pad_x;
    const int end_y = min(begin_y + tall, height), end_x = min(begin_x + wide, width);
    T sum = 0;
    for (int j = max(begin_y, 0); j < end_y; ++j) {
      for (int i = max(begin_x, 0); i < end_x; ++i) sum += AT(in, n, c, j, i);
    }
    const bool any = end_y > max(begin_y, 0) && end_x > max(begin_x, 0);
    const int by =
        divisor(y, x, height, width, tall, wide, step_y, step_x, pad_y, pad_x, counts_pads, given);
    AT(out, n, c, y, x) = any ? sum / by : (T)0;
  }
}

kernel void mean_pool_backward(global const T* grad, long grad_n, long grad_c, long grad_y,
                               long grad_x, global T* out, long out_n, long out_c, long out_y,
                               long out_x, int channels, int height, int width, int out_height,
                               int out_width, int tall, int wide, int step_y, int step_x, int pad_y,
                               int pad_x, int counts_pads, int given, int count) {
  for (long at_ = get_global_id(0); at_ < count; at_ += get_global_size(0)) {
    PLACE((int)at_, height, width)
    const int end_y = END(y, pad_y, step_y, out_height), end_x = END(x, pad_x, step_x, out_width);
    T sum = 0;
    for (int j = FIRST(y, pad_y, tall, step_y); j < end_y; ++j) {
      for (int i = FIRST(x, pad_x, wide, step_x); i < end_x; ++i) {
        sum += AT(grad, n, c, j, i) / divisor(j, i, height, width, tall, wide, step_y, step_x,
                                              pad_y, pad_x, counts_pads, given);
      }
    }
    AT(out, n, c, y, x) = sum;
  }
}

// Windows that share a plane evenly: number i of `made` over `size` elements.
#define BEGIN(i, size, made) ((int)((long)(i) * (size) / (made)))
#define STOP(i, size, made) ((int)((((long)(i) + 1) * (size) + (made) - 1) / (made)))

kernel void shared_pool(global const T* in, long in_n, long in_c, long in_y, long in_x,
                        global T* out, long out_n, long out_c, long out_y, long out_x, int channels,
                        int height, int width, int out_height, int out_width, int count) {
  for (long at_ = get_global_id(0); at_ < count; at_ += get_global_size(0)) {
    PLACE((int)at_, out_height, out_width)
    const int begin_y = BEGIN(y, height, out_height), end_y = STOP(y, height, out_height);
    const int begin_x = BEGIN(x, width, out_width), end_x = STOP(x, width, out_width);
    T sum = 0;
    for (int j = begin_y; j < end_y; ++j) {
      for (int i = begin_x; i < end_x; ++i) sum += AT(in, n, c, j, i);
    }
    AT(out, n, c, y, x) = sum / ((end_y - begin_y) * (end_x - begin_x));
  }
}

kernel void shared_pool_backward(global const T* grad, long grad_n, long grad_c, long grad_y,
                                 long grad_x, global T* out, long out_n, long out_c, long out_y,
                                 long out_x, int channels, int height, int width, int out_height,
                                 int out_width, int count) {
  for (long at_ = get_global_id(0); at_ < count; at_ += get_global_size(0)) {
    PLACE((int)at_, height, width)
    // The windows that an element is in are shared out as the elements are among the windows.
    const int end_y = STOP(y, out_height, height), end_x = STOP(x, out_width, width);
    T sum = 0;
    for (int j = BEGIN(y, out_height, height); j < end_y; ++j) {
      const int tall = STOP(j, height, out_height) - BEGIN(j, height, out_height);
      for (int i = BEGIN(x, out_width, width); i < end_x; ++i) {
        const int wide = STOP(i, width, out_width) - BEGIN(i, width, out_width);
        sum += AT(grad, n, c, j, i) / (tall * wide);
      }
    }
    AT(out, n, c, y, x) = sum;
  }
}
