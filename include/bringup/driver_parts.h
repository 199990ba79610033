/* bringup driver parts 1: what a driver in C does whatever its devices are: the words of a failure,
 * structures that begin with their size, processes that cannot use it, arguments that no driver
 * takes. Its names are short: they are the driver's own, whose library shows bringup_driver_get
 * alone (-fvisibility=hidden).
 *
 * The driver's header includes this behind
 *
 *     #define DRIVER_API "OpenCL"   what a failure calls the vendor's library
 *     #define DRIVER opencl         its devices: `count`, and `devices` with `props` and
 *                                   `default_stream`; streams begin with their `device`
 *
 * and one of its files once more at its end, where `driver` is the table, with DRIVER_PARTS
 * defined. Every function returns a bringup_status and leaves words for last_error() where it
 * fails, unless its comment says otherwise. */
#ifndef BRINGUP_DRIVER_PARTS_H_
#define BRINGUP_DRIVER_PARTS_H_

#include <bringup/driver.h>
#include <pthread.h>

enum { kMaxDevices = 64 };

/* Functions of the table, with the types that it gives them, and their places in it. */
#define OF_TABLE(name) __typeof__(*((bringup_driver*)0)->name) name
#define HAS(function) .function = function

#define NEED(condition, ...) \
  if (!(condition)) return fail(BRINGUP_INVALID, __VA_ARGS__)
#define TRY(call)                              \
  do {                                         \
    const int32_t status_ = (call);            \
    if (status_ != BRINGUP_OK) return status_; \
  } while (0)

/* --- what the driver has: makes the device the thread's, where that is to be done. */
int32_t enter(int32_t device);
int32_t open_stream(bringup_stream stream, int32_t device, int32_t priority);

/* --- what it gets */
__attribute__((format(printf, 2, 3))) int32_t fail(int32_t status, const char* format, ...);
/* For error_detail: of the failure that was just told. Return `status`. */
int32_t coded(int32_t status, int64_t code, const char* name);
int32_t about(int32_t status, int32_t device, bringup_stream stream, const char* kernel);
/* Copies min(struct_size, size) bytes of `from`, a structure that begins with its size. */
void give(void* to, const void* from, size_t size);

/* BRINGUP_OK, or why the process cannot use the driver. */
int32_t usable(void);
int32_t check_device(int32_t device);
int32_t check_priority(int32_t device, int32_t priority);
int32_t check_copy(bringup_copy_kind kind, const void* dst, const void* src, size_t bytes);
int32_t check_fill(const void* dst, uint32_t size, size_t count);
/* The blocks of a launch and their clusters, by the device's limits and the kernel's. */
int32_t check_blocks(int32_t device, const bringup_launch_values_args* launch, const char* kernel,
                     uint64_t max_threads, uint64_t declared_shared_bytes);
/* Enters the device. The stream itself for NULL and others; refused where it is of another. */
int32_t stream_of(int32_t device, bringup_stream* stream);
const char* name_of(const bringup_launch_values_args* launch); /* no status */
/* With 0 for what lies behind its struct_size; no status. */
bringup_launch_values_args whole(const bringup_launch_values_args* launch);

/* clang-format off */
OF_TABLE(shutdown); OF_TABLE(device_count); OF_TABLE(device_props); OF_TABLE(last_error);
OF_TABLE(error_detail);
/* By stream_of and open_stream, fill_wide_async, module_load_data. */
OF_TABLE(stream_create); OF_TABLE(fill_async); OF_TABLE(module_load);
OF_TABLE(fill_wide_async); OF_TABLE(module_load_data);
/* clang-format on */

#endif /* BRINGUP_DRIVER_PARTS_H_ */

#ifdef DRIVER_PARTS
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static _Atomic int forked, ended;
static _Thread_local char words[4000];
static _Thread_local bringup_error_detail detail;

int32_t fail(int32_t status, const char* format, ...) {
  va_list values;
  va_start(values, format);
  vsnprintf(words, sizeof words, format, values);
  va_end(values);
  detail = (bringup_error_detail){.device = -1};
  return status;
}

int32_t coded(int32_t status, int64_t code, const char* name) {
  detail.code = code;
  snprintf(detail.text, sizeof detail.text, "%s", name);
  return status;
}

int32_t about(int32_t status, int32_t device, bringup_stream stream, const char* kernel) {
  detail.device = device;
  detail.stream = stream;
  snprintf(detail.kernel, sizeof detail.kernel, "%s", kernel);
  return status;
}

const char* last_error(void) { return words; }

int32_t error_detail(bringup_error_detail* told) {
  bringup_error_detail mine = detail;
  mine.struct_size = told->struct_size;
  give(told, &mine, sizeof mine);
  return BRINGUP_OK;
}

void give(void* to, const void* from, size_t size) {
  const uint32_t room = *(const uint32_t*)to;
  memcpy(to, from, room < size ? room : size);
}

/* --- neither a child of fork() nor a process that ends can use the vendor's library */

static void after_fork(void) { forked = 1; }
static void at_exit(void) { ended = 1; }
static void watch_process(void) {
  pthread_atfork(NULL, NULL, after_fork);
  atexit(at_exit);
}

int32_t usable(void) {
  if (forked) return fail(BRINGUP_ERROR, "a child of fork() cannot use " DRIVER_API ": spawn it");
  if (ended) return fail(BRINGUP_ERROR, "the process is ending, and " DRIVER_API " with it");
  return BRINGUP_OK;
}

/* Its own objects end with the process: releasing them would race with work that was left. */
int32_t shutdown(void) {
  ended = 1;
  return BRINGUP_OK;
}

__attribute__((visibility("default"))) const bringup_driver* bringup_driver_get(uint32_t version) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, watch_process);
  return version == BRINGUP_DRIVER_ABI ? &driver : NULL;
}

/* --- devices and streams */

int32_t check_device(int32_t device) {
  TRY(usable());
  NEED(device >= 0 && device < DRIVER.count, "there is no device %d: expected 0 to %d", device,
       DRIVER.count - 1);
  return BRINGUP_OK;
}

int32_t device_count(int32_t* count) {
  *count = DRIVER.count;
  return BRINGUP_OK;
}

int32_t device_props(int32_t device, bringup_device_props* props) {
  TRY(check_device(device));
  bringup_device_props mine = DRIVER.devices[device].props;
  mine.struct_size = props->struct_size;
  give(props, &mine, sizeof mine);
  return BRINGUP_OK;
}

int32_t check_priority(int32_t device, int32_t priority) {
  const bringup_device_props* props = &DRIVER.devices[device].props;
  NEED(priority >= props->greatest_priority && priority <= props->least_priority,
       "there is no stream priority %d: the device has those from %d to %d", priority,
       props->greatest_priority, props->least_priority);
  return BRINGUP_OK;
}

int32_t stream_of(int32_t device, bringup_stream* stream) {
  TRY(enter(device));
  if (*stream == NULL) *stream = &DRIVER.devices[device].default_stream;
  NEED((*stream)->device == device, "the stream %p is of device %d, not of device %d",
       (void*)*stream, (*stream)->device, device);
  return BRINGUP_OK;
}

int32_t stream_create(int32_t device, int32_t priority, bringup_stream* stream) {
  TRY(enter(device));
  bringup_stream made = calloc(1, sizeof *made);
  if (made == NULL) return fail(BRINGUP_OUT_OF_MEMORY, "no host memory for a stream");
  const int32_t status = open_stream(made, device, priority);
  if (status == BRINGUP_OK) {
    *stream = made;
  } else {
    free(made);
  }
  return status;
}

/* --- copies and fills */

int32_t check_copy(bringup_copy_kind kind, const void* dst, const void* src, size_t bytes) {
  NEED(kind >= BRINGUP_HOST_TO_DEVICE && kind <= BRINGUP_DEVICE_TO_DEVICE,
       "there is no copy kind %d", (int)kind);
  NEED((dst != NULL && src != NULL) || bytes == 0, "copy of %zu bytes from %p to %p", bytes, src,
       dst);
  return BRINGUP_OK;
}

int32_t check_fill(const void* dst, uint32_t size, size_t count) {
  NEED(size >= 1 && size <= 16 && (size & (size - 1)) == 0,
       "a fill's pattern has 1, 2, 4, 8 or 16 bytes, not %u", size);
  NEED((dst != NULL && (uintptr_t)dst % size == 0) || count == 0,
       "a fill with %u bytes at %p, which is not aligned to them", size, dst);
  return BRINGUP_OK;
}

int32_t fill_async(int32_t device, void* dst, uint8_t value, size_t bytes, bringup_stream stream) {
  return fill_wide_async(device, dst, &value, 1, bytes, stream);
}

/* --- kernels */

/* The file's content, to be freed; NULL with errno. */
static char* content_of(const char* path, size_t* bytes) {
  FILE* file = fopen(path, "rb");
  if (file == NULL) return NULL;
  char* data = NULL;
  long end = -1;
  if (fseek(file, 0, SEEK_END) == 0) end = ftell(file);
  if (end >= 0) data = malloc((size_t)end + 1);
  if (data != NULL) {
    rewind(file);
    *bytes = fread(data, 1, (size_t)end, file);
  }
  fclose(file);
  return data;
}

int32_t module_load(int32_t device, const char* library, void** loaded) {
  TRY(check_device(device));
  size_t bytes = 0;
  char* data = content_of(library, &bytes);
  NEED(data != NULL, "%s cannot be read: %s", library, strerror(errno));
  const int32_t status = module_load_data(device, data, bytes, loaded);
  free(data);
  return status;
}

const char* name_of(const bringup_launch_values_args* launch) {
  return launch->name != NULL ? launch->name : "a launch";
}

bringup_launch_values_args whole(const bringup_launch_values_args* launch) {
  bringup_launch_values_args all = {.struct_size = sizeof all};
  give(&all, launch, launch->struct_size);
  all.struct_size = sizeof all;
  return all;
}

static int32_t check_cluster(const bringup_device_props* props,
                             const bringup_launch_values_args* launch) {
  const bringup_launch_values_args all = whole(launch);
  const bringup_dim3 size = all.cluster, grid = all.grid;
  const uint64_t most = props->max_cluster;
  if ((all.flags & ~props->values_flags) != 0 || (size.x != 0 && most == 0)) {
    return fail(BRINGUP_UNSUPPORTED, "%s: %s, which this device has not", name_of(launch),
                size.x != 0 && most == 0 ? "a launch in clusters"
                                         : "a cooperative launch, or one in a native queue");
  }
  if (size.x == 0) return BRINGUP_OK;
  NEED(size.y != 0 && size.z != 0 && size.x <= most && size.y <= most && size.z <= most &&
           (uint64_t)size.x * size.y * size.z <= most && grid.x % size.x == 0 &&
           grid.y % size.y == 0 && grid.z % size.z == 0,
       "%s: clusters of %u x %u x %u blocks in a grid of %u x %u x %u: expected %llu blocks at "
       "most, and a grid of whole clusters",
       name_of(launch), size.x, size.y, size.z, grid.x, grid.y, grid.z, (unsigned long long)most);
  return BRINGUP_OK;
}

int32_t check_blocks(int32_t device, const bringup_launch_values_args* launch, const char* kernel,
                     uint64_t max_threads, uint64_t declared_shared_bytes) {
  const bringup_device_props* props = &DRIVER.devices[device].props;
  const uint32_t grid[] = {launch->grid.x, launch->grid.y, launch->grid.z};
  const uint32_t block[] = {launch->block.x, launch->block.y, launch->block.z};
  uint64_t threads = 1;
  for (int i = 0; i < 3; ++i) {
    const uint32_t most = props->max_grid[i] != 0 ? props->max_grid[i] : UINT32_MAX;
    NEED(grid[i] >= 1 && block[i] >= 1 && grid[i] <= most && block[i] <= props->max_block[i],
         "%s: %u blocks of %u threads in dimension %d: expected at least 1, and at most %u blocks "
         "of %u",
         name_of(launch), grid[i], block[i], i, most, props->max_block[i]);
    threads *= block[i];
    NEED(threads <= max_threads,
         "%s: a block of %u x %u x %u threads: kernel '%s' can have %llu at most", name_of(launch),
         block[0], block[1], block[2], kernel, (unsigned long long)max_threads);
  }
  NEED(launch->shared_bytes + declared_shared_bytes <= props->max_shared_bytes,
       "%s: %u bytes of shared memory, and the %llu that kernel '%s' declares: a block of this "
       "device has %u",
       name_of(launch), launch->shared_bytes, (unsigned long long)declared_shared_bytes, kernel,
       props->max_shared_bytes);
  return check_cluster(props, launch);
}
#endif /* DRIVER_PARTS */
