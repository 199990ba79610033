/* Modules (cubin, fatbin or PTX), their functions, and launches with plain values. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "nv.h"

typedef struct function {
  struct function* next;
  CUfunction function;
  int32_t device;
  int32_t count; /* of its parameters */
  uint32_t max_threads, declared_shared_bytes;
  char name[128];
  size_t sizes[]; /* of the parameters */
} function;

typedef struct module {
  int32_t device;
  CUmodule module;
  pthread_mutex_t lock; /* of what follows */
  function* functions;
} module;

/* --- modules */

/* PTX is a text that ends with NUL, which a file has not. Not BRINGUP_INVALID: what is refused from
 * memory would be tried again from its file. */
static int32_t load(const void* data, size_t bytes, CUmodule* loaded) {
  char log[2048] = "";
  int options[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
  void* values[] = {log, (void*)(uintptr_t)sizeof log};
  char* image = malloc(bytes + 1);
  if (image == NULL) return fail(BRINGUP_OUT_OF_MEMORY, "no host memory for a module");
  memcpy(image, data, bytes);
  image[bytes] = '\0';
  const CUresult code = nv.api.cuModuleLoadDataEx(loaded, image, 2, options, values);
  free(image);
  if (code == CUDA_SUCCESS) return BRINGUP_OK;
  const int32_t status = told("cuModuleLoadDataEx", code);
  if (status != BRINGUP_INVALID && status != BRINGUP_ERROR) return status;
  const char* name = NULL;
  nv.api.cuGetErrorName(code, &name);
  return fail(BRINGUP_ERROR,
              "the kernel file cannot be loaded (%s): expected a cubin, a fatbin or PTX for this "
              "GPU%s%s",
              name != NULL ? name : "", *log != '\0' ? ":\n" : "", log);
}

int32_t module_load_data(int32_t device, const void* data, size_t bytes, void** loaded) {
  TRY(enter(device));
  module* made = calloc(1, sizeof *made);
  if (made == NULL) return fail(BRINGUP_OUT_OF_MEMORY, "no host memory for a module");
  const int32_t status = load(data, bytes, &made->module);
  if (status != BRINGUP_OK) {
    free(made);
    return status;
  }
  made->device = device;
  pthread_mutex_init(&made->lock, NULL);
  *loaded = made;
  return BRINGUP_OK;
}

int32_t module_unload(void* loaded) {
  module* old = loaded;
  TRY(enter(old->device));
  const CUresult code = nv.api.cuModuleUnload(old->module);
  for (function *fn = old->functions, *next; fn != NULL; fn = next) {
    next = fn->next;
    free(fn);
  }
  pthread_mutex_destroy(&old->lock);
  free(old);
  return told("cuModuleUnload", code);
}

/* --- functions */

static int32_t count_parameters(CUfunction of) {
  size_t offset, size;
  int32_t count = 0;
  while (nv.api.cuFuncGetParamInfo(of, (size_t)count, &offset, &size) == CUDA_SUCCESS) ++count;
  return count;
}

/* CUDA gives a block more than 48 KiB of shared memory only where the function says so. */
static int32_t read_limits(function* fn) {
  int threads = 0;
  int shared = 0;
  const int most = (int)nv.devices[fn->device].props.max_shared_bytes;
  TRY(CUDA(cuFuncGetAttribute, &threads, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, fn->function));
  TRY(CUDA(cuFuncGetAttribute, &shared, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, fn->function));
  TRY(CUDA(cuFuncSetAttribute, fn->function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
           most > shared ? most - shared : 0));
  fn->max_threads = (uint32_t)threads;
  fn->declared_shared_bytes = (uint32_t)shared;
  return BRINGUP_OK;
}

int32_t get_function(void* loaded, const char* name, bringup_kernel_fn* fn) {
  module* from = loaded;
  TRY(enter(from->device));
  CUfunction found = NULL;
  const CUresult code = nv.api.cuModuleGetFunction(&found, from->module, name);
  NEED(code != CUDA_ERROR_NOT_FOUND,
       "the module has no kernel '%s': expected one that is extern \"C\"", name);
  if (code != CUDA_SUCCESS) return told("cuModuleGetFunction", code);
  const int32_t count = count_parameters(found);
  NEED(count <= kMaxValues, "kernel '%s' has %d parameters: expected %d at most", name, count,
       kMaxValues);
  function* made = calloc(1, sizeof *made + (size_t)count * sizeof *made->sizes);
  if (made == NULL) return fail(BRINGUP_OUT_OF_MEMORY, "no host memory for a function");
  made->function = found;
  made->device = from->device;
  made->count = count;
  snprintf(made->name, sizeof made->name, "%s", name);
  for (int32_t i = 0; i < count; ++i) {
    size_t offset;
    nv.api.cuFuncGetParamInfo(found, (size_t)i, &offset, &made->sizes[i]);
  }
  const int32_t status = read_limits(made);
  if (status != BRINGUP_OK) {
    free(made);
    return status;
  }
  pthread_mutex_lock(&from->lock);
  made->next = from->functions;
  from->functions = made;
  pthread_mutex_unlock(&from->lock);
  *fn = (bringup_kernel_fn)(void*)made;
  return BRINGUP_OK;
}

/* --- launches */

static int32_t check_values(const bringup_launch_values_args* launch, const function* fn) {
  NEED(launch->nvalues == fn->count, "%s: kernel '%s' takes %d values, got %d", name_of(launch),
       fn->name, fn->count, launch->nvalues);
  for (int32_t i = 0; i < fn->count; ++i) {
    const bringup_value* value = &launch->values[i];
    NEED(value->size == fn->sizes[i],
         "%s: parameter %d of kernel '%s' has %zu bytes, the value for it has %u", name_of(launch),
         i, fn->name, fn->sizes[i], value->size);
  }
  return BRINGUP_OK;
}

static void add_attributes(const bringup_launch_values_args* launch, prepared_launch* prepared) {
  const bringup_launch_values_args all = whole(launch);
  const bringup_dim3 cluster = all.cluster;
  CUlaunchAttribute* next = prepared->attributes;
  if (cluster.x != 0) {
    *next++ = (CUlaunchAttribute){.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION,
                                  .value.clusterDim = {cluster.x, cluster.y, cluster.z}};
  }
  if (all.flags & BRINGUP_VALUES_COOPERATIVE) {
    *next++ = (CUlaunchAttribute){.id = CU_LAUNCH_ATTRIBUTE_COOPERATIVE, .value.cooperative = 1};
  }
  prepared->attribute_count = (unsigned)(next - prepared->attributes);
}

int32_t prepare(int32_t device, const bringup_launch_values_args* launch,
                prepared_launch* prepared) {
  const function* fn = (const function*)(const void*)launch->fn;
  NEED(fn != NULL && fn->device == device, "%s: the function is not of device %d", name_of(launch),
       device);
  int32_t status =
      check_blocks(device, launch, fn->name, fn->max_threads, fn->declared_shared_bytes);
  if (status == BRINGUP_OK) status = check_values(launch, fn);
  if (status != BRINGUP_OK) return about(status, device, NULL, name_of(launch));
  for (int32_t i = 0; i < launch->nvalues; ++i) {
    prepared->values[i] = (void*)launch->values[i].value.bytes;
  }
  prepared->params = (CUDA_KERNEL_NODE_PARAMS){.func = fn->function,
                                               .gridDimX = launch->grid.x,
                                               .gridDimY = launch->grid.y,
                                               .gridDimZ = launch->grid.z,
                                               .blockDimX = launch->block.x,
                                               .blockDimY = launch->block.y,
                                               .blockDimZ = launch->block.z,
                                               .sharedMemBytes = launch->shared_bytes,
                                               .kernelParams = prepared->values};
  add_attributes(launch, prepared);
  return BRINGUP_OK;
}

static CUresult start(prepared_launch* prepared, CUstream queue) {
  const CUDA_KERNEL_NODE_PARAMS* of = &prepared->params;
  if (prepared->attribute_count == 0) {
    return nv.api.cuLaunchKernel(of->func, of->gridDimX, of->gridDimY, of->gridDimZ, of->blockDimX,
                                 of->blockDimY, of->blockDimZ, of->sharedMemBytes, queue,
                                 of->kernelParams, NULL);
  }
  const CUlaunchConfig config = {of->gridDimX,         of->gridDimY,
                                 of->gridDimZ,         of->blockDimX,
                                 of->blockDimY,        of->blockDimZ,
                                 of->sharedMemBytes,   queue,
                                 prepared->attributes, prepared->attribute_count};
  return nv.api.cuLaunchKernelEx(&config, of->func, of->kernelParams, NULL);
}

int32_t launch_values(int32_t device, bringup_stream stream,
                      const bringup_launch_values_args* launch) {
  CUstream queue = (CUstream)stream;
  if (whole(launch).flags & BRINGUP_VALUES_NATIVE_QUEUE) {
    TRY(enter(device));
    stream = NULL; /* of what a failure tells */
  } else {
    TRY(stream_of(device, &stream));
    queue = stream->queue;
  }
  prepared_launch prepared;
  TRY(prepare(device, launch, &prepared));
  const CUresult code = start(&prepared, queue);
  if (code == CUDA_SUCCESS) return BRINGUP_OK;
  char what[320];
  snprintf(what, sizeof what, "%s: kernel '%s'", name_of(launch),
           ((const function*)(const void*)launch->fn)->name);
  return about(told(what, code), device, stream, name_of(launch));
}
