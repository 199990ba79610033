/* Device memory, pinned host memory, copies, fills, memory of other processes. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "nv.h"

int32_t mem_alloc(int32_t device, size_t bytes, void** address) {
  TRY(enter(device));
  NEED(bytes > 0, "mem_alloc of 0 bytes");
  CUdeviceptr made = 0;
  TRY(CUDA(cuMemAlloc, &made, bytes));
  *address = (void*)(uintptr_t)made;
  return BRINGUP_OK;
}

int32_t mem_free(int32_t device, void* address) {
  return CUDA_ON(device, cuMemFree, number_of(address));
}

int32_t mem_info(int32_t device, size_t* free_bytes, size_t* total_bytes) {
  return CUDA_ON(device, cuMemGetInfo, free_bytes, total_bytes);
}

/* --- the host's memory: portable, so that any device's context will do */

int32_t host_alloc(size_t bytes, void** address) {
  return CUDA_ON(0, cuMemHostAlloc, address, bytes, CU_MEMHOSTALLOC_PORTABLE);
}

int32_t host_free(void* address) { return CUDA_ON(0, cuMemFreeHost, address); }

int32_t host_register(void* address, size_t bytes) {
  return CUDA_ON(0, cuMemHostRegister, address, bytes, CU_MEMHOSTREGISTER_PORTABLE);
}

int32_t host_unregister(void* address) { return CUDA_ON(0, cuMemHostUnregister, address); }

/* What CUDA knows of an address; type 0: nothing. */
typedef struct known {
  unsigned type;
  int device;
  CUdeviceptr base;
  size_t bytes;
} known;

static int32_t ask(const void* address, known* of) {
  int which[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
                 CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, CU_POINTER_ATTRIBUTE_RANGE_SIZE};
  void* values[] = {&of->type, &of->device, &of->base, &of->bytes};
  *of = (known){.device = -1};
  return CUDA(cuPointerGetAttributes, 4, which, values, number_of(address));
}

int32_t pointer_info(const void* address, bringup_pointer_info* info) {
  TRY(usable());
  known of;
  TRY(ask(address, &of));
  bringup_pointer_info found = {.struct_size = info->struct_size, .device = -1};
  if (of.type == CU_MEMORYTYPE_DEVICE) {
    found.kind = BRINGUP_POINTER_DEVICE;
    found.device = of.device;
  } else if (of.type == CU_MEMORYTYPE_HOST) {
    found.kind = BRINGUP_POINTER_HOST;
  }
  if (found.kind != BRINGUP_POINTER_UNKNOWN && of.base != 0) {
    found.base = (void*)(uintptr_t)of.base;
    found.bytes = of.bytes;
  }
  give(info, &found, sizeof found);
  return BRINGUP_OK;
}

/* --- small copies of memory that is not pinned. CUDA may wait for the stream in such a copy, and
 * the host may have to let that stream go on: what is not over at once goes through blocks of
 * pinned memory. Large ones are CUDA's, which is faster than a copy on the host. No host function
 * of CUDA ends them: one that waits would hold those of all streams. */

enum { kStagedBytes = 64 << 10, kTries = 200 };

typedef struct block {
  struct block* next;
  void* host; /* where the content goes; NULL: to the device */
  size_t bytes;
  uint32_t uses;           /* counts up, so that no stream waits for a former use */
  _Atomic uint32_t copied; /* the stream has, `uses` times */
  _Atomic uint32_t ended;  /* the content is where it goes: the stream waits for it */
  unsigned char content[kStagedBytes];
} block;

static struct {
  pthread_mutex_t lock;
  pthread_cond_t given;
  int has_thread;
  block *idle, *to_host; /* idle ones: perhaps still read by their stream */
} staging = {.lock = PTHREAD_MUTEX_INITIALIZER, .given = PTHREAD_COND_INITIALIZER};

/* Takes the first of a list whose copy is over; NULL: none. Under the lock. */
static block* take_copied(block** list) {
  for (block** at = list; *at != NULL; at = &(*at)->next) {
    block* found = *at;
    if (found->copied != found->uses) continue;
    *at = found->next;
    return found;
  }
  return NULL;
}

/* Under the lock. */
static void put(block** list, block* of) {
  of->next = *list;
  *list = of;
}

static void* end_copies(void* unused) {
  const struct timespec pause = {.tv_nsec = 20000};
  pthread_mutex_lock(&staging.lock);
  for (;;) {
    while (staging.to_host == NULL) pthread_cond_wait(&staging.given, &staging.lock);
    block* done = take_copied(&staging.to_host);
    if (done != NULL) {
      memcpy(done->host, done->content, done->bytes);
      done->ended = done->uses;
      put(&staging.idle, done);
      continue;
    }
    pthread_mutex_unlock(&staging.lock);
    nanosleep(&pause, NULL);
    pthread_mutex_lock(&staging.lock);
  }
  return unused;
}

static int32_t take_block(block** taken) {
  pthread_t thread;
  pthread_mutex_lock(&staging.lock);
  if (!staging.has_thread) {
    staging.has_thread = pthread_create(&thread, NULL, end_copies, NULL) == 0;
  }
  *taken = staging.has_thread ? take_copied(&staging.idle) : NULL;
  pthread_mutex_unlock(&staging.lock);
  if (!staging.has_thread) return fail(BRINGUP_ERROR, "no thread for copies");
  if (*taken != NULL) return BRINGUP_OK;
  TRY(CUDA(cuMemHostAlloc, (void**)taken, sizeof **taken, CU_MEMHOSTALLOC_PORTABLE));
  memset(*taken, 0, offsetof(block, content));
  return BRINGUP_OK;
}

/* A block whose copy was refused is lost: CUDA is at its end then. */
static int32_t copy_staged(int to_host, void* dst, const void* src, size_t bytes,
                           bringup_stream stream) {
  block* taken = NULL;
  TRY(take_block(&taken));
  taken->host = to_host ? dst : NULL;
  taken->bytes = bytes;
  taken->uses++;
  if (!to_host) memcpy(taken->content, src, bytes);
  const CUdeviceptr content = number_of(taken->content);
  TRY(CUDA(cuMemcpyAsync, to_host ? content : number_of(dst), to_host ? number_of(src) : content,
           bytes, stream->queue));
  TRY(CUDA(cuStreamWriteValue32, stream->queue, number_of((void*)&taken->copied), taken->uses, 0));
  if (to_host) {
    TRY(CUDA(cuStreamWaitValue32, stream->queue, number_of((void*)&taken->ended), taken->uses, 0));
  }
  pthread_mutex_lock(&staging.lock);
  put(to_host ? &staging.to_host : &staging.idle, taken);
  pthread_cond_signal(&staging.given);
  pthread_mutex_unlock(&staging.lock);
  return BRINGUP_OK;
}

/* Whether CUDA might wait in a copy. Most streams are at their end soon, and then it does not. What
 * a captured copy touches is the caller's to keep. */
static int32_t needs_staging(const void* host, size_t bytes, bringup_stream stream, int* answer) {
  known of = {.type = CU_MEMORYTYPE_HOST};
  CUresult code = CUDA_ERROR_NOT_READY;
  if (bytes <= kStagedBytes && stream->capture == BRINGUP_CAPTURE_NONE) TRY(ask(host, &of));
  for (int i = 0; of.type == 0 && i < kTries && code == CUDA_ERROR_NOT_READY; ++i) {
    code = nv.api.cuStreamQuery(stream->queue);
  }
  *answer = of.type == 0 && code == CUDA_ERROR_NOT_READY;
  return BRINGUP_OK;
}

/* --- copies and fills */

int32_t copy_async(bringup_copy_kind kind, int32_t dst_device, void* dst, int32_t src_device,
                   const void* src, size_t bytes, bringup_stream stream) {
  TRY(check_copy(kind, dst, src, bytes));
  const int between = kind == BRINGUP_DEVICE_TO_DEVICE && dst_device != src_device;
  if (between) TRY(enter(dst_device)); /* so that it has a context */
  TRY(stream_of(kind == BRINGUP_HOST_TO_DEVICE ? dst_device : src_device, &stream));
  if (bytes == 0) return BRINGUP_OK;
  if (between) {
    return CUDA(cuMemcpyPeerAsync, number_of(dst), nv.devices[dst_device].context, number_of(src),
                nv.devices[src_device].context, bytes, stream->queue);
  }
  int staged = 0;
  const int to_host = kind == BRINGUP_DEVICE_TO_HOST;
  if (kind != BRINGUP_DEVICE_TO_DEVICE) {
    TRY(needs_staging(to_host ? dst : src, bytes, stream, &staged));
  }
  if (staged) return copy_staged(to_host, dst, src, bytes, stream);
  return CUDA(cuMemcpyAsync, number_of(dst), number_of(src), bytes, stream->queue);
}

int32_t copy_2d_async(bringup_copy_kind kind, int32_t dst_device, void* dst, size_t dst_pitch,
                      int32_t src_device, const void* src, size_t src_pitch, size_t width,
                      size_t height, bringup_stream stream) {
  TRY(check_copy(kind, dst, src, width * height));
  NEED(dst_pitch >= width && src_pitch >= width,
       "rows of %zu bytes that begin %zu and %zu bytes apart", width, dst_pitch, src_pitch);
  TRY(stream_of(kind == BRINGUP_HOST_TO_DEVICE ? dst_device : src_device, &stream));
  if (width == 0 || height == 0) return BRINGUP_OK;
  const CUDA_MEMCPY2D rows = {
      .srcMemoryType = kind == BRINGUP_HOST_TO_DEVICE ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_UNIFIED,
      .srcHost = src,
      .srcDevice = number_of(src),
      .srcPitch = src_pitch,
      .dstMemoryType = kind == BRINGUP_DEVICE_TO_HOST ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_UNIFIED,
      .dstHost = dst,
      .dstDevice = number_of(dst),
      .dstPitch = dst_pitch,
      .WidthInBytes = width,
      .Height = height,
  };
  return CUDA(cuMemcpy2DAsync, &rows, stream->queue);
}

int32_t fill_wide_async(int32_t device, void* dst, const void* pattern, uint32_t size, size_t count,
                        bringup_stream stream) {
  TRY(stream_of(device, &stream));
  TRY(check_fill(dst, size, count));
  if (count == 0) return BRINGUP_OK;
  const CUdeviceptr to = number_of(dst);
  if (size == 1) {
    return CUDA(cuMemsetD8Async, to, *(const uint8_t*)pattern, count, stream->queue);
  }
  if (size == 2) {
    uint16_t value;
    memcpy(&value, pattern, sizeof value);
    return CUDA(cuMemsetD16Async, to, value, count, stream->queue);
  }
  uint32_t words[4];
  memcpy(words, pattern, size);
  const uint32_t parts = size / 4;
  uint32_t same = 1;
  while (same < parts && words[same] == words[0]) ++same;
  if (same == parts) {
    return CUDA(cuMemsetD32Async, to, words[0], count * parts, stream->queue);
  }
  /* CUDA fills with 4 bytes at most: one column of a matrix for each of the words. */
  for (uint32_t i = 0; i < parts; ++i) {
    TRY(CUDA(cuMemsetD2D32Async, to + 4 * i, size, words[i], 1, count, stream->queue));
  }
  return BRINGUP_OK;
}

/* --- memory of other processes: CUDA's handle behind a mark, since CUDA takes any bytes for one */

static const char kMark[8] = "bringcu";

int32_t ipc_export(int32_t device, void* address, bringup_ipc_handle* handle) {
  TRY(enter(device));
  CUdeviceptr base = 0;
  CUipcMemHandle made;
  TRY(CUDA(cuMemGetAddressRange, &base, NULL, number_of(address)));
  NEED(base == number_of(address), "%p is no allocation: it lies in the one at %p", address,
       (void*)(uintptr_t)base);
  TRY(CUDA(cuIpcGetMemHandle, &made, base));
  memset(handle, 0, sizeof *handle);
  memcpy(handle->bytes, kMark, sizeof kMark);
  memcpy(handle->bytes + sizeof kMark, &made, sizeof made);
  return BRINGUP_OK;
}

int32_t ipc_open(int32_t device, const bringup_ipc_handle* handle, void** address) {
  TRY(enter(device));
  NEED(memcmp(handle->bytes, kMark, sizeof kMark) == 0, "these bytes are no handle of this driver");
  CUipcMemHandle given;
  CUdeviceptr opened = 0;
  memcpy(&given, handle->bytes + sizeof kMark, sizeof given);
  TRY(CUDA(cuIpcOpenMemHandle, &opened, given, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
  *address = (void*)(uintptr_t)opened;
  return BRINGUP_OK;
}

int32_t ipc_close(int32_t device, void* address) {
  return CUDA_ON(device, cuIpcCloseMemHandle, number_of(address));
}
