/* The simulated NPU (SIM, the path of its library) with one lie, chosen by -DLIE_<what>. The table
 * of lies is tests/unit/devices/lies.py. */
#include <dlfcn.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bringup/driver.h"

static bringup_driver sim;  /* the simulator's functions */
static bringup_driver mine; /* what is given out */

/* Gives the handle or address that was given first, again and again. */
static inline int32_t twice(int32_t status, void** result) {
  static void* first;
  if (first == NULL) first = *result;
  *result = first;
  return status;
}

#if defined(LIE_ALLOC_NULL) || defined(LIE_ALLOC_MISALIGNED) || defined(LIE_ALLOC_TWICE) || \
    defined(LIE_ALLOC_OVERLAP) || defined(LIE_ALLOC_END) || defined(LIE_ALLOC_STATUS)
#define LIE_mem_alloc
static int32_t mem_alloc(int32_t device, size_t bytes, void** address) {
#if defined(LIE_ALLOC_NULL)
  (void)device, (void)bytes, (void)address;
  return BRINGUP_OK;
#elif defined(LIE_ALLOC_MISALIGNED)
  const int32_t status = sim.mem_alloc(device, bytes + 64, address);
  *address = (char*)*address + 8;
  return status;
#elif defined(LIE_ALLOC_TWICE)
  return twice(sim.mem_alloc(device, bytes, address), address);
#elif defined(LIE_ALLOC_OVERLAP)
  static char* first;
  const int32_t status = sim.mem_alloc(device, bytes + 4096, address);
  if (first == NULL)
    first = *address;
  else if (bytes > 4096)
    *address = first - bytes + 256; /* ends within it */
  return status;
#elif defined(LIE_ALLOC_END)
  if (bytes <= 4096) return sim.mem_alloc(device, bytes, address);
  return *address = (void*)(UINTPTR_MAX - 255), BRINGUP_OK;
#else
  (void)device, (void)bytes, (void)address;
  return BRINGUP_NOT_READY;
#endif
}
#endif

#if defined(LIE_IPC_COPY) || defined(LIE_IPC_ANY)
#define LIE_ipc_open
static int32_t ipc_open(int32_t device, const bringup_ipc_handle* handle, void** address) {
  void* shared;
  const int32_t status = sim.ipc_open(device, handle, &shared);
#if defined(LIE_IPC_ANY)
  return status == BRINGUP_OK ? (*address = shared, status) : sim.mem_alloc(device, 64, address);
#else
  if (status != BRINGUP_OK) return status;
  sim.mem_alloc(device, 100000, address);
  sim.copy_async(BRINGUP_DEVICE_TO_DEVICE, device, *address, device, shared, 100000, NULL);
  return sim.stream_synchronize(device, NULL);
#endif
}
#endif

#if defined(LIE_COPY_NOTHING) || defined(LIE_COPY_HALF) || defined(LIE_COPY_SHIFTED) ||  \
    defined(LIE_COPY_LONG) || defined(LIE_COPY_BACKWARDS) || defined(LIE_COPY_STATUS) || \
    defined(LIE_COPY_REFUSES) || defined(LIE_COPY_CRASHES) || defined(LIE_COPY_HANGS) || \
    defined(LIE_COPY_EXITS) || defined(LIE_COPY_ALIGNED)
#define LIE_copy_async
static int32_t copy_async(bringup_copy_kind kind, int32_t to, void* dst, int32_t from,
                          const void* src, size_t bytes, bringup_stream stream) {
#if defined(LIE_COPY_NOTHING)
  (void)kind, (void)to, (void)dst, (void)from, (void)src, (void)bytes, (void)stream;
  return BRINGUP_OK;
#elif defined(LIE_COPY_HALF)
  bytes = bytes > 1 ? bytes / 2 : bytes;
#elif defined(LIE_COPY_SHIFTED)
  if (bytes > 64) src = (const char*)src + 1, bytes -= 1;
#elif defined(LIE_COPY_LONG)
  if (kind != BRINGUP_DEVICE_TO_HOST && bytes == 63) bytes = 64; /* whole lines */
#elif defined(LIE_COPY_ALIGNED)
  if (kind == BRINGUP_HOST_TO_DEVICE) dst = (void*)((uintptr_t)dst & ~(uintptr_t)3);
#elif defined(LIE_COPY_BACKWARDS)
  if (kind == BRINGUP_DEVICE_TO_DEVICE) {
    void* other = dst;
    dst = (void*)src, src = other;
  }
#elif defined(LIE_COPY_CRASHES)
  *(volatile char*)8 = 1;
#elif defined(LIE_COPY_HANGS)
  for (;;) pause();
#elif defined(LIE_COPY_EXITS)
  _exit(3);
#endif
  const int32_t status = sim.copy_async(kind, to, dst, from, src, bytes, stream);
#if defined(LIE_COPY_STATUS)
  return status == BRINGUP_OK ? 57 : status;
#elif defined(LIE_COPY_REFUSES)
  return status == BRINGUP_OK ? BRINGUP_UNSUPPORTED : status;
#else
  return status;
#endif
}
#endif

#if defined(LIE_FILL_SHORT) || defined(LIE_FILL_VALUE) || defined(LIE_FILL_NOTHING)
#define LIE_fill_async
static int32_t fill_async(int32_t device, void* dst, uint8_t value, size_t bytes,
                          bringup_stream stream) {
#if defined(LIE_FILL_SHORT)
  bytes -= bytes % 4; /* whole words */
#elif defined(LIE_FILL_VALUE)
  value = value != 0; /* as a driver that knows two values */
#else
  bytes = 0;
#endif
  return bytes == 0 ? BRINGUP_OK : sim.fill_async(device, dst, value, bytes, stream);
}
#endif

#if defined(LIE_COUNT_NONE) || defined(LIE_COUNT_MANY) || defined(LIE_COUNT_HANGS) || \
    defined(LIE_COUNT_CHANGES) || defined(LIE_COUNT_FAILS)
#define LIE_device_count
static int32_t device_count(int32_t* count) {
#if defined(LIE_COUNT_NONE)
  return *count = 0, BRINGUP_OK;
#elif defined(LIE_COUNT_MANY)
  return *count = 65, BRINGUP_OK;
#elif defined(LIE_COUNT_CHANGES)
  static int32_t calls;
  return *count = 1 + calls++ % 2, BRINGUP_OK;
#elif defined(LIE_COUNT_FAILS)
  (void)count;
  return BRINGUP_DEVICE_LOST;
#else
  for (;;) pause();
  return *count;
#endif
}
#endif

#if defined(LIE_PROPS_NAME) || defined(LIE_PROPS_ARCH) || defined(LIE_PROPS_BEYOND) ||           \
    defined(LIE_PROPS_MEMORY) || defined(LIE_PROPS_ALIGNMENT) || defined(LIE_PROPS_ADDRESSES) || \
    defined(LIE_PROPS_DTYPES) || defined(LIE_PROPS_VERSION)
#define LIE_device_props
static int32_t device_props(int32_t device, bringup_device_props* props) {
  const int32_t status = sim.device_props(device, props);
  if (status != BRINGUP_OK) return status;
#if defined(LIE_PROPS_NAME)
  memset(props->name, 'x', sizeof(props->name));
#elif defined(LIE_PROPS_ARCH)
  memset(props->arch, 'x', sizeof(props->arch));
#elif defined(LIE_PROPS_VERSION)
  memset(props->driver_version, 'x', sizeof(props->driver_version));
#elif defined(LIE_PROPS_BEYOND)
  memset(props + 1, 0, 8);
#elif defined(LIE_PROPS_MEMORY)
  props->total_memory = 0;
#elif defined(LIE_PROPS_ALIGNMENT)
  props->alignment = 96;
#elif defined(LIE_PROPS_ADDRESSES)
  props->alignment = 1 << 20;
#else
  props->dtypes = BRINGUP_DTYPE_FLOAT32;
#endif
  return status;
}
#endif

#if defined(LIE_STREAM_NULL) || defined(LIE_STREAM_TWICE)
#define LIE_stream_create
static int32_t stream_create(int32_t device, int32_t priority, bringup_stream* stream) {
  const int32_t status = sim.stream_create(device, priority, stream);
#if defined(LIE_STREAM_NULL)
  *stream = NULL;
  return status;
#else
  return twice(status, (void**)stream);
#endif
}
#endif

#if defined(LIE_EVENT_NULL) || defined(LIE_EVENT_TWICE)
#define LIE_event_create
static int32_t event_create(int32_t device, int32_t timing, bringup_event* event) {
  const int32_t status = sim.event_create(device, timing, event);
#if defined(LIE_EVENT_NULL)
  *event = NULL;
  return status;
#else
  return twice(status, (void**)event);
#endif
}
#endif

#if defined(LIE_EVENT_NEVER) || defined(LIE_EVENT_EARLY)
#define LIE_event_query
static int32_t event_query(bringup_event event) {
  const int32_t status = sim.event_query(event);
#if defined(LIE_EVENT_NEVER)
  static int calls; /* the first is about an event that was never recorded */
  return calls++ == 0 ? status : BRINGUP_NOT_READY;
#else
  return status == BRINGUP_NOT_READY ? BRINGUP_OK : status;
#endif
}
#endif

#if defined(LIE_WAIT_LATEST) /* found by `driver check` alone: waits for the last record of all */
#define LIE_event_wait
static void wait_for_latest(void* event) {
  while (sim.event_query(event) == BRINGUP_NOT_READY) usleep(100);
}
static int32_t event_wait(bringup_event event, int32_t device, bringup_stream stream) {
  return sim.host_func(device, stream, wait_for_latest, event);
}
#endif

#if defined(LIE_VALUES_BLOCKS) /* and these two: one block of a launch runs */
#define LIE_launch_values
static int32_t launch_values(int32_t device, bringup_stream stream,
                             const bringup_launch_values_args* launch) {
  bringup_launch_values_args one = *launch;
  if (one.grid.x > 0) one.grid = (bringup_dim3){1, 1, 1};
  return sim.launch_values(device, stream, &one);
}
#endif

#if defined(LIE_VALUES_SURPLUS) /* rounds work items up to whole blocks */
#define LIE_launch_values
static int32_t launch_values(int32_t device, bringup_stream stream,
                             const bringup_launch_values_args* launch) {
  bringup_launch_values_args whole = *launch;
  if (whole.work_items.x != 0) {
    whole.block.x = 16;
    whole.grid.x = (whole.work_items.x + 15) / 16;
    whole.work_items = (bringup_dim3){0, 0, 0};
  }
  return sim.launch_values(device, stream, &whole);
}
#endif

#if defined(LIE_VALUES_STALE) /* a graph keeps its first values */
#define LIE_graph_update_values
static int32_t graph_update_values(bringup_graph graph, int32_t kernel,
                                   const bringup_launch_values_args* launch) {
  (void)graph, (void)kernel, (void)launch;
  return BRINGUP_OK;
}
#endif

#if defined(LIE_VALUES_LIMITS) /* cuts what is too large */
#define LIE_launch_values
static int32_t launch_values(int32_t device, bringup_stream stream,
                             const bringup_launch_values_args* launch) {
  bringup_launch_values_args cut = *launch;
  if (cut.block.z > 64) cut.block.z = 64;
  return sim.launch_values(device, stream, &cut);
}
#endif

#if defined(LIE_WAIT_NOTHING)
#define LIE_event_wait
static int32_t event_wait(bringup_event event, int32_t device, bringup_stream stream) {
  (void)event, (void)device, (void)stream;
  return BRINGUP_OK;
}
#endif

#if defined(LIE_SYNC_EARLY)
#define LIE_stream_synchronize
static int32_t stream_synchronize(int32_t device, bringup_stream stream) {
  (void)device, (void)stream;
  return BRINGUP_OK;
}

/* The simulator does short copies of an idle stream in the call: these come behind something. */
static void take_a_while(void* user) {
  (void)user;
  usleep(2000);
}
#define LIE_copy_async
static int32_t copy_async(bringup_copy_kind kind, int32_t to, void* dst, int32_t from,
                          const void* src, size_t bytes, bringup_stream stream) {
  sim.host_func(kind == BRINGUP_DEVICE_TO_HOST ? from : to, stream, take_a_while, NULL);
  return sim.copy_async(kind, to, dst, from, src, bytes, stream);
}
#endif

#if defined(LIE_INFO_FREE) || defined(LIE_INFO_TOTAL)
#define LIE_mem_info
static int32_t mem_info(int32_t device, size_t* free_bytes, size_t* total_bytes) {
  const int32_t status = sim.mem_info(device, free_bytes, total_bytes);
#if defined(LIE_INFO_FREE)
  *free_bytes = *total_bytes + 1;
#else
  *total_bytes += 1;
#endif
  return status;
}
#endif

#if defined(LIE_ELAPSED_NAN) || defined(LIE_ELAPSED_NEGATIVE) || defined(LIE_ELAPSED_UNIT)
#define LIE_event_elapsed
static int32_t event_elapsed(bringup_event start, bringup_event end, double* milliseconds) {
  const int32_t status = sim.event_elapsed(start, end, milliseconds);
#if defined(LIE_ELAPSED_NAN)
  *milliseconds = NAN;
#elif defined(LIE_ELAPSED_NEGATIVE)
  *milliseconds = -1 - *milliseconds;
#else
  *milliseconds *= 1e6; /* nanoseconds */
#endif
  return status;
}
#endif

#if defined(LIE_VIEW_NULL) || defined(LIE_VIEW_ELSEWHERE) || defined(LIE_VIEW_UNMAPPED)
#define LIE_host_view
static int32_t host_view(int32_t device, const void* address, void** host_address) {
  const int32_t status = sim.host_view(device, address, host_address);
#if defined(LIE_VIEW_NULL)
  *host_address = NULL;
#elif defined(LIE_VIEW_UNMAPPED)
  *host_address = (void*)4096;
#else
  *host_address = calloc(1, 1 << 20);
#endif
  return status;
}
#endif

#if defined(LIE_HOST_NULL)
#define LIE_host_alloc
static int32_t host_alloc(size_t bytes, void** address) {
  (void)bytes;
  return *address = NULL, BRINGUP_OK;
}
#endif

#if defined(LIE_GRAPH_NULL) || defined(LIE_GRAPH_TWICE)
#define LIE_graph_create
static int32_t graph_create(int32_t device, bringup_graph* graph) {
  const int32_t status = sim.graph_create(device, graph);
#if defined(LIE_GRAPH_NULL)
  *graph = NULL;
  return status;
#else
  return twice(status, (void**)graph);
#endif
}
#endif

#if defined(LIE_WORDS) /* text without an end, for what is too large */
#define LIE_mem_alloc
#define LIE_last_error
static int32_t mem_alloc(int32_t device, size_t bytes, void** address) {
  return bytes < 100 << 20 ? sim.mem_alloc(device, bytes, address) : BRINGUP_ERROR;
}
static const char* last_error(void) {
  static char words[8192];
  return memset(words, 'x', sizeof(words)), words;
}
#endif

#if defined(LIE_INIT)
#define LIE_init
static int32_t init(void) { return BRINGUP_DEVICE_LOST; }
#endif

#if defined(LIE_CONSTRUCTOR)
__attribute__((constructor)) static void ends_the_process(void) { abort(); }
#endif

#if defined(LIE_LEAK) /* found by `driver check` alone: nothing is freed */
#define LIE_mem_free
static int32_t mem_free(int32_t device, void* address) {
  (void)device, (void)address;
  return BRINGUP_OK;
}
#endif

const bringup_driver* bringup_driver_get(uint32_t abi_version) {
  void* library = dlopen(SIM, RTLD_NOW | RTLD_LOCAL);
  if (library == NULL) return NULL;
  bringup_driver_get_fn get = (bringup_driver_get_fn)dlsym(library, "bringup_driver_get");
  memcpy(&sim, get(abi_version), sizeof(sim));
  mine = sim;
#if defined(LIE_copy_async)
  mine.copy_async = copy_async;
#endif
#if defined(LIE_device_count)
  mine.device_count = device_count;
#endif
#if defined(LIE_device_props)
  mine.device_props = device_props;
#endif
#if defined(LIE_event_create)
  mine.event_create = event_create;
#endif
#if defined(LIE_event_elapsed)
  mine.event_elapsed = event_elapsed;
#endif
#if defined(LIE_event_query)
  mine.event_query = event_query;
#endif
#if defined(LIE_event_wait)
  mine.event_wait = event_wait;
#endif
#if defined(LIE_fill_async)
  mine.fill_async = fill_async;
#endif
#if defined(LIE_graph_create)
  mine.graph_create = graph_create;
#endif
#if defined(LIE_graph_update_values)
  mine.graph_update_values = graph_update_values;
#endif
#if defined(LIE_host_alloc)
  mine.host_alloc = host_alloc;
#endif
#if defined(LIE_host_view)
  mine.host_view = host_view;
#endif
#if defined(LIE_init)
  mine.init = init;
#endif
#if defined(LIE_ipc_open)
  mine.ipc_open = ipc_open;
#endif
#if defined(LIE_last_error)
  mine.last_error = last_error;
#endif
#if defined(LIE_launch_values)
  mine.launch_values = launch_values;
#endif
#if defined(LIE_mem_alloc)
  mine.mem_alloc = mem_alloc;
#endif
#if defined(LIE_mem_free)
  mine.mem_free = mem_free;
#endif
#if defined(LIE_mem_info)
  mine.mem_info = mem_info;
#endif
#if defined(LIE_stream_create)
  mine.stream_create = stream_create;
#endif
#if defined(LIE_stream_synchronize)
  mine.stream_synchronize = stream_synchronize;
#endif
#if defined(LIE_NAME)
  mine.device_name = "cuda1";
#elif defined(LIE_GROUP)
  mine.pointer_info = NULL; /* and its bit stays */
#elif defined(LIE_VALUES_NONE) /* no lie: it does not take plain values */
  mine.capabilities &= ~BRINGUP_HAS_LAUNCH_VALUES;
#elif defined(LIE_PAIR)
  mine.host_free = NULL;
#endif
  return &mine;
}
