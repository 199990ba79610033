/* bringup driver ABI 1: what a device vendor implements to give PyTorch a device. Plain C, no
 * torch, no Python. It is final within version 1: nothing in it changes, what is new is appended,
 * and libraries built for an older header keep running.
 *
 * A driver is a shared library that exports one function,
 *
 *     const bringup_driver* bringup_driver_get(uint32_t abi_version);
 *
 * which returns its function table (static storage, never freed) or NULL when it does not speak
 * that version.
 *
 * Version rule: the table is append-only within version 1. The kit reads no further than
 * struct_size, and treats what lies behind it as NULL.
 *
 * Required functions, marked [required]: device_count, device_props, mem_alloc, mem_free,
 * copy_async, stream_create, stream_synchronize, event_create, event_destroy, event_record,
 * event_wait, event_query. Every other function may be NULL; its comment says what the kit does
 * then. The groups behind `capabilities` are used only if their bit is set there, and then every
 * function of the group must be there.
 *
 * Error rule: every function returns BRINGUP_OK or another bringup_status; after a failure
 * last_error() (optional) says why, in words, for the calling thread. Nothing is thrown and nothing
 * aborts. A call that fails to free or unregister memory leaves it as it was, and the kit tries
 * again later; a handle that could not be destroyed is not used again, and the kit warns. Thread
 * rule: every function may be called from any thread. Device numbers run from 0 to device_count
 * - 1. Order rule: work given to one stream runs in the order given; work in different streams may
 * overlap. Work begins without a further call: what was given runs although no call waits or asks.
 * A NULL stream is the device's default stream. All *_async functions may return before the work is
 * done. Process rule: a child of fork() cannot use the driver: every function that
 * needs the device returns BRINGUP_ERROR and says so. When the process ends, whatever still runs is
 * dropped quietly, and later calls return a failure.
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
            recorded in it or of its device; last_error() names the operator and the stream. Where
            the runtime can tell: one whose kernels report nothing never returns it. Until it
            is reported it is also a failure of every stream that waits for such an event, since
            what that stream computes depends on it */
  BRINGUP_ERROR = 7,
  BRINGUP_TIMEOUT = 8 /* stream_wait_for and event_wait_for only: the time is over */
} bringup_status;

typedef enum bringup_copy_kind {
  BRINGUP_HOST_TO_DEVICE = 1,
  BRINGUP_DEVICE_TO_HOST = 2,
  BRINGUP_DEVICE_TO_DEVICE = 3 /* same device or between two */
} bringup_copy_kind;

typedef struct bringup_stream_s* bringup_stream;
typedef struct bringup_event_s* bringup_event;
typedef struct bringup_graph_s* bringup_graph;
typedef struct bringup_comm_s* bringup_comm;

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
  /* --- since 1.1; 0 where a driver says nothing of it */
  uint64_t dtypes;           /* BRINGUP_DTYPE_* bits of the tensors that may exist on it; 0: all,
                                but for what supports_float64 rules out. int64 and bool must be set */
  uint32_t alignment;        /* of mem_alloc's addresses: a power of two >= 64; 0: 64 */
  uint8_t uuid[16];          /* the same for this device in every process; all 0: none */
  char driver_version[32];   /* of the driver, for people and for caches: another version is probed
                                anew */
  int32_t least_priority;    /* stream priorities, as in CUDA: greatest_priority <= 0 <= */
  int32_t greatest_priority; /* least_priority. Both 0: the device has none */
  /* Limits of launch_values, which the driver refuses with BRINGUP_INVALID; 0: none said */
  uint32_t max_grid[3];       /* in blocks */
  uint32_t max_block[3];      /* in threads */
  uint32_t max_block_threads; /* of one block */
  uint32_t max_shared_bytes;  /* of one block */
  /* --- since 1.2 */
  uint64_t max_allocation; /* the most bytes of one mem_alloc; 0: unknown */
  /* --- since 1.5: what launch_values takes beyond blocks of threads */
  uint64_t values_flags; /* BRINGUP_VALUES_* bits */
  uint32_t max_cluster;  /* the most blocks of a cluster; 0: there are none */
} bringup_device_props;

/* Bits of bringup_device_props.dtypes. */
#define BRINGUP_DTYPE_BOOL (UINT64_C(1) << 0)
#define BRINGUP_DTYPE_UINT8 (UINT64_C(1) << 1)
#define BRINGUP_DTYPE_INT8 (UINT64_C(1) << 2)
#define BRINGUP_DTYPE_INT16 (UINT64_C(1) << 3)
#define BRINGUP_DTYPE_INT32 (UINT64_C(1) << 4)
#define BRINGUP_DTYPE_INT64 (UINT64_C(1) << 5)
#define BRINGUP_DTYPE_UINT16 (UINT64_C(1) << 6)
#define BRINGUP_DTYPE_UINT32 (UINT64_C(1) << 7)
#define BRINGUP_DTYPE_UINT64 (UINT64_C(1) << 8)
#define BRINGUP_DTYPE_FLOAT16 (UINT64_C(1) << 9)
#define BRINGUP_DTYPE_BFLOAT16 (UINT64_C(1) << 10)
#define BRINGUP_DTYPE_FLOAT32 (UINT64_C(1) << 11)
#define BRINGUP_DTYPE_FLOAT64 (UINT64_C(1) << 12)
#define BRINGUP_DTYPE_COMPLEX32 (UINT64_C(1) << 13)
#define BRINGUP_DTYPE_COMPLEX64 (UINT64_C(1) << 14)
#define BRINGUP_DTYPE_COMPLEX128 (UINT64_C(1) << 15)
#define BRINGUP_DTYPE_FLOAT8_E4M3FN (UINT64_C(1) << 16)
#define BRINGUP_DTYPE_FLOAT8_E5M2 (UINT64_C(1) << 17)
#define BRINGUP_DTYPE_FLOAT8_E4M3FNUZ (UINT64_C(1) << 18)
#define BRINGUP_DTYPE_FLOAT8_E5M2FNUZ (UINT64_C(1) << 19)
#define BRINGUP_DTYPE_FLOAT8_E8M0FNU (UINT64_C(1) << 20)
#define BRINGUP_DTYPE_FLOAT4_E2M1FN_X2 (UINT64_C(1) << 21)

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

/* Bits of bringup_launch.flags. */
/* The kernel waits for nothing: neither for the host nor for other work. A driver may run it within
 * the call when all that its stream was given before is over; it need not. */
#define BRINGUP_LAUNCH_WAITS_FOR_NOTHING (UINT64_C(1) << 0)

/* One kernel launch. Everything it points at stays valid until the driver calls release(owner),
 * which it does exactly once, from any thread, when the launch has finished, failed or was refused.
 * release may be NULL. A driver reads no further than struct_size; what is behind it is 0. */
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
  /* --- since 1.1 */
  uint64_t flags; /* BRINGUP_LAUNCH_* */
  /* --- since 1.3: how many independent pieces of work the blocks share, >= grid; 0: unknown. A
   * kernel takes its share by block_index and block_count of its context, so where it is not 0 the
   * driver may run another number of blocks, from 1 to work_items. */
  int64_t work_items;
} bringup_launch;

/* Bits of bringup_driver.capabilities: the groups of functions behind it that the driver has. */
#define BRINGUP_HAS_LIFECYCLE (UINT64_C(1) << 0)    /* init, shutdown */
#define BRINGUP_HAS_ERROR_DETAIL (UINT64_C(1) << 1) /* error_detail */
#define BRINGUP_HAS_TIMED_WAITS (UINT64_C(1) << 2)  /* stream_wait_for, event_wait_for */
#define BRINGUP_HAS_RESET (UINT64_C(1) << 3)        /* device_reset */
#define BRINGUP_HAS_HOST_MEMORY (UINT64_C(1) << 4)  /* host_register, host_unregister */
#define BRINGUP_HAS_POINTERS (UINT64_C(1) << 5)     /* pointer_info */
#define BRINGUP_HAS_COPY_2D (UINT64_C(1) << 6)      /* copy_2d_async */
#define BRINGUP_HAS_WIDE_FILL (UINT64_C(1) << 7)    /* fill_wide_async */
#define BRINGUP_HAS_MODULE_DATA (UINT64_C(1) << 8)  /* module_load_data */
#define BRINGUP_HAS_LAUNCH_VALUES \
  (UINT64_C(1) << 9) /* launch_values, graph_add_values, graph_update_values */
#define BRINGUP_HAS_PROFILER (UINT64_C(1) << 10) /* profiler_start, _stop, _read */
#define BRINGUP_HAS_NATIVE (UINT64_C(1) << 11)   /* native_handle */
#define BRINGUP_HAS_STREAM_CAPTURE \
  (UINT64_C(1) << 12)                               /* stream_capture_begin, _end, _abort, _query */
#define BRINGUP_HAS_COLLECTIVES (UINT64_C(1) << 13) /* comm_id to all_to_all */
#define BRINGUP_HAS_IPC (UINT64_C(1) << 14)         /* ipc_export, ipc_open, ipc_close */
#define BRINGUP_HAS_CONDITIONAL (UINT64_C(1) << 15) /* graph_add_conditional */

/* What failed last on the calling thread, beyond the words of last_error(). */
typedef struct bringup_error_detail {
  uint32_t struct_size;  /* set by the caller; write no further */
  int64_t code;          /* the vendor's own number; 0: none */
  int32_t device;        /* where it failed; -1: unknown */
  bringup_stream stream; /* NULL: the default stream, or unknown */
  char kernel[128];      /* of the operator or function that failed, or "" */
  char text[512];        /* what the vendor's support would ask for: a register dump, an address */
} bringup_error_detail;

/* Whose memory an address lies in. */
typedef enum bringup_pointer_kind {
  BRINGUP_POINTER_UNKNOWN = 0, /* ordinary host memory, or no one's */
  BRINGUP_POINTER_DEVICE = 1,
  BRINGUP_POINTER_HOST = 2 /* of host_alloc or host_register */
} bringup_pointer_kind;

typedef struct bringup_pointer_info {
  uint32_t struct_size; /* set by the caller; write no further */
  int32_t kind;         /* bringup_pointer_kind */
  int32_t device;       /* of device memory; -1 otherwise */
  void* base;           /* where its allocation begins, and its bytes; NULL and 0 when unknown */
  size_t bytes;
} bringup_pointer_info;

/* What native_handle gives: the vendor's own objects. */
typedef enum bringup_native_kind {
  BRINGUP_NATIVE_CONTEXT = 1, /* of the device: cl_context, CUcontext, aclrtContext */
  BRINGUP_NATIVE_DEVICE = 2,  /* the device: cl_device_id, or its number at the vendor's */
  BRINGUP_NATIVE_QUEUE = 3,   /* the stream: cl_command_queue, CUstream, aclrtStream */
  BRINGUP_NATIVE_MEMORY = 4   /* of an address, where memory has objects: cl_mem */
} bringup_native_kind;

/* What becomes of the work that is given to a stream. */
typedef enum bringup_capture_state {
  BRINGUP_CAPTURE_NONE = 0,   /* it runs */
  BRINGUP_CAPTURE_ACTIVE = 1, /* it is captured */
  BRINGUP_CAPTURE_BROKEN = 2  /* something could not be captured: end adds no node */
} bringup_capture_state;

/* What a node of graph_add_conditional does with its two graphs. */
typedef enum bringup_conditional {
  BRINGUP_CONDITIONAL_IF = 0,   /* the first where the predicate is not 0, else the second */
  BRINGUP_CONDITIONAL_WHILE = 1 /* the first, then, where the predicate is not 0, the second and all
                                   of it again */
} bringup_conditional;

/* One argument of launch_values: `size` bytes of `value`, in the machine's byte order, which is
 * what cuLaunchKernel, clSetKernelArg and their like take. */
typedef enum bringup_value_kind {
  BRINGUP_VALUE_ADDRESS = 1, /* device memory; size 8 */
  BRINGUP_VALUE_INT = 2,     /* size 1, 2, 4 or 8; the bytes behind are its sign, or 0 */
  BRINGUP_VALUE_FLOAT = 3    /* size 4 or 8 */
} bringup_value_kind;

typedef struct bringup_value {
  uint32_t kind; /* bringup_value_kind */
  uint32_t size;
  union {
    void* address;
    int64_t integer;
    double number; /* size 8 */
    float single;  /* size 4 */
    uint8_t bytes[8];
  } value;
} bringup_value;

typedef struct bringup_dim3 {
  uint32_t x, y, z; /* each >= 1 */
} bringup_dim3;

/* Bits of bringup_launch_values_args.flags. */
/* All blocks run at the same time, so that they may wait for each other; where the device has no
 * room for that, the launch is refused. */
#define BRINGUP_VALUES_COOPERATIVE (UINT64_C(1) << 0)
/* The stream of this launch_values is no bringup_stream but the vendor's own object, which
 * native_handle calls BRINGUP_NATIVE_QUEUE, of any library of this process; NULL: the vendor's
 * default. */
#define BRINGUP_VALUES_NATIVE_QUEUE (UINT64_C(1) << 1)

/* A launch whose arguments are plain values. The driver reads all of it before it returns and keeps
 * nothing of it. It reads no further than struct_size; what is behind it is 0. */
typedef struct bringup_launch_values_args {
  uint32_t struct_size;
  int32_t nvalues;
  const bringup_value* values;
  bringup_kernel_fn fn;  /* as get_function returned it */
  bringup_dim3 grid;     /* blocks */
  bringup_dim3 block;    /* threads of a block */
  uint32_t shared_bytes; /* of a block's shared memory, in addition to what the kernel declares */
  const char* name;      /* of the operator, for errors and traces; valid during the call */
  /* --- since 1.3: all 0, or how many threads run in each dimension: grid x block, exactly. Then
   * none of them waits for another and shared_bytes is 0, so the driver may divide them into other
   * blocks, the last ones smaller (a global size without a local one in OpenCL); no more threads
   * run than these. One that cannot takes grid and block as they are. */
  bringup_dim3 work_items;
  /* --- since 1.5: only what the device's max_cluster and values_flags have. In a graph both stay
   * as they were added. */
  uint64_t flags;       /* BRINGUP_VALUES_* */
  bringup_dim3 cluster; /* all 0, or the blocks of a cluster, which share their memory: each divides
                           that of grid */
} bringup_launch_values_args;

typedef enum bringup_record_kind {
  BRINGUP_RECORD_KERNEL = 1,
  BRINGUP_RECORD_COPY = 2,
  BRINGUP_RECORD_FILL = 3,
  BRINGUP_RECORD_GRAPH = 4
} bringup_record_kind;

/* One piece of work that a device did. */
typedef struct bringup_record {
  uint32_t struct_size; /* set by the caller; write no further */
  int32_t kind;         /* bringup_record_kind */
  int32_t device;
  bringup_stream stream; /* NULL: the default stream */
  uint64_t number;       /* of this stream's calls since profiler_start that returned OK, from 0 */
  int64_t begin;         /* nanoseconds of CLOCK_REALTIME */
  int64_t end;
  uint64_t bytes; /* of a copy or a fill */
  char name[128]; /* of the launch, or "" */
} bringup_record;

/* What another process of this machine needs to open an allocation: plain bytes, which the driver
 * alone reads. */
typedef struct bringup_ipc_handle {
  uint8_t bytes[128];
} bringup_ipc_handle;

/* Names a communicator to all who shall be in it, also in other processes and on other machines. */
typedef struct bringup_comm_id {
  uint8_t bytes[128];
} bringup_comm_id;

/* How numbers of several ranks become one. */
typedef enum bringup_reduction {
  BRINGUP_REDUCE_SUM = 0, /* of integers: wraps */
  BRINGUP_REDUCE_PRODUCT = 1,
  BRINGUP_REDUCE_MIN = 2,
  BRINGUP_REDUCE_MAX = 3,
  BRINGUP_REDUCE_BAND = 4, /* of the bits of integers */
  BRINGUP_REDUCE_BOR = 5,
  BRINGUP_REDUCE_BXOR = 6
} bringup_reduction;

typedef struct bringup_driver {
  uint32_t struct_size;
  uint32_t abi_version; /* BRINGUP_DRIVER_ABI */
  const char*
      device_name; /* what torch calls the device: "npu"; lower case, not "cpu*" or "cuda*" */
  const char* description;

  /* --- device */
  int32_t (*device_count)(int32_t* count);                              /* [required] */
  int32_t (*device_props)(int32_t device, bringup_device_props* props); /* [required] texts end
                                                                           with NUL */
  /* Waits for all work of the device. NULL: the kit waits for every stream that it made, and for
   * the default stream. */
  int32_t (*device_synchronize)(int32_t device);

  /* --- memory. Addresses are aligned as the properties say, at least to 64 bytes; bytes > 0. An
   * address is the driver's until mem_free, and overlaps no live one of its device. The kit frees
   * only what no pending work touches; the host side of a copy must stay as it is until the copy is
   * done. Source and target of a copy do not overlap. A copy between two devices runs in a stream
   * of the source. */
  int32_t (*mem_alloc)(int32_t device, size_t bytes, void** address); /* [required] */
  int32_t (*mem_free)(int32_t device, void* address);                 /* [required] */
  /* NULL: the kit counts what it has allocated, against total_memory, and asks for no more than
   * that: a runtime that overcommits need not find out what is free. */
  int32_t (*mem_info)(int32_t device, size_t* free_bytes, size_t* total_bytes);
  int32_t (*copy_async)(bringup_copy_kind kind, int32_t dst_device, void* dst, int32_t src_device,
                        const void* src, size_t bytes, bringup_stream stream); /* [required] */
  /* Every byte becomes `value`. NULL: the kit copies from host memory. */
  int32_t (*fill_async)(int32_t device, void* dst, uint8_t value, size_t bytes,
                        bringup_stream stream);

  /* --- streams and events. priority: 0 is normal, lower is more urgent, always within the range of
   * the properties. event_query and stream_query return BRINGUP_NOT_READY while work is pending. An
   * event that was never recorded counts as done; one that is recorded again stands for its last
   * record. A handle is never NULL and differs from all live ones of its kind. What is destroyed
   * has no pending work. */
  int32_t (*stream_create)(int32_t device, int32_t priority,
                           bringup_stream* stream); /* [required] */
  /* Right before shutdown, of every stream that is left. NULL, or no shutdown: streams live as long
   * as the process. */
  int32_t (*stream_destroy)(bringup_stream stream);
  int32_t (*stream_synchronize)(int32_t device, bringup_stream stream); /* [required] */
  /* NULL: the kit records an event and asks for that. */
  int32_t (*stream_query)(int32_t device, bringup_stream stream);
  int32_t (*event_create)(int32_t device, int32_t timing, bringup_event* event); /* [required] */
  int32_t (*event_destroy)(bringup_event event);                                 /* [required] */
  int32_t (*event_record)(bringup_event event, int32_t device,
                          bringup_stream stream); /* [required] */
  int32_t (*event_wait)(bringup_event event, int32_t device,
                        bringup_stream stream); /* [required] the stream waits */
  int32_t (*event_query)(bringup_event event);  /* [required] */
  /* NULL: the kit asks event_query until it is done, which then returns a failure in its place. */
  int32_t (*event_synchronize)(bringup_event event);
  /* Both events have timing and are done. NULL: events with timing are refused. */
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
   * stays valid until its module is unloaded: right before shutdown, or where get_function refuses
   * what it was loaded for. */
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

  /* --- since 1.1: which of the groups below the driver has, as BRINGUP_HAS_* bits. */
  uint64_t capabilities;

  /* --- LIFECYCLE. init is called once, before every other function, and may take its time; its
   * failure refuses the driver. shutdown is called once when the process ends in an ordinary way,
   * after the kit has waited for all work, or when the kit refuses the driver after init; no call
   * follows it. What was not freed or destroyed by then is the driver's to drop. */
  int32_t (*init)(void);
  int32_t (*shutdown)(void);

  /* --- ERROR_DETAIL. Of the last failure on this thread, as last_error; the kit adds it to its
   * message. */
  int32_t (*error_detail)(bringup_error_detail* detail);

  /* --- TIMED_WAITS. stream_synchronize and event_synchronize that give up: BRINGUP_TIMEOUT when
   * the work is not done after `nanoseconds`, and the work goes on. Without them the kit asks the
   * queries until the time is over. */
  int32_t (*stream_wait_for)(int32_t device, bringup_stream stream, int64_t nanoseconds);
  int32_t (*event_wait_for)(bringup_event event, int64_t nanoseconds);

  /* --- RESET. After a failure that the device does not get over by itself (BRINGUP_DEVICE_LOST):
   * drops all pending work of the device and forgets its failures; what runs may be waited for, and
   * dropped launches are released. Memory, streams, events, modules and graphs stay valid; what
   * memory holds is undefined. Events that were pending are done. */
  int32_t (*device_reset)(int32_t device);

  /* --- HOST_MEMORY. Makes the caller's host memory [address, address + bytes) as good as that of
   * host_alloc for copies, until it is unregistered by its first address. Ranges that are
   * registered do not overlap. */
  int32_t (*host_register)(void* address, size_t bytes);
  int32_t (*host_unregister)(void* address);

  /* --- POINTERS. Any address may be asked for; one that the driver does not know is
   * BRINGUP_POINTER_UNKNOWN and BRINGUP_OK. */
  int32_t (*pointer_info)(const void* address, bringup_pointer_info* info);

  /* --- COPY_2D. `height` rows of `width` bytes; rows begin `dst_pitch` and `src_pitch` bytes
   * apart, each >= width. What lies between the rows of the target stays as it is. Otherwise as
   * copy_async. A runtime that has no such copy leaves the group out or does it by a kernel of its
   * own. Without it the kit copies the rows through host memory. */
  int32_t (*copy_2d_async)(bringup_copy_kind kind, int32_t dst_device, void* dst, size_t dst_pitch,
                           int32_t src_device, const void* src, size_t src_pitch, size_t width,
                           size_t height, bringup_stream stream);

  /* --- WIDE_FILL. Repeats the `size` bytes (1, 2, 4, 8 or 16) of `pattern` `count` times from
   * `dst`, which is aligned to `size`. `pattern` is read before the call returns. */
  int32_t (*fill_wide_async)(int32_t device, void* dst, const void* pattern, uint32_t size,
                             size_t count, bringup_stream stream);

  /* --- MODULE_DATA. module_load from memory: the content of a kernel file, which the driver copies
   * as far as it needs it. The kit prefers it to module_load. */
  int32_t (*module_load_data)(int32_t device, const void* data, size_t bytes, void** module);

  /* --- LAUNCH_VALUES. Device code with plain arguments over a grid of blocks of threads, for
   * operators that ask for it; how a thread learns its place is the device's own. A kernel that
   * fails is reported like any other. All that the launch points at is read before the call
   * returns. `kernel` counts those of graph_add_kernel too; graph_update_values replaces values,
   * grid, block, shared_bytes and work_items, fn stays as it is, and later launches of the graph
   * run with them; those made before, also those that have not begun, with the former ones. */
  int32_t (*launch_values)(int32_t device, bringup_stream stream,
                           const bringup_launch_values_args* launch);
  int32_t (*graph_add_values)(bringup_graph graph, const bringup_launch_values_args* launch);
  int32_t (*graph_update_values)(bringup_graph graph, int32_t kernel,
                                 const bringup_launch_values_args* launch);

  /* --- PROFILER. From start to stop, which come in turn, the device keeps a record of each copy,
   * fill and launch given through this table, but for work that is unfinished at the stop.
   * profiler_read moves up to `capacity` records, struct_size bytes apart, oldest first; `count` 0:
   * no more. `lost`: how many there have been since the start that it had no room for. */
  int32_t (*profiler_start)(int32_t device);
  int32_t (*profiler_stop)(int32_t device);
  int32_t (*profiler_read)(int32_t device, bringup_record* records, int32_t capacity,
                           int32_t* count, uint64_t* lost);

  /* --- since 1.2. NATIVE. The vendor's own object of a bringup_native_kind, for code that calls
   * the vendor's libraries. `stream`: whose queue; the other kinds do not look at it. MEMORY:
   * `*handle` is an address of device memory before the call. A kind that the runtime has not, or
   * an address of no allocation, is BRINGUP_UNSUPPORTED. The object stays the driver's, and lives
   * as long as what it stands for. */
  int32_t (*native_handle)(int32_t device, bringup_stream stream, int32_t kind, void** handle);

  /* --- STREAM_CAPTURE. From begin to end what is given to `stream`, which is not NULL, through
   * this table or by the vendor's own libraries, does not run. end makes one node of it, behind
   * those that `graph` (of the stream's device) has: each launch of the graph runs all of it, in
   * the order given. It counts as no kernel of graph_update_kernel and graph_update_values. Copies,
   * fills and launches can be captured; the host side of a copy stays the caller's for as long as
   * the graph lives, and a bringup_launch is released when it is destroyed and its last launch is
   * over. What would wait for the stream or ask for its end, and what the runtime cannot capture,
   * fails and breaks the capture. end of a broken one fails and adds nothing. end, also where it
   * fails, and abort, which drops all of it, let the stream run again. A stream is captured once at
   * a time; end and abort of one that is not captured are BRINGUP_INVALID, and so is end where
   * nothing was given: work that went past the stream shall not become a node that does nothing. */
  int32_t (*stream_capture_begin)(int32_t device, bringup_stream stream);
  int32_t (*stream_capture_end)(int32_t device, bringup_stream stream, bringup_graph graph);
  int32_t (*stream_capture_abort)(int32_t device, bringup_stream stream);
  /* `state`: a bringup_capture_state. */
  int32_t (*stream_capture_query)(int32_t device, bringup_stream stream, int32_t* state);

  /* --- since 1.4. IPC. Memory of one process in others that have loaded this driver. ipc_export
   * describes the allocation that begins at `address`, as often as it is asked; another process
   * opens the handle as often as it likes, one time after the other. ipc_open maps the allocation:
   * from `*address` on it is memory of `device`, the number of the exporter's, for every function
   * but mem_free and ipc_export, until ipc_close. A handle that is none, or whose exporter has
   * ended, fails. What was done in one process before another begins a piece of work is seen there.
   * The kit frees what it exported when no process has it open, and closes what no pending work
   * touches; what a process has open when it ends counts as closed. Where the exporter ends first,
   * what is open stays what it is, or work that touches it fails. */
  int32_t (*ipc_export)(int32_t device, void* address, bringup_ipc_handle* handle);
  int32_t (*ipc_open)(int32_t device, const bringup_ipc_handle* handle, void** address);
  int32_t (*ipc_close)(int32_t device, void* address);

  /* --- COLLECTIVES. A communicator joins ranks 0 to size - 1, each a device of some
   * process; several may be of one process, and of one device. comm_id makes a new id on one of
   * them, which the kit carries to the others; each calls comm_create with it. That may wait for
   * the others, for `nanoseconds` at most: ranks of one process are made by several threads.
   * comm_abort may be called while others use the communicator: what is pending in it fails, here
   * and at its peers. comm_query returns BRINGUP_OK, or the failure after which nothing works. What
   * is destroyed has no pending work, and its peers may still have.
   *
   * Operations are work of a stream of the communicator's device, in its order. All ranks give a
   * communicator the same operations with the same sizes in the same order; two of them do not
   * overlap on a rank: those of several streams are ordered by events. An operation waits for its
   * peers at most for `nanoseconds` of comm_create. That time over, a peer that ended, and peers
   * that do not fit together are failures of the stream like that of a kernel
   * (BRINGUP_KERNEL_FAILED), never a wait without end. What an operation should have written is
   * undefined then, and later ones of the communicator fail too.
   *
   * One that the driver has not is BRINGUP_UNSUPPORTED for every rank, in words: that depends on
   * the function, size of the communicator, dtype and reduction alone, so that all ranks go another
   * way. In a captured stream that a driver cannot capture them in, they break the capture, else
   * they become part of the node, which every rank launches as often.
   *
   * `dtype`: one BRINGUP_DTYPE_* bit; counts are of elements, the others of bytes. `src` and `dst`
   * are aligned to the dtype, may be equal in all_reduce, and otherwise do not overlap, but that
   * `src` of all_gather may be the rank's part of `dst`, and `dst` of reduce_scatter that of `src`.
   * All ranks get the same bits. all_gather: `bytes` of each rank, to `dst` in their order.
   * reduce_scatter: `count` elements of the result, of size * count of each rank. all_to_all: what
   * lies one behind the other in src, src_bytes[peer] each, goes to the peers; so it comes to dst.
   * The arrays, of a number for each rank, are read before the call returns. A send may wait until
   * its peer receives. */
  int32_t (*comm_id)(bringup_comm_id* id);
  int32_t (*comm_create)(int32_t device, const bringup_comm_id* id, int32_t rank, int32_t size,
                         int64_t nanoseconds, bringup_comm* comm);
  int32_t (*comm_destroy)(bringup_comm comm);
  int32_t (*comm_abort)(bringup_comm comm);
  int32_t (*comm_query)(bringup_comm comm);
  int32_t (*all_reduce)(bringup_comm comm, const void* src, void* dst, size_t count, uint64_t dtype,
                        int32_t reduction, bringup_stream stream);
  int32_t (*reduce_scatter)(bringup_comm comm, const void* src, void* dst, size_t count,
                            uint64_t dtype, int32_t reduction, bringup_stream stream);
  int32_t (*all_gather)(bringup_comm comm, const void* src, void* dst, size_t bytes,
                        bringup_stream stream);
  int32_t (*broadcast)(bringup_comm comm, void* address, size_t bytes, int32_t root,
                       bringup_stream stream);
  int32_t (*send)(bringup_comm comm, const void* src, size_t bytes, int32_t peer,
                  bringup_stream stream);
  int32_t (*recv)(bringup_comm comm, void* dst, size_t bytes, int32_t peer, bringup_stream stream);
  int32_t (*all_to_all)(bringup_comm comm, const void* src, const size_t* src_bytes, void* dst,
                        const size_t* dst_bytes, bringup_stream stream);

  /* --- since 1.5. CONDITIONAL. A node of `graph` that the device follows, of a bringup_conditional
   * kind, and two new graphs of the graph's device for it. They get nodes as every graph does, also
   * such ones, before `graph` is launched, and count kernels of their own; they are not launched,
   * and go with `graph`. `predicate` is one byte of device memory, which the device reads when it
   * comes to the node (WHILE: behind the first graph, each time), so that nodes before may write
   * it. A kernel that fails ends the launch as a whole; device_reset and the end of the process end
   * a loop. */
  int32_t (*graph_add_conditional)(bringup_graph graph, int32_t kind, const void* predicate,
                                   bringup_graph* first, bringup_graph* second);
} bringup_driver;

typedef const bringup_driver* (*bringup_driver_get_fn)(uint32_t abi_version);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* BRINGUP_DRIVER_H_ */
