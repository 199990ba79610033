/* The smallest driver that works: the required functions only, on ordinary memory, everything
 * synchronous. Compiled with -DBROKEN_<what> it breaks its contract in one way, with -DNO_FLOAT64
 * the device lacks that dtype, with -DHOST_VISIBLE the host may reach its memory, with -DLIE_<what>
 * it answers what is not so, with -DTWELVE it has the required functions only, with -DLOSES_DEVICE
 * the device is lost until it is reset, which -DHAS_RESET makes possible, with -DDTYPES it has few,
 * with -DMEMORY=<MiB> that much memory, of which nothing is counted.
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bringup/driver.h"

#ifndef MEMORY
#define MEMORY 1
#endif

#ifdef BROKEN_COUNT
static int32_t device_count(int32_t* count) {
  *count = BROKEN_COUNT;
  return BRINGUP_OK;
}
#elif defined(BROKEN_START)
static int32_t device_count(int32_t* count) {
  (void)count;
  return BRINGUP_DEVICE_LOST;
}
#else
static int32_t device_count(int32_t* count) {
  *count = 1;
  return BRINGUP_OK;
}
#endif

static int32_t device_props(int32_t device, bringup_device_props* props) {
  bringup_device_props all;
  (void)device;
  memset(&all, 0, sizeof(all));
  all.struct_size = props->struct_size;
  strcpy(all.name, "Minimal");
  strcpy(all.arch, "none");
  all.total_memory = (size_t)MEMORY << 20;
  all.core_count = 1;
  all.supports_float64 = all.supports_int64 = 1;
#ifdef NO_FLOAT64
  all.supports_float64 = 0;
#endif
#ifdef HOST_VISIBLE
  all.host_visible_memory = 1;
#endif
#ifdef DTYPES
  all.dtypes =
      BRINGUP_DTYPE_BOOL | BRINGUP_DTYPE_INT32 | BRINGUP_DTYPE_INT64 | BRINGUP_DTYPE_FLOAT32;
#endif
#ifdef LIE_ALIGNMENT
  all.alignment = 100;
#endif
#ifdef LIE_VERSION
  memset(all.driver_version, 'x', sizeof(all.driver_version));
#endif
  memcpy(props, &all, props->struct_size < sizeof(all) ? props->struct_size : sizeof(all));
  return BRINGUP_OK;
}
static int32_t device_synchronize(int32_t device) {
  (void)device;
#ifdef BROKEN_END
  return BRINGUP_DEVICE_LOST;
#else
  return BRINGUP_OK;
#endif
}
static int32_t mem_alloc(int32_t device, size_t bytes, void** address) {
  (void)device;
  *address = aligned_alloc(64, (bytes + 63) / 64 * 64);
#ifdef LIE_NOTHING
  *address = NULL;
  return BRINGUP_OK;
#elif defined(LIE_ALIGNED)
  *address = (char*)*address + 8;
#elif defined(LIE_TWICE)
  static void* first = NULL;
  if (first == NULL) first = *address;
  *address = first;
#endif
  return *address != NULL ? BRINGUP_OK : BRINGUP_OUT_OF_MEMORY;
}
static int32_t mem_free(int32_t device, void* address) {
  (void)device;
  free(address);
  return BRINGUP_OK;
}
static int32_t mem_info(int32_t device, size_t* free_bytes, size_t* total) {
  (void)device;
  *free_bytes = *total = 1 << 20;
  return BRINGUP_OK;
}
#ifdef LOSES_DEVICE
static int lost = 1;
#endif
static int32_t copy_async(bringup_copy_kind kind, int32_t to, void* dst, int32_t from,
                          const void* src, size_t bytes, bringup_stream stream) {
  (void)kind;
  (void)to;
  (void)from;
  (void)stream;
#ifdef LIE_HANG
  sleep(2);
#endif
#ifdef LOSES_DEVICE
  if (lost) return BRINGUP_DEVICE_LOST;
#endif
  memmove(dst, src, bytes);
  if (kind == BRINGUP_DEVICE_TO_HOST) {
#ifdef LIE_BYTE
    ((unsigned char*)dst)[bytes - 1] ^= 1;
#elif defined(LIE_CRASH)
    abort();
#elif defined(LIE_FOREVER)
    for (;;) pause();
#endif
  }
#ifdef LIE_STATUS
  return 57;
#else
  return BRINGUP_OK;
#endif
}
static int32_t fill_async(int32_t device, void* dst, uint8_t value, size_t bytes,
                          bringup_stream stream) {
  (void)device;
  (void)stream;
  memset(dst, value, bytes);
  return BRINGUP_OK;
}
static int32_t stream_create(int32_t device, int32_t priority, bringup_stream* stream) {
  (void)device;
  (void)priority;
  *stream = malloc(1);
#ifdef LIE_STREAM
  *stream = NULL;
#endif
  return BRINGUP_OK;
}
static int32_t stream_destroy(bringup_stream stream) {
  free(stream);
  return BRINGUP_OK;
}
static int32_t stream_synchronize(int32_t device, bringup_stream stream) {
  (void)device;
  (void)stream;
  return BRINGUP_OK;
}
static int32_t stream_query(int32_t device, bringup_stream stream) {
  (void)device;
  (void)stream;
#if defined(LIE_PENDING) || defined(LIE_EVENT)
  return BRINGUP_NOT_READY;
#else
  return BRINGUP_OK;
#endif
}
static int32_t event_create(int32_t device, int32_t timing, bringup_event* event) {
  (void)device;
  (void)timing;
  *event = malloc(1);
  return BRINGUP_OK;
}
static int32_t event_destroy(bringup_event event) {
  free(event);
  return BRINGUP_OK;
}
static int32_t event_in_stream(bringup_event event, int32_t device, bringup_stream stream) {
  (void)event;
  (void)device;
  (void)stream;
  return BRINGUP_OK;
}
static int32_t event_ready(bringup_event event) {
  (void)event;
#ifdef LIE_EVENT
  return BRINGUP_NOT_READY;
#else
  return BRINGUP_OK;
#endif
}
static int32_t event_elapsed(bringup_event start, bringup_event end, double* milliseconds) {
  (void)start;
  (void)end;
  *milliseconds = 0;
  return BRINGUP_OK;
}
#ifdef HOST_VISIBLE
static int32_t host_view(int32_t device, const void* address, void** host_address) {
  (void)device;
  *host_address = (void*)address;
  return BRINGUP_OK;
}
#endif

#ifdef HAS_RESET
static int32_t device_reset(int32_t device) {
  (void)device;
  lost = 0;
  return BRINGUP_OK;
}
#endif

static const bringup_driver driver = {
#ifdef BROKEN_SIZE
    .struct_size = 24,
#elif defined(TWELVE)
    .struct_size = offsetof(bringup_driver, event_synchronize),
#elif defined(HAS_RESET)
    .struct_size = sizeof(bringup_driver),
    .capabilities = BRINGUP_HAS_RESET,
    .device_reset = device_reset,
#elif defined(LIE_GROUP)
    .struct_size = sizeof(bringup_driver),
    .capabilities = BRINGUP_HAS_RESET,
#elif defined(HOST_VISIBLE)
    .struct_size = sizeof(bringup_driver),
    .host_view = host_view,
#else
    /* As a driver that was written before the optional functions existed. */
    .struct_size = offsetof(bringup_driver, last_error),
#endif
#ifdef BROKEN_ABI
    .abi_version = 7,
#else
    .abi_version = BRINGUP_DRIVER_ABI,
#endif
    .device_name = "minimal",
    .description = "a driver for tests",
    .device_count = device_count,
    .device_props = device_props,
    .mem_alloc = mem_alloc,
    .mem_free = mem_free,
#ifndef BROKEN_FUNCTION
    .copy_async = copy_async,
#endif
    .stream_create = stream_create,
    .stream_synchronize = stream_synchronize,
    .event_create = event_create,
    .event_destroy = event_destroy,
    .event_record = event_in_stream,
    .event_wait = event_in_stream,
    .event_query = event_ready,
#ifndef TWELVE
    .device_synchronize = device_synchronize,
    .mem_info = mem_info,
    .fill_async = fill_async,
    .stream_destroy = stream_destroy,
    .stream_query = stream_query,
    .event_synchronize = event_ready,
    .event_elapsed = event_elapsed,
#endif
};

#ifndef BROKEN_SYMBOL
const bringup_driver* bringup_driver_get(uint32_t abi_version) {
#ifdef BROKEN_LANGUAGE
  (void)abi_version;
  return NULL;
#else
  return abi_version == BRINGUP_DRIVER_ABI ? &driver : NULL;
#endif
}
#else
const void* unused(void) { return &driver; }
#endif
