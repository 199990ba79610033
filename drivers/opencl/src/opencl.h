/* What the parts of the driver share. Every function returns a bringup_status and leaves words for
 * last_error() where it fails, unless its comment says otherwise. */
#ifndef BRINGUP_OPENCL_H_
#define BRINGUP_OPENCL_H_

#define CL_TARGET_OPENCL_VERSION 300
#include <CL/cl.h>

#define DRIVER_API "OpenCL"
#define DRIVER opencl
#include <bringup/driver_parts.h>

/* --- driver.c: devices and errors */

typedef struct host_work host_work;

/* An in-order queue, and the thread that runs host functions in its order. */
struct bringup_stream_s {
  int32_t device;
  cl_command_queue queue;
  pthread_mutex_t lock; /* of the host functions below */
  pthread_cond_t changed;
  pthread_t host_thread; /* made for the first host function */
  int has_host_thread, stopping;
  host_work *first, *last;
  _Atomic uint64_t given, done;    /* how often it was flushed, and before the last wait */
  _Atomic int lent;                /* others have the queue: it may have work that is not counted */
  cl_event asked;                  /* stream_query's marker, under `lock`; NULL: none */
  uint64_t asked_at;               /* what was given in front of it */
  uint64_t work_number, recording; /* of the profiler, under its lock */
};

typedef struct ocl_device {
  cl_device_id id;
  bringup_device_props props;
  struct bringup_stream_s default_stream;
} ocl_device;

/* Written by init alone. One context, so that an address is valid on all devices. */
typedef struct ocl_state {
  cl_context context;
  int fine; /* fine-grained memory: the host may touch it */
  int32_t count;
  _Atomic uint64_t freed; /* how many allocations were */
  ocl_device devices[kMaxDevices];
} ocl_state;
extern ocl_state opencl;

/* An OpenCL function gave `code`. */
int32_t fail_cl(const char* function, cl_int code);
/* The same for a function that waits: what failed may be the work. */
int32_t fail_wait(const char* function, cl_int code, bringup_stream stream);
#define TRY_CL(function, ...)                                  \
  do {                                                         \
    const cl_int code_ = function(__VA_ARGS__);                \
    if (code_ != CL_SUCCESS) return fail_cl(#function, code_); \
  } while (0)

/* clang-format off */
/* --- memory.c */
OF_TABLE(mem_alloc); OF_TABLE(mem_free); OF_TABLE(mem_info); OF_TABLE(host_view);
OF_TABLE(pointer_info); OF_TABLE(copy_async);
/* --- streams.c */
OF_TABLE(stream_destroy); OF_TABLE(stream_synchronize);
OF_TABLE(stream_query); OF_TABLE(stream_wait_for); OF_TABLE(event_create); OF_TABLE(event_destroy);
OF_TABLE(event_record); OF_TABLE(event_wait); OF_TABLE(event_query); OF_TABLE(event_synchronize);
OF_TABLE(event_wait_for); OF_TABLE(event_elapsed); OF_TABLE(host_func);
/* --- kernels.c */
OF_TABLE(module_unload); OF_TABLE(get_function);
OF_TABLE(launch_values);
/* --- graphs.c */
OF_TABLE(graph_create); OF_TABLE(graph_destroy); OF_TABLE(graph_add_copy);
OF_TABLE(graph_add_host_func); OF_TABLE(graph_add_values); OF_TABLE(graph_update_values);
OF_TABLE(graph_launch);
/* --- profiler.c */
OF_TABLE(profiler_start); OF_TABLE(profiler_stop); OF_TABLE(profiler_read);
/* clang-format on */

/* --- memory.c. Not flushed. `event` may be NULL. */
int32_t enqueue_copy(bringup_stream stream, void* dst, const void* src, size_t bytes,
                     cl_event* event);

/* A cl_mem over the whole allocation that `address` is in; it lives as long. */
int32_t memory_object(const void* address, void** object);

/* --- streams.c */
/* Ends whatever is enqueued: work begins without a further call. */
int32_t flush(bringup_stream stream);
int32_t enqueue_marker(bringup_stream stream, cl_event* event);
int32_t enqueue_wait(bringup_stream stream, cl_event event);
int32_t enqueue_host_func(bringup_stream stream, void (*fn)(void* user), void* user);

/* --- kernels.c. Whether the kernel can take it, by its own declaration and the device's limits. */
int32_t check_launch(int32_t device, const bringup_launch_values_args* launch);
/* Not flushed. The launch was checked; `event` may be NULL. */
int32_t enqueue_launch(bringup_stream stream, const bringup_launch_values_args* launch,
                       cl_event* event);

/* --- profiler.c. Where an enqueue puts its event: NULL unless the device is recorded. */
cl_event* recorded_event(bringup_stream stream, cl_event* event);
/* Ends a piece of work that was given: keeps a record where there are events, and flushes. Takes
 * the events; `begin` is `end` but for a graph. */
int32_t finish_work(bringup_stream stream, int32_t kind, cl_event begin, cl_event end,
                    uint64_t bytes, const char* name);

#endif /* BRINGUP_OPENCL_H_ */
