// Numbers that nothing is read for.
kernel void arange(global T* out, long start, long step, long count) {
  for (long at = get_global_id(0); at < count; at += get_global_size(0)) {
    out[at] = (T)(start + at * step);
  }
}

// What lies on one side of a diagonal; the rest is 0.
kernel void triangle(global const T* x, global T* out, long diagonal, long rows, long columns,
                     int lower, long count) {
  for (long at = get_global_id(0); at < count; at += get_global_size(0)) {
    const long over = at % columns - at / columns % rows - diagonal;
    out[at] = (lower ? over <= 0 : over >= 0) ? x[at] : (T)0;
  }
}
