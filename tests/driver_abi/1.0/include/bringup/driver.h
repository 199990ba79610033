/* bringup driver ABI 1: what a device vendor implements to give PyTorch a device. Plain C, no
 * torch, no Python.
 *
 * A driver is a shared library that exports one function,
 *
 *     const bringup_driver* bringup_driver_get(uint32_t abi_version);
 *
 * which returns its function table (static storage, never freed) or NULL when it does not speak
 * that version.
 *
 * Version rule: the table is append-only within version 1. The kit reads no further than
 * struct_size, and treats what lies behind it as NULL. Functions of a group marked "optional" may
 * be NULL; all others are required.
 *
 * Error rule: every function returns BRINGUP_OK or another bringup_status; after a failure
 * last_error() (optional) says why, in words, for the calling thread. Nothing is thrown and nothing
 * aborts. Thread rule: every function may be called from any thread. Device numbers run from 0 to
 * device_count - 1. Order rule: work given to one stream runs in the order given; work in different
 * streams may overlap. A NULL stream is the device's default stream. All *_async functions may
 * return before the work is done. Process rule: a child of fork() cannot use the driver: every
 * function that needs the device returns BRINGUP_ERROR and says so. When the process ends, whatever
 * still runs is dropped quietly, and later calls return a failure.
 */
#ifndef BRINGUP_DRIVER_H_
#define BRINGUP_DRIVER_H_

#include "bringup/kernel.h"

#define BRINGUP_DRIVER_ABI 1

#ifdef __cplusplus
extern "C" {
#endif

typedef enum bringup_status {
  BRINGUP_OK = 0,
  BRINGUP_INVALID = 1,       /* a wrong argument */
  BRINGUP_OUT_OF_MEMORY = 2, /* the kit empties its caches and tries once more */
  BRINGUP_NOT_READY = 3,     /* queries only: not an error */
  BRINGUP_UNSUPPORTED = 4,
  BRINGUP_DEVICE_LOST = 5,
  BRINGUP_KERNEL_FAILED =
      6, /* asynchronous: reported once, by the next synchronisation of that stream, of an event
            recorded in it or of its device; last_error() names the operator and the stream */
  BRINGUP_ERROR = 7
} bringup_status;

typedef enum bringup_copy_kind {
  BRINGUP_HOST_TO_DEVICE = 1,
  BRINGUP_DEVICE_TO_HOST = 2,
  BRINGUP_DEVICE_TO_DEVICE = 3 /* same device or between two */
} bringup_copy_kind;

typedef struct bringup_stream_s* bringup_stream;
typedef struct bringup_event_s* bringup_event;
typedef struct bringup_graph_s* bringup_graph;

typedef struct bringup_device_props {
  uint32_t struct_size; /* set by the caller; write no further */
  char name[64];        /* for people: "Simulated NPU" */
  char arch[32];        /* for compilers: "sim-1" */
  uint64_t total_memory;
  uint32_t core_count;
  uint32_t supports_float64; /* 0 or 1. 0: there are no float64 and complex128 tensors on it, the
                                kit refuses them with a TypeError. */
  uint32_t supports_int64;   /* 0 or 1. 0: kernels have no 64-bit integers. int64 tensors exist all
                                the same, as torch's indices are int64. */
  uint32_t host_visible_memory; /* 1: the host may read and write device memory through host_view */
  uint32_t runs_host_code; /* 1: device code is host code, as on a simulator. A kernel built for the
                              host is then launched like device code, never called directly. */
} bringup_device_props;

/* What an argument of a kernel launch is: the ArgKind of kernel.h's table. */
typedef enum bringup_arg_kind {
  BRINGUP_ARG_NONE = 0,
  BRINGUP_ARG_TENSOR = 1,
  BRINGUP_ARG_INT = 2,
  BRINGUP_ARG_FLOAT = 3,
  BRINGUP_ARG_STRING = 4,
  BRINGUP_ARG_INT_LIST = 5,
  BRINGUP_ARG_FLOAT_LIST = 6,
  BRINGUP_ARG_TENSOR_LIST = 7
} bringup_arg_kind;

/* One kernel launch. Everything it points at stays valid until the driver calls release(owner),
 * which it does exactly once, from any thread, when the launch has finished, failed or was refused.
 * release may be NULL. */
typedef struct bringup_launch {
  uint32_t struct_size;
  int32_t nargs;
  void** args;          /* as kernel.h says; tensors hold device addresses */
  const uint8_t* kinds; /* nargs entries of bringup_arg_kind */
  bringup_kernel_fn fn; /* device code as get_function returned it */
  int64_t grid;         /* number of blocks, >= 1 */
  const char* name;     /* of the operator, for errors and traces */
  void* owner;
  void (*release)(void* owner);
} bringup_launch;

typedef struct bringup_driver {
  uint32_t struct_size;
  uint32_t abi_version; /* BRINGUP_DRIVER_ABI */
  const char*
      device_name; /* what torch calls the device: "npu"; lower case, not "cpu*" or "cuda*" */
  const char* description;

  /* --- device */
  int32_t (*device_count)(int32_t* count);
  int32_t (*device_props)(int32_t device, bringup_device_props* props);
  int32_t (*device_synchronize)(int32_t device);

  /* --- memory. Addresses are 64-byte aligned; bytes > 0. mem_info counts bytes. The kit frees only
   * what no pending work touches; the host side of a copy must stay as it is until the copy is
   * done. A copy between two devices runs in a stream of the source. */
  int32_t (*mem_alloc)(int32_t device, size_t bytes, void** address);
  int32_t (*mem_free)(int32_t device, void* address);
  int32_t (*mem_info)(int32_t device, size_t* free_bytes, size_t* total_bytes);
  int32_t (*copy_async)(bringup_copy_kind kind, int32_t dst_device, void* dst, int32_t src_device,
                        const void* src, size_t bytes, bringup_stream stream);
  int32_t (*fill_async)(int32_t device, void* dst, uint8_t value, size_t bytes,
                        bringup_stream stream);

  /* --- streams and events. priority: 0 is normal, lower is more urgent. event_query and
   * stream_query return BRINGUP_NOT_READY while work is pending. An event that was never recorded
   * counts as done. */
  int32_t (*stream_create)(int32_t device, int32_t priority, bringup_stream* stream);
  int32_t (*stream_destroy)(bringup_stream stream);
  int32_t (*stream_synchronize)(int32_t device, bringup_stream stream);
  int32_t (*stream_query)(int32_t device, bringup_stream stream);
  int32_t (*event_create)(int32_t device, int32_t timing, bringup_event* event);
  int32_t (*event_destroy)(bringup_event event);
  int32_t (*event_record)(bringup_event event, int32_t device, bringup_stream stream);
  int32_t (*event_wait)(bringup_event event, int32_t device,
                        bringup_stream stream); /* the stream waits */
  int32_t (*event_query)(bringup_event event);
  int32_t (*event_synchronize)(bringup_event event);
  int32_t (*event_elapsed)(bringup_event start, bringup_event end, double* milliseconds);

  /* --- optional: words for the last failure on this thread; valid until the thread's next call */
  const char* (*last_error)(void);

  /* --- optional: pinned host memory. Without it the kit uses ordinary memory. */
  int32_t (*host_alloc)(size_t bytes, void** address);
  int32_t (*host_free)(void* address);

  /* --- optional: host-visible device memory. Gives the host address of a device address, for
   * reading and writing while no work that touches it is pending. Without it the fallback copies.
   */
  int32_t (*host_view)(int32_t device, const void* address, void** host_address);

  /* --- optional: host functions in stream order. fn must not call the driver. */
  int32_t (*host_func)(int32_t device, bringup_stream stream, void (*fn)(void* user), void* user);

  /* --- optional: device code. `library` is the path of a kernel file built for `arch`. A function
   * stays valid until its module is unloaded. */
  int32_t (*module_load)(int32_t device, const char* library, void** module);
  int32_t (*module_unload)(void* module);
  int32_t (*get_function)(void* module, const char* name, bringup_kernel_fn* fn);
  int32_t (*launch)(int32_t device, bringup_stream stream, const bringup_launch* launch);

  /* --- optional: device graphs. Nodes run in the order they are added. graph_launch runs all of
   * them in the stream; a graph may be launched again before the former launch has finished,
   * launches of one graph never overlap. graph_add_kernel copies the bringup_launch struct; what it
   * points at stays the caller's and must outlive the graph (release is called once the graph is
   * destroyed and its last launch is over). A kernel that fails ends its launch of the graph and is
   * reported like any other.
   *
   * When arguments are read (a kernel's `args` and what they point at, but not what tensors hold)
   * depends on graph_update_kernel, below. A driver that has it copies them in graph_add_kernel,
   * and the kit calls it for what changes, as CUDA, AscendCL and OpenCL want it. A driver without
   * it reads them anew when the node runs: the kit changes them in place, in a host function that
   * is ordered between two launches. */
  int32_t (*graph_create)(int32_t device, bringup_graph* graph);
  int32_t (*graph_destroy)(bringup_graph graph);
  int32_t (*graph_add_kernel)(bringup_graph graph, const bringup_launch* launch);
  int32_t (*graph_add_copy)(bringup_graph graph, bringup_copy_kind kind, void* dst, const void* src,
                            size_t bytes);
  int32_t (*graph_add_host_func)(bringup_graph graph, void (*fn)(void* user), void* user);
  int32_t (*graph_launch)(bringup_graph graph, bringup_stream stream);

  /* --- optional: new arguments for a kernel of a graph. `kernel` counts the graph's kernels from 0
   * in the order they were added. Copies nargs, args and what they point at, and grid; fn stays as
   * it is, and release is not called. Later launches of the graph run with them; those made before,
   * also those that have not begun, with the former ones. */
  int32_t (*graph_update_kernel)(bringup_graph graph, int32_t kernel, const bringup_launch* launch);
} bringup_driver;

typedef const bringup_driver* (*bringup_driver_get_fn)(uint32_t abi_version);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* BRINGUP_DRIVER_H_ */
