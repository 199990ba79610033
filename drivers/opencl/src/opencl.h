/* What the parts of the driver share. Every function returns a bringup_status and leaves words for
 * last_error() where it fails, unless its comment says otherwise. */
#ifndef BRINGUP_OPENCL_H_
#define BRINGUP_OPENCL_H_

#define CL_TARGET_OPENCL_VERSION 300
#include <CL/cl.h>
#include <bringup/driver.h>
#include <pthread.h>

enum { kMaxDevices = 64 };

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
  ocl_device devices[kMaxDevices];
} ocl_state;
extern ocl_state opencl;

/* BRINGUP_OK, or why the driver (and the device) cannot be used. */
int32_t usable(void);
int32_t usable_device(int32_t device);

__attribute__((format(printf, 2, 3))) int32_t fail(int32_t status, const char* format, ...);
/* An OpenCL function gave `code`. */
int32_t fail_cl(const char* function, cl_int code);
/* The same for a function that waits: what failed may be the work. */
int32_t fail_wait(const char* function, cl_int code, bringup_stream stream);
/* For error_detail: of the failure that was just told. Returns `status`. */
int32_t about(int32_t status, int32_t device, bringup_stream stream, const char* kernel);

/* Copies min(struct_size, size) bytes of `from`, a structure that begins with its size. */
void give(void* to, const void* from, size_t size);

#define NEED(condition, ...) \
  if (!(condition)) return fail(BRINGUP_INVALID, __VA_ARGS__)
#define TRY(call)                              \
  do {                                         \
    const int32_t status_ = (call);            \
    if (status_ != BRINGUP_OK) return status_; \
  } while (0)
#define TRY_CL(function, ...)                                  \
  do {                                                         \
    const cl_int code_ = function(__VA_ARGS__);                \
    if (code_ != CL_SUCCESS) return fail_cl(#function, code_); \
  } while (0)

/* --- memory.c */

int32_t mem_alloc(int32_t device, size_t bytes, void** address);
int32_t mem_free(int32_t device, void* address);
int32_t mem_info(int32_t device, size_t* free_bytes, size_t* total_bytes);
int32_t host_view(int32_t device, const void* address, void** host_address);
int32_t pointer_info(const void* address, bringup_pointer_info* info);
int32_t copy_async(bringup_copy_kind kind, int32_t dst_device, void* dst, int32_t src_device,
                   const void* src, size_t bytes, bringup_stream stream);
int32_t fill_async(int32_t device, void* dst, uint8_t value, size_t bytes, bringup_stream stream);
int32_t fill_wide_async(int32_t device, void* dst, const void* pattern, uint32_t size, size_t count,
                        bringup_stream stream);
/* Not flushed. `event` may be NULL. */
int32_t enqueue_copy(bringup_stream stream, void* dst, const void* src, size_t bytes,
                     cl_event* event);

/* --- streams.c */

int32_t open_stream(bringup_stream stream, int32_t device, int32_t priority);
/* The stream itself for NULL and others; refused where it is of another device. */
int32_t stream_of(int32_t device, bringup_stream* stream);
/* Ends whatever is enqueued: work begins without a further call. */
int32_t flush(bringup_stream stream);
int32_t enqueue_marker(bringup_stream stream, cl_event* event);
int32_t enqueue_wait(bringup_stream stream, cl_event event);
int32_t enqueue_host_func(bringup_stream stream, void (*fn)(void* user), void* user);

int32_t stream_create(int32_t device, int32_t priority, bringup_stream* stream);
int32_t stream_destroy(bringup_stream stream);
int32_t stream_synchronize(int32_t device, bringup_stream stream);
int32_t stream_query(int32_t device, bringup_stream stream);
int32_t stream_wait_for(int32_t device, bringup_stream stream, int64_t nanoseconds);
int32_t event_create(int32_t device, int32_t timing, bringup_event* event);
int32_t event_destroy(bringup_event event);
int32_t event_record(bringup_event event, int32_t device, bringup_stream stream);
int32_t event_wait(bringup_event event, int32_t device, bringup_stream stream);
int32_t event_query(bringup_event event);
int32_t event_synchronize(bringup_event event);
int32_t event_wait_for(bringup_event event, int64_t nanoseconds);
int32_t event_elapsed(bringup_event start, bringup_event end, double* milliseconds);
int32_t host_func(int32_t device, bringup_stream stream, void (*fn)(void* user), void* user);

/* --- kernels.c */

int32_t module_load(int32_t device, const char* library, void** module);
int32_t module_load_data(int32_t device, const void* data, size_t bytes, void** module);
int32_t module_unload(void* module);
int32_t get_function(void* module, const char* name, bringup_kernel_fn* fn);
int32_t launch_values(int32_t device, bringup_stream stream,
                      const bringup_launch_values_args* launch);
/* Whether the kernel can take it, by the kernel's own declaration and the device's limits. */
int32_t check_launch(int32_t device, const bringup_launch_values_args* launch);
/* Not flushed. The launch was checked; `event` may be NULL. */
int32_t enqueue_launch(bringup_stream stream, const bringup_launch_values_args* launch,
                       cl_event* event);

/* --- graphs.c */

int32_t graph_create(int32_t device, bringup_graph* graph);
int32_t graph_destroy(bringup_graph graph);
int32_t graph_add_copy(bringup_graph graph, bringup_copy_kind kind, void* dst, const void* src,
                       size_t bytes);
int32_t graph_add_host_func(bringup_graph graph, void (*fn)(void* user), void* user);
int32_t graph_add_values(bringup_graph graph, const bringup_launch_values_args* launch);
int32_t graph_update_values(bringup_graph graph, int32_t kernel,
                            const bringup_launch_values_args* launch);
int32_t graph_launch(bringup_graph graph, bringup_stream stream);

/* --- profiler.c */

/* Where an enqueue puts its event: NULL unless the device is recorded. */
cl_event* recorded_event(bringup_stream stream, cl_event* event);
/* Ends a piece of work that was given: keeps a record where there are events, and flushes. Takes
 * the events; `begin` is `end` but for a graph. */
int32_t finish_work(bringup_stream stream, int32_t kind, cl_event begin, cl_event end,
                    uint64_t bytes, const char* name);
int32_t profiler_start(int32_t device);
int32_t profiler_stop(int32_t device);
int32_t profiler_read(int32_t device, bringup_record* records, int32_t capacity, int32_t* count,
                      uint64_t* lost);

#endif /* BRINGUP_OPENCL_H_ */
