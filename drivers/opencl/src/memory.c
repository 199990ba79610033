/* Shared virtual memory, the driver's own table of it, copies and fills. */
#include <stdlib.h>
#include <string.h>

#include "opencl.h"

typedef struct allocation {
  const char* base;
  size_t bytes;
  int32_t device;
  cl_mem object; /* for libraries that take no addresses; NULL until it is asked for */
} allocation;

/* OpenCL promises more memory than there is, has no query for what is free, and cannot say whose
 * an address is: so the driver keeps its allocations, sorted by address. */
static struct {
  pthread_mutex_t lock;
  allocation* all;
  size_t count, room;
  uint64_t used[kMaxDevices];
} memory = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* The number of allocations that begin at `address` or in front of it. Under the lock. */
static size_t place_of(const void* address) {
  size_t first = 0;
  size_t last = memory.count;
  while (first < last) {
    const size_t middle = first + (last - first) / 2;
    if (memory.all[middle].base <= (const char*)address) {
      first = middle + 1;
    } else {
      last = middle;
    }
  }
  return first;
}

/* The allocation that an address is in, or NULL. Under the lock. */
static allocation* containing(const void* address) {
  const size_t place = place_of(address);
  allocation* in_front = place > 0 ? &memory.all[place - 1] : NULL;
  if (in_front == NULL) return NULL;
  return (size_t)((const char*)address - in_front->base) < in_front->bytes ? in_front : NULL;
}

/* Under the lock. */
static void* take(int32_t device, size_t bytes) {
  if (memory.count == memory.room) {
    const size_t room = memory.room * 2 + 256;
    allocation* larger = realloc(memory.all, room * sizeof *larger);
    if (larger == NULL) return NULL;
    memory.all = larger;
    memory.room = room;
  }
  const cl_svm_mem_flags kind = opencl.fine ? CL_MEM_SVM_FINE_GRAIN_BUFFER : 0;
  void* address = clSVMAlloc(opencl.context, CL_MEM_READ_WRITE | kind, bytes, 0);
  if (address == NULL) return NULL;
  allocation* place = &memory.all[place_of(address)];
  memmove(place + 1, place, (size_t)(memory.all + memory.count - place) * sizeof *place);
  *place = (allocation){address, bytes, device, NULL};
  memory.count++;
  memory.used[device] += bytes;
  return address;
}

int32_t mem_alloc(int32_t device, size_t bytes, void** address) {
  TRY(enter(device));
  NEED(bytes > 0, "mem_alloc of 0 bytes");
  const ocl_device* of = &opencl.devices[device];
  const uint64_t total = of->props.total_memory;
  if (bytes > of->props.max_allocation) {
    return fail(BRINGUP_OUT_OF_MEMORY,
                "%zu bytes are more than one allocation of this device may have (%llu)", bytes,
                (unsigned long long)of->props.max_allocation);
  }
  pthread_mutex_lock(&memory.lock);
  const uint64_t left = total - memory.used[device];
  void* found = bytes <= left ? take(device, bytes) : NULL;
  pthread_mutex_unlock(&memory.lock);
  if (found == NULL) {
    return fail(BRINGUP_OUT_OF_MEMORY, "%zu bytes were asked for, %llu of %llu are free", bytes,
                (unsigned long long)left, (unsigned long long)total);
  }
  *address = found;
  return BRINGUP_OK;
}

int32_t mem_free(int32_t device, void* address) {
  TRY(enter(device));
  pthread_mutex_lock(&memory.lock);
  const size_t place = place_of(address);
  allocation* found = place > 0 ? &memory.all[place - 1] : NULL;
  const int known = found != NULL && found->base == address && found->device == device;
  cl_mem object = NULL;
  if (known) {
    object = found->object;
    memory.used[device] -= found->bytes;
    memmove(found, found + 1, (memory.count - place) * sizeof *found);
    memory.count--;
    opencl.freed++;
  }
  pthread_mutex_unlock(&memory.lock);
  NEED(known, "%p is no allocation of device %d", address, device);
  if (object != NULL) clReleaseMemObject(object);
  clSVMFree(opencl.context, address);
  return BRINGUP_OK;
}

/* Under the lock. */
static int32_t make_object(allocation* of) {
  cl_int code = CL_SUCCESS;
  if (of->object != NULL) return BRINGUP_OK;
  of->object = clCreateBuffer(opencl.context, CL_MEM_READ_WRITE | CL_MEM_USE_HOST_PTR, of->bytes,
                              (void*)of->base, &code);
  return code == CL_SUCCESS ? BRINGUP_OK : fail_cl("clCreateBuffer", code);
}

int32_t memory_object(const void* address, void** object) {
  pthread_mutex_lock(&memory.lock);
  allocation* found = containing(address);
  const int32_t status = found == NULL
                             ? fail(BRINGUP_UNSUPPORTED, "%p is in no allocation", address)
                             : make_object(found);
  if (status == BRINGUP_OK) *object = found->object;
  pthread_mutex_unlock(&memory.lock);
  return status;
}

int32_t mem_info(int32_t device, size_t* free_bytes, size_t* total_bytes) {
  TRY(enter(device));
  pthread_mutex_lock(&memory.lock);
  *total_bytes = opencl.devices[device].props.total_memory;
  *free_bytes = *total_bytes - memory.used[device];
  pthread_mutex_unlock(&memory.lock);
  return BRINGUP_OK;
}

int32_t pointer_info(const void* address, bringup_pointer_info* info) {
  TRY(usable());
  bringup_pointer_info found = {.struct_size = info->struct_size, .device = -1};
  pthread_mutex_lock(&memory.lock);
  const allocation* in = containing(address);
  if (in != NULL) {
    found.kind = BRINGUP_POINTER_DEVICE;
    found.device = in->device;
    found.base = (void*)in->base;
    found.bytes = in->bytes;
  }
  pthread_mutex_unlock(&memory.lock);
  give(info, &found, sizeof found);
  return BRINGUP_OK;
}

int32_t host_view(int32_t device, const void* address, void** host_address) {
  TRY(enter(device));
  if (!opencl.fine) {
    return fail(BRINGUP_UNSUPPORTED, "the host cannot read coarse-grained memory");
  }
  *host_address = (void*)address;
  return BRINGUP_OK;
}

int32_t enqueue_copy(bringup_stream stream, void* dst, const void* src, size_t bytes,
                     cl_event* event) {
  if (bytes == 0) return event != NULL ? enqueue_marker(stream, event) : BRINGUP_OK;
  TRY_CL(clEnqueueSVMMemcpy, stream->queue, CL_FALSE, dst, src, bytes, 0, NULL, event);
  return BRINGUP_OK;
}

int32_t copy_async(bringup_copy_kind kind, int32_t dst_device, void* dst, int32_t src_device,
                   const void* src, size_t bytes, bringup_stream stream) {
  TRY(check_copy(kind, dst, src, bytes));
  if (kind == BRINGUP_DEVICE_TO_DEVICE) TRY(enter(dst_device));
  TRY(stream_of(kind == BRINGUP_HOST_TO_DEVICE ? dst_device : src_device, &stream));
  cl_event event = NULL;
  TRY(enqueue_copy(stream, dst, src, bytes, recorded_event(stream, &event)));
  return finish_work(stream, BRINGUP_RECORD_COPY, event, event, bytes, "");
}

int32_t fill_wide_async(int32_t device, void* dst, const void* pattern, uint32_t size, size_t count,
                        bringup_stream stream) {
  TRY(stream_of(device, &stream));
  TRY(check_fill(dst, size, count));
  cl_event event = NULL;
  cl_event* wanted = recorded_event(stream, &event);
  if (count == 0) {
    if (wanted != NULL) TRY(enqueue_marker(stream, wanted));
  } else {
    TRY_CL(clEnqueueSVMMemFill, stream->queue, dst, pattern, size, size * count, 0, NULL, wanted);
  }
  return finish_work(stream, BRINGUP_RECORD_FILL, event, event, size * count, "");
}
