/* A device of ordinary memory that does all work before a call returns: the
 * functions that every driver of ABI 1.4 has, or had to have once. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "bringup/driver.h"

/* What a stream is given while it is captured is kept here. */
struct bringup_stream_s {
  bringup_graph captured;
  int broken;
};

#define BOARD_MEMORY ((uint64_t)1 << 28)

static int32_t device_count(int32_t* count) {
  *count = 1;
  return BRINGUP_OK;
}
static int32_t device_props(int32_t device, bringup_device_props* props) {
  bringup_device_props all;
  const uint32_t known = props->struct_size;
  (void)device;
  memset(&all, 0, sizeof(all));
  strcpy(all.name, "Board of 1.4");
  strcpy(all.arch, "board-1");
  all.total_memory = BOARD_MEMORY;
  all.core_count = 1;
  all.supports_float64 = all.supports_int64 = 1;
  all.max_allocation = BOARD_MEMORY;
#ifdef BOARD_HOST_VISIBLE
  all.host_visible_memory = all.runs_host_code = 1;
#endif
  memcpy(props, &all, known < sizeof(all) ? known : sizeof(all));
  props->struct_size = known;
  return BRINGUP_OK;
}
static int32_t device_synchronize(int32_t device) {
  (void)device;
  return BRINGUP_OK;
}
static int32_t mem_alloc(int32_t device, size_t bytes, void** address) {
  (void)device;
  *address = aligned_alloc(64, (bytes + 63) / 64 * 64);
  return *address != NULL ? BRINGUP_OK : BRINGUP_OUT_OF_MEMORY;
}
static int32_t mem_free(int32_t device, void* address) {
  (void)device;
  free(address);
  return BRINGUP_OK;
}
static int32_t mem_info(int32_t device, size_t* free_bytes, size_t* total) {
  (void)device;
  *free_bytes = *total = BOARD_MEMORY;
  return BRINGUP_OK;
}
static int32_t copy_async(bringup_copy_kind kind, int32_t to, void* dst, int32_t from,
                          const void* src, size_t bytes, bringup_stream stream) {
  (void)kind, (void)to, (void)from, (void)stream;
  memcpy(dst, src, bytes);
  return BRINGUP_OK;
}
static int32_t fill_async(int32_t device, void* dst, uint8_t value, size_t bytes,
                          bringup_stream stream) {
  (void)device, (void)stream;
  memset(dst, value, bytes);
  return BRINGUP_OK;
}
static int32_t stream_create(int32_t device, int32_t priority, bringup_stream* stream) {
  (void)device, (void)priority;
  *stream = calloc(1, sizeof(struct bringup_stream_s));
  return *stream != NULL ? BRINGUP_OK : BRINGUP_OUT_OF_MEMORY;
}
static int32_t stream_destroy(bringup_stream stream) {
  free(stream);
  return BRINGUP_OK;
}
static int32_t stream_done(int32_t device, bringup_stream stream) {
  (void)device, (void)stream;
  return BRINGUP_OK;
}
static int32_t event_create(int32_t device, int32_t timing, bringup_event* event) {
  (void)device, (void)timing;
  *event = malloc(1);
  return *event != NULL ? BRINGUP_OK : BRINGUP_OUT_OF_MEMORY;
}
static int32_t event_destroy(bringup_event event) {
  free(event);
  return BRINGUP_OK;
}
static int32_t event_in_stream(bringup_event event, int32_t device, bringup_stream stream) {
  (void)event, (void)device, (void)stream;
  return BRINGUP_OK;
}
static int32_t event_done(bringup_event event) {
  (void)event;
  return BRINGUP_OK;
}
static int32_t event_elapsed(bringup_event start, bringup_event end, double* milliseconds) {
  (void)start, (void)end;
  *milliseconds = 0;
  return BRINGUP_OK;
}

/* clang-format off */
#define BOARD_REQUIRED                                                                     \
  .abi_version = BRINGUP_DRIVER_ABI, .device_name = "board",                               \
  .device_count = device_count, .device_props = device_props,                              \
  .device_synchronize = device_synchronize, .mem_alloc = mem_alloc, .mem_free = mem_free,  \
  .mem_info = mem_info, .stream_create = stream_create,                                    \
  .stream_destroy = stream_destroy, .event_create = event_create,                          \
  .event_destroy = event_destroy, .event_record = event_in_stream,                         \
  .event_wait = event_in_stream, .event_query = event_done,                                \
  .event_synchronize = event_done, .event_elapsed = event_elapsed
/* clang-format on */
