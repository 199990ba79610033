/* What an enqueue and a copy of OpenCL take from C, without anything above it. */
#define CL_TARGET_OPENCL_VERSION 200
#include <CL/cl.h>
#include <stddef.h>
#include <string.h>

static cl_device_id device;
static cl_context context;
static cl_command_queue queue;
static cl_kernel kernel;
static float *x, *y, *out;
static void *host, *large;

static const char* const text =
    "#pragma OPENCL FP_CONTRACT OFF\n"
    "kernel void add(global const float* x, global const float* y, float alpha,\n"
    "                global float* out, long n) {\n"
    "  for (long i = get_global_id(0); i < n; i += get_global_size(0)) {\n"
    "    out[i] = x[i] + alpha * y[i];\n"
    "  }\n"
    "}\n";

/* 0, or which step failed. */
int peer_begin(size_t bytes, void* from) {
  cl_platform_id platform;
  cl_int code = CL_SUCCESS;
  if (clGetPlatformIDs(1, &platform, NULL) != CL_SUCCESS) return 1;
  if (clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 1, &device, NULL) != CL_SUCCESS) return 2;
  context = clCreateContext(NULL, 1, &device, NULL, NULL, &code);
  if (code != CL_SUCCESS) return 3;
  queue = clCreateCommandQueueWithProperties(context, device, NULL, &code);
  if (code != CL_SUCCESS) return 4;
  cl_program program = clCreateProgramWithSource(context, 1, (const char**)&text, NULL, &code);
  if (code != CL_SUCCESS) return 5;
  if (clBuildProgram(program, 1, &device, "", NULL, NULL) != CL_SUCCESS) return 6;
  kernel = clCreateKernel(program, "add", &code);
  if (code != CL_SUCCESS) return 7;
  x = clSVMAlloc(context, CL_MEM_READ_WRITE, 64, 64);
  y = clSVMAlloc(context, CL_MEM_READ_WRITE, 64, 64);
  out = clSVMAlloc(context, CL_MEM_READ_WRITE, 64, 64);
  large = clSVMAlloc(context, CL_MEM_READ_WRITE, bytes, 64);
  host = from;
  return x != NULL && y != NULL && out != NULL && large != NULL ? 0 : 8;
}

int peer_enqueue(int count) {
  const cl_float alpha = 1;
  const cl_long n = 16;
  const size_t threads = 256;
  for (int i = 0; i < count; ++i) {
    clSetKernelArgSVMPointer(kernel, 0, x);
    clSetKernelArgSVMPointer(kernel, 1, y);
    clSetKernelArg(kernel, 2, sizeof alpha, &alpha);
    clSetKernelArgSVMPointer(kernel, 3, out);
    clSetKernelArg(kernel, 4, sizeof n, &n);
    if (clEnqueueNDRangeKernel(queue, kernel, 1, NULL, &threads, &threads, 0, NULL, NULL)) return 1;
    clFlush(queue);
  }
  return 0;
}

int peer_wait(void) { return clFinish(queue); }

/* A copy of 64 bytes, and the wait for it. */
int peer_small_copy(void) { return clEnqueueSVMMemcpy(queue, CL_TRUE, host, x, 64, 0, NULL, NULL); }

void peer_memcpy(void* to, const void* from, size_t bytes) { memcpy(to, from, bytes); }
