// The device code of `bringup driver check`: what check_kernels() of the package leads to is this as PTX:
//     nvcc -arch=compute_75 -ptx check_kernels.cu -o check_kernels.ptx

// out += x * factor + single * number, each of the grid's `threads` its share of the elements.
extern "C" __global__ void check_values(int* out, const int* x, long long count, long long threads, int factor,
                                        float single, double number) {
  const long long first = ((blockIdx.z * blockDim.z + threadIdx.z) * (long long)(gridDim.y * blockDim.y) +
                           blockIdx.y * blockDim.y + threadIdx.y) * (gridDim.x * blockDim.x) +
                          blockIdx.x * blockDim.x + threadIdx.x;
  const int more = (int)(single * number);
#pragma unroll 1
  for (long long i = first; i < count; i += threads) out[i] += x[i] * factor + more;
}
// The first thread of a block writes the sum of what all of them have left in its shared memory.
extern "C" __global__ void check_shared(int* out) {
  extern __shared__ int shared[];
  shared[threadIdx.x] = threadIdx.x + blockIdx.x;
  __syncthreads();
  if (threadIdx.x != 0) return;
  int sum = 0;
#pragma unroll 1
  for (unsigned i = 0; i < blockDim.x; ++i) sum += shared[i];
  out[blockIdx.x] = sum;
}
