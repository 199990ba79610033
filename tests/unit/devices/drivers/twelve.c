/* The smallest driver: the twelve required functions over ordinary memory, everything synchronous.
 * `bringup driver check` passes it. */
#include <malloc.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bringup/driver.h"

#define MEMORY ((size_t)64 << 20)
static _Atomic size_t used;
static pid_t owner; /* a child of fork() is not it */

/* clang-format off */
static int32_t ready(int32_t device) {
  return device != 0 ? BRINGUP_INVALID : getpid() != owner ? BRINGUP_ERROR : BRINGUP_OK;
}
static int32_t device_count(int32_t* count) { return *count = 1, BRINGUP_OK; }
static int32_t device_props(int32_t device, bringup_device_props* props) {
  const bringup_device_props all = {
      .struct_size = props->struct_size, .name = "Twelve", .arch = "none", .total_memory = MEMORY};
  return memcpy(props, &all, props->struct_size < sizeof(all) ? props->struct_size : sizeof(all)), ready(device);
}
static int32_t mem_alloc(int32_t device, size_t bytes, void** address) {
  if (ready(device)) return ready(device);
  if (bytes > MEMORY || (used += bytes) > MEMORY) return used -= bytes > MEMORY ? 0 : bytes, BRINGUP_OUT_OF_MEMORY;
  char* start = aligned_alloc(64, (bytes + 127) / 64 * 64); /* a line in front, for its size */
  return *(size_t*)start = bytes, *address = start + 64, BRINGUP_OK;
}
static int32_t mem_free(int32_t device, void* address) {
  return used -= *(size_t*)((char*)address - 64), free((char*)address - 64), ready(device);
}
static int32_t copy_async(bringup_copy_kind kind, int32_t to, void* dst, int32_t from, const void* src, size_t bytes,
                          bringup_stream stream) {
  if (kind < BRINGUP_HOST_TO_DEVICE || kind > BRINGUP_DEVICE_TO_DEVICE) return BRINGUP_INVALID;
  return ready(0) ? ready(0) : (memcpy(dst, src, bytes), BRINGUP_OK);
}
static int32_t stream_create(int32_t device, int32_t priority, bringup_stream* stream) {
  return ready(device) ? ready(device) : (*stream = malloc(1), BRINGUP_OK);
}
static int32_t stream_synchronize(int32_t device, bringup_stream stream) { return ready(device); }
static int32_t event_create(int32_t device, int32_t timing, bringup_event* event) {
  return ready(device) ? ready(device) : (*event = malloc(1), BRINGUP_OK);
}
static int32_t event_destroy(bringup_event event) { return free(event), BRINGUP_OK; }
static int32_t event_in_stream(bringup_event event, int32_t device, bringup_stream stream) { return ready(device); }
static int32_t event_query(bringup_event event) { return ready(0); }
static const bringup_driver driver = {sizeof(driver),
                                      BRINGUP_DRIVER_ABI,
                                      "twelve",
                                      "twelve functions",
                                      .device_count = device_count,
                                      .device_props = device_props,
                                      .mem_alloc = mem_alloc,
                                      .mem_free = mem_free,
                                      .copy_async = copy_async,
                                      .stream_create = stream_create,
                                      .stream_synchronize = stream_synchronize,
                                      .event_create = event_create,
                                      .event_destroy = event_destroy,
                                      .event_record = event_in_stream,
                                      .event_wait = event_in_stream,
                                      .event_query = event_query};
const bringup_driver* bringup_driver_get(uint32_t abi_version) {
  return owner = getpid(), abi_version == BRINGUP_DRIVER_ABI ? &driver : NULL;
}
