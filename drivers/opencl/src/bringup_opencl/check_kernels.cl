// The device code of `bringup driver check`: what check_kernels() of the package leads to. Where a device has no
// doubles the checks give floats in their place.
#ifdef cl_khr_fp64
typedef double number_type;
#else
typedef float number_type;
#endif

// out += x * factor + single * number, each of the grid's `threads` its share of the elements.
kernel void check_values(global int* out, global const int* x, long count, long threads, int factor,
                         float single, number_type number) {
  const size_t first = (get_global_id(2) * get_global_size(1) + get_global_id(1)) *
                           get_global_size(0) + get_global_id(0);
  const int more = (int)((number_type)single * number);
  for (long i = (long)first; i < count; i += threads) out[i] += x[i] * factor + more;
}

// The first thread of a block writes the sum of what all of them have left in its shared memory.
kernel void check_shared(global int* out, local int* shared) {
  const size_t thread = get_local_id(0);
  shared[thread] = (int)(thread + get_group_id(0));
  barrier(CLK_LOCAL_MEM_FENCE);
  if (thread != 0) return;
  int sum = 0;
  for (size_t i = 0; i < get_local_size(0); ++i) sum += shared[i];
  out[get_group_id(0)] = sum;
}
