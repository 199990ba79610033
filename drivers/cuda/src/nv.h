/* What the parts of the driver share. Every function returns a bringup_status and leaves words for
 * last_error() where it fails, unless its comment says otherwise. */
#ifndef BRINGUP_CUDA_NV_H_
#define BRINGUP_CUDA_NV_H_

#define DRIVER_API "CUDA"
#define DRIVER nv
#include <bringup/driver_parts.h>

#include "cuda_api.h"

/* --- driver.c: devices and errors */

struct bringup_stream_s {
  int32_t device;
  CUstream queue;
  _Atomic int32_t capture; /* bringup_capture_state */
};

typedef struct nv_device {
  CUdevice id;
  _Atomic(CUcontext) context; /* the primary one, made at the first use; NULL: not yet */
  bringup_device_props props;
  struct bringup_stream_s default_stream;
} nv_device;

/* Written by init, but for contexts. */
typedef struct nv_state {
  cuda_api api;
  int32_t count;
  nv_device devices[kMaxDevices];
} nv_state;
extern nv_state nv;

/* What a CUDA function gave, as a status. CUDA_ERROR_NOT_READY has no words. */
int32_t told(const char* function, CUresult code);
#define CUDA(function, ...) told(#function, nv.api.function(__VA_ARGS__))
#define CUDA_ON(device, ...) (enter(device) ?: CUDA(__VA_ARGS__))

static inline CUdeviceptr number_of(const void* address) { return (CUdeviceptr)(uintptr_t)address; }

/* clang-format off */
/* --- memory.c */
OF_TABLE(mem_alloc); OF_TABLE(mem_free); OF_TABLE(mem_info); OF_TABLE(host_alloc);
OF_TABLE(host_free); OF_TABLE(host_register); OF_TABLE(host_unregister); OF_TABLE(pointer_info);
OF_TABLE(copy_async); OF_TABLE(copy_2d_async);
OF_TABLE(ipc_export); OF_TABLE(ipc_open); OF_TABLE(ipc_close);
/* --- streams.c */
OF_TABLE(stream_destroy); OF_TABLE(stream_synchronize);
OF_TABLE(stream_query); OF_TABLE(event_create); OF_TABLE(event_destroy); OF_TABLE(event_record);
OF_TABLE(event_wait); OF_TABLE(event_query); OF_TABLE(event_synchronize); OF_TABLE(event_elapsed);
OF_TABLE(host_func); OF_TABLE(stream_capture_begin); OF_TABLE(stream_capture_end);
OF_TABLE(stream_capture_abort); OF_TABLE(stream_capture_query);
/* --- kernels.c */
OF_TABLE(module_unload); OF_TABLE(get_function);
OF_TABLE(launch_values);
/* --- graphs.c */
OF_TABLE(graph_create); OF_TABLE(graph_destroy); OF_TABLE(graph_add_copy);
OF_TABLE(graph_add_host_func); OF_TABLE(graph_add_values); OF_TABLE(graph_update_values);
OF_TABLE(graph_launch);
/* clang-format on */

/* The launch as CUDA takes it, checked by the kernel's own declaration and the device's limits.
 * Lives no longer than `launch`, whose values it points at. */
enum { kMaxValues = 256 };
typedef struct prepared_launch {
  CUDA_KERNEL_NODE_PARAMS params;
  CUlaunchAttribute attributes[2];
  unsigned attribute_count;
  void* values[kMaxValues];
} prepared_launch;
int32_t prepare(int32_t device, const bringup_launch_values_args* launch,
                prepared_launch* prepared);
/* Adds a copy of what was captured. */
int32_t graph_add_captured(bringup_graph graph, CUgraph captured);

#endif /* BRINGUP_CUDA_NV_H_ */
