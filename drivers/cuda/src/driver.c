/* A bringup driver over CUDA's driver API: any NVIDIA GPU as a device of its own beside torch's
 * "cuda". This file has the table, the library, the devices and the failures. One setting of the
 * environment, read by init:
 *
 *     BRINGUP_CUDA_LIBRARY  the library to use instead of libcuda.so.1
 *
 * CUDA's own hold, too: CUDA_VISIBLE_DEVICES says which GPUs there are. */
#include <dlfcn.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "nv.h"

nv_state nv;
static int32_t status_of(CUresult code) {
  switch (code) {
    case CUDA_ERROR_INVALID_VALUE:
    case CUDA_ERROR_INVALID_DEVICE:
    case CUDA_ERROR_INVALID_CONTEXT:
    case CUDA_ERROR_INVALID_HANDLE:
    case CUDA_ERROR_NOT_FOUND:
    case CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES:
    case CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE:
    case CUDA_ERROR_INVALID_CLUSTER_SIZE:
      return BRINGUP_INVALID;
    case CUDA_ERROR_OUT_OF_MEMORY:
      return BRINGUP_OUT_OF_MEMORY;
    case CUDA_ERROR_NOT_SUPPORTED:
      return BRINGUP_UNSUPPORTED;
    case CUDA_ERROR_ILLEGAL_ADDRESS:
    case CUDA_ERROR_LAUNCH_TIMEOUT:
    case CUDA_ERROR_CONTEXT_IS_DESTROYED:
    case CUDA_ERROR_ASSERT:
    case CUDA_ERROR_DEVICE_UNAVAILABLE:
    case CUDA_ERROR_ECC_UNCORRECTABLE:
    case CUDA_ERROR_NVLINK_UNCORRECTABLE:
      return BRINGUP_DEVICE_LOST;
    default:
      return code >= CUDA_ERROR_HARDWARE_STACK_ERROR && code <= CUDA_ERROR_LAUNCH_FAILED
                 ? BRINGUP_DEVICE_LOST
                 : BRINGUP_ERROR;
  }
}

int32_t told(const char* function, CUresult code) {
  if (code == CUDA_SUCCESS) return BRINGUP_OK;
  if (code == CUDA_ERROR_NOT_READY) return BRINGUP_NOT_READY;
  const char* name = NULL;
  const char* meaning = NULL;
  nv.api.cuGetErrorName(code, &name);
  nv.api.cuGetErrorString(code, &meaning);
  if (name == NULL) name = "an unknown code";
  const int32_t status = status_of(code);
  fail(status, "%s: %s (%s)%s", function, name, meaning != NULL ? meaning : "",
       status == BRINGUP_DEVICE_LOST
           ? ": a kernel or the device failed, and CUDA in this process with it; its first "
             "failure is found with BRINGUP_LAUNCH_BLOCKING=1 or compute-sanitizer"
           : "");
  return coded(status, code, name);
}

/* --- the library */

static int32_t load_library(void) {
  const char* wanted = getenv("BRINGUP_CUDA_LIBRARY");
  const char* path = wanted != NULL && *wanted != '\0' ? wanted : "libcuda.so.1";
  void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library == NULL) {
    return fail(BRINGUP_ERROR, "there is no CUDA: expected NVIDIA's driver (%s)", dlerror());
  }
#define CUDA_FIND(name, version, parameters)                                                   \
  *(void**)&nv.api.name = dlsym(library, #name #version);                                      \
  if (nv.api.name == NULL) {                                                                   \
    return fail(BRINGUP_ERROR, "%s has no %s: expected a driver for CUDA 12.4 or later", path, \
                #name #version);                                                               \
  }
  CUDA_FUNCTIONS(CUDA_FIND)
  return BRINGUP_OK;
}

/* --- devices */

static int attribute(const nv_device* device, int which) {
  int value = 0;
  return nv.api.cuDeviceGetAttribute(&value, which, device->id) == CUDA_SUCCESS ? value : 0;
}

static int32_t describe(nv_device* device, int version) {
  bringup_device_props* props = &device->props;
  CUuuid uuid;
  size_t bytes = 0;
  TRY(CUDA(cuDeviceGetName, props->name, sizeof props->name - 1, device->id));
  TRY(CUDA(cuDeviceTotalMem, &bytes, device->id));
  TRY(CUDA(cuDeviceGetUuid, &uuid, device->id));
  memcpy(props->uuid, uuid.bytes, sizeof props->uuid);
  snprintf(props->arch, sizeof props->arch, "nv-sm_%d%d",
           attribute(device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR),
           attribute(device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR));
  snprintf(props->driver_version, sizeof props->driver_version, "CUDA %d.%d", version / 1000,
           version % 1000 / 10);
  props->total_memory = bytes;
  props->core_count = (uint32_t)attribute(device, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
  props->supports_float64 = 1;
  props->supports_int64 = 1;
  props->alignment = 256; /* of cuMemAlloc */
  if (attribute(device, CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED)) {
    props->greatest_priority = -5; /* asking needs a context; CUDA takes the nearest it has */
  }
  for (int i = 0; i < 3; ++i) {
    props->max_block[i] = (uint32_t)attribute(device, CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X + i);
    props->max_grid[i] = (uint32_t)attribute(device, CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X + i);
  }
  props->max_block_threads = (uint32_t)attribute(device, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK);
  props->max_shared_bytes =
      (uint32_t)attribute(device, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN);
  /* What every GPU with clusters has. */
  if (attribute(device, CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH)) props->max_cluster = 8;
  props->values_flags = BRINGUP_VALUES_NATIVE_QUEUE;
  if (attribute(device, CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH)) {
    props->values_flags |= BRINGUP_VALUES_COOPERATIVE;
  }
  return BRINGUP_OK;
}

/* A second time by a program that uses the table beside a kit that has loaded it. */
static int32_t init(void) {
  int count = 0;
  int version = 0;
  if (nv.count > 0) return BRINGUP_OK;
  TRY(load_library());
  TRY(CUDA(cuInit, 0));
  TRY(CUDA(cuDriverGetVersion, &version));
  TRY(CUDA(cuDeviceGetCount, &count));
  if (count == 0) return fail(BRINGUP_ERROR, "CUDA sees no GPU on this machine");
  nv.count = count < kMaxDevices ? count : kMaxDevices;
  for (int32_t i = 0; i < nv.count; ++i) {
    TRY(CUDA(cuDeviceGet, &nv.devices[i].id, i));
    TRY(describe(&nv.devices[i], version));
  }
  return BRINGUP_OK;
}

/* Once for a device: a context takes memory and a third of a second: not for GPUs that are not
 * used. */
static int32_t make_context(int32_t device) {
  nv_device* of = &nv.devices[device];
  CUcontext made = NULL;
  TRY(CUDA(cuDevicePrimaryCtxRetain, &made, of->id));
  TRY(CUDA(cuCtxSetCurrent, made));
  TRY(open_stream(&of->default_stream, device, 0));
  of->context = made;
  return BRINGUP_OK;
}

int32_t enter(int32_t device) {
  static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
  TRY(check_device(device));
  nv_device* of = &nv.devices[device];
  if (of->context == NULL) {
    pthread_mutex_lock(&lock);
    const int32_t status = of->context == NULL ? make_context(device) : BRINGUP_OK;
    pthread_mutex_unlock(&lock);
    TRY(status);
  }
  return CUDA(cuCtxSetCurrent, of->context);
}

static int32_t device_synchronize(int32_t device) { return CUDA_ON(device, cuCtxSynchronize, ); }

static int32_t native_handle(int32_t device, bringup_stream stream, int32_t kind, void** handle) {
  TRY(kind == BRINGUP_NATIVE_QUEUE ? stream_of(device, &stream) : enter(device));
  switch (kind) {
    case BRINGUP_NATIVE_CONTEXT:
      *handle = nv.devices[device].context;
      return BRINGUP_OK;
    case BRINGUP_NATIVE_DEVICE:
      *handle = (void*)(intptr_t)nv.devices[device].id;
      return BRINGUP_OK;
    case BRINGUP_NATIVE_QUEUE:
      *handle = stream->queue;
      return BRINGUP_OK;
    default:
      return fail(BRINGUP_UNSUPPORTED, "this driver has no native object of kind %d", kind);
  }
}

static const bringup_driver driver = {
    .struct_size = sizeof(bringup_driver),
    .abi_version = BRINGUP_DRIVER_ABI,
    .device_name = "nv",
    .description =
        "NVIDIA GPUs through CUDA's driver API (clusters, cooperative launches, more than "
        "48 KiB of shared memory and torch's own streams are not run on hardware)",
    /* clang-format off */
    HAS(device_count), HAS(device_props), HAS(device_synchronize), HAS(mem_alloc), HAS(mem_free),
    HAS(mem_info), HAS(copy_async), HAS(fill_async), HAS(stream_create), HAS(stream_destroy),
    HAS(stream_synchronize), HAS(stream_query), HAS(event_create), HAS(event_destroy),
    HAS(event_record), HAS(event_wait), HAS(event_query), HAS(event_synchronize),
    HAS(event_elapsed), HAS(last_error), HAS(host_alloc), HAS(host_free), HAS(host_func),
    HAS(module_load), HAS(module_unload), HAS(get_function), HAS(graph_create), HAS(graph_destroy),
    HAS(graph_add_copy), HAS(graph_add_host_func), HAS(graph_launch),
    .capabilities = BRINGUP_HAS_LIFECYCLE | BRINGUP_HAS_ERROR_DETAIL | BRINGUP_HAS_HOST_MEMORY |
                    BRINGUP_HAS_POINTERS | BRINGUP_HAS_COPY_2D | BRINGUP_HAS_WIDE_FILL |
                    BRINGUP_HAS_MODULE_DATA | BRINGUP_HAS_LAUNCH_VALUES | BRINGUP_HAS_NATIVE |
                    BRINGUP_HAS_STREAM_CAPTURE | BRINGUP_HAS_IPC,
    HAS(init), HAS(shutdown), HAS(error_detail), HAS(host_register), HAS(host_unregister),
    HAS(pointer_info), HAS(copy_2d_async), HAS(fill_wide_async), HAS(module_load_data),
    HAS(launch_values), HAS(graph_add_values), HAS(graph_update_values), HAS(native_handle),
    HAS(stream_capture_begin), HAS(stream_capture_end), HAS(stream_capture_abort),
    HAS(stream_capture_query), HAS(ipc_export), HAS(ipc_open), HAS(ipc_close),
    /* clang-format on */
};

#define DRIVER_PARTS
#include <bringup/driver_parts.h>
