// A library in the place of libcuda for tests of drivers/cuda. It keeps CUDA's rules as far as the
// driver depends on them: the current context, copies of pageable memory that wait for their
// stream, host functions that all run one after the other, captures. Memory is the host's. Kernels
// are recorded, and run if they are those of check_kernels.cu or named below. What is called is
// written to $CUDA_STAND_IN_LOG, a line for each call that has an effect on a device.
//
//     CUDA_STAND_IN_DEVICES  how many GPUs there are; 1 by default
//     CUDA_STAND_IN_MODELS   of each, "90,80"; 90 by default
#include "stand_in.h"

// --- devices

API cuInit(unsigned) { return devices() > 0 ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE; }
API cuDriverGetVersion(int* version) { return *version = 13000, CUDA_SUCCESS; }
API cuGetErrorName(CUresult code, const char** text) {
  static const std::map<CUresult, const char*> names = {
      {CUDA_ERROR_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE"},
      {CUDA_ERROR_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY"},
      {CUDA_ERROR_NO_DEVICE, "CUDA_ERROR_NO_DEVICE"},
      {CUDA_ERROR_INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT"},
      {CUDA_ERROR_ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS"},
      {kInvalidImage, "CUDA_ERROR_INVALID_IMAGE"},
      {kNoBinaryForGpu, "CUDA_ERROR_NO_BINARY_FOR_GPU"},
      {CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE, "CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE"},
      {kCaptureUnsupported, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"},
  };
  const auto found = names.find(code);
  NEED(found != names.end(), CUDA_ERROR_INVALID_VALUE);
  *text = found->second;
  return CUDA_SUCCESS;
}
API cuGetErrorString(CUresult code, const char** text) { return cuGetErrorName(code, text); }
API cuDeviceGetCount(int* count) { return *count = devices(), CUDA_SUCCESS; }
API cuDeviceGet(CUdevice* device, int which) { return *device = which + 100, CUDA_SUCCESS; }
API cuDeviceGetName(char* name, int room, CUdevice) {
  snprintf(name, static_cast<size_t>(room), "Recorded GPU");
  return CUDA_SUCCESS;
}
API cuDeviceGetUuid_v2(CUuuid* uuid, CUdevice device) {
  memset(uuid, device, sizeof *uuid);
  return CUDA_SUCCESS;
}
API cuDeviceTotalMem_v2(size_t* bytes, CUdevice) { return *bytes = kMemory, CUDA_SUCCESS; }
API cuDeviceGetAttribute(int* value, int attribute, CUdevice device) {
  static const std::map<int, int> values = {{1, 1024},       {2, 1024},  {3, 1024},    {4, 64},
                                            {5, 2147483647}, {6, 65535}, {7, 65535},   {16, 132},
                                            {78, 1},         {95, 1},    {97, kShared}};
  const int of_device = model(device - 100);
  if (attribute == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)
    *value = of_device / 10;
  else if (attribute == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)
    *value = of_device % 10;
  else if (attribute == CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH)
    *value = of_device >= 90;
  else
    *value = values.at(attribute);
  return CUDA_SUCCESS;
}
API cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  log("retain device=%d", device - 100);
  contexts[device - 100].device = device - 100;
  return *context = &contexts[device - 100], CUDA_SUCCESS;
}
API cuCtxSetCurrent(CUcontext context) { return current = context, CUDA_SUCCESS; }

// --- memory

API cuMemGetInfo_v2(size_t* free_bytes, size_t* total) {
  NEED(current != nullptr, CUDA_ERROR_INVALID_CONTEXT);
  const Lock held(memory_lock);
  *total = kMemory;
  *free_bytes = kMemory - used[current->device];
  return CUDA_SUCCESS;
}
API cuMemAlloc_v2(CUdeviceptr* address, size_t bytes) {
  NEED(current != nullptr, CUDA_ERROR_INVALID_CONTEXT);
  {
    const Lock held(memory_lock);
    NEED(bytes <= kMemory - used[current->device], CUDA_ERROR_OUT_OF_MEMORY);
    used[current->device] += bytes;
  }
  const int file = memfd_create("stand_in", 0);
  NEED(file >= 0 && ftruncate(file, static_cast<off_t>(bytes)) == 0, CUDA_ERROR_OUT_OF_MEMORY);
  log("alloc device=%d bytes=%zu", current->device, bytes);
  return allocate(address, bytes, current->device, file, false);
}
API cuMemFree_v2(CUdeviceptr address) {
  NEED(current != nullptr, CUDA_ERROR_INVALID_CONTEXT);
  return release(address, false);
}
API cuMemGetAddressRange_v2(CUdeviceptr* base, size_t* bytes, CUdeviceptr address) {
  const auto* found = allocation_of(address);
  NEED(found != nullptr && found->second.device >= 0, CUDA_ERROR_NOT_FOUND);
  *base = found->first;
  if (bytes != nullptr) *bytes = found->second.bytes;
  return CUDA_SUCCESS;
}
API cuMemHostAlloc(void** address, size_t bytes, unsigned flags) {
  NEED(current != nullptr && flags == CU_MEMHOSTALLOC_PORTABLE, CUDA_ERROR_INVALID_CONTEXT);
  *address = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
  const Lock held(memory_lock);
  memory[reinterpret_cast<CUdeviceptr>(*address)] = {bytes, -1, -1, false};
  return CUDA_SUCCESS;
}
API cuMemFreeHost(void* address) {
  const Lock held(memory_lock);
  NEED(memory.erase(reinterpret_cast<CUdeviceptr>(address)) == 1, CUDA_ERROR_INVALID_VALUE);
  free(address);
  return CUDA_SUCCESS;
}
API cuMemHostRegister_v2(void* address, size_t bytes, unsigned flags) {
  NEED(current != nullptr && flags == CU_MEMHOSTREGISTER_PORTABLE, CUDA_ERROR_INVALID_CONTEXT);
  const Lock held(memory_lock);
  memory[reinterpret_cast<CUdeviceptr>(address)] = {bytes, -1, -1, false};
  return CUDA_SUCCESS;
}
API cuMemHostUnregister(void* address) {
  const Lock held(memory_lock);
  return memory.erase(reinterpret_cast<CUdeviceptr>(address)) == 1 ? CUDA_SUCCESS
                                                                   : CUDA_ERROR_INVALID_VALUE;
}
API cuPointerGetAttributes(unsigned count, int* which, void** values, CUdeviceptr address) {
  const auto* found = allocation_of(address);
  for (unsigned i = 0; i < count; ++i) {
    const int device = found != nullptr ? found->second.device : -1;
    const unsigned type = device >= 0 ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
    switch (which[i]) {
      case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
        *static_cast<unsigned*>(values[i]) = found != nullptr ? type : 0;
        break;
      case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
        *static_cast<int*>(values[i]) = found != nullptr ? std::max(device, 0) : -2;
        break;
      case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
        *static_cast<CUdeviceptr*>(values[i]) = found != nullptr ? found->first : 0;
        break;
      default:
        *static_cast<size_t*>(values[i]) = found != nullptr ? found->second.bytes : 0;
    }
  }
  return CUDA_SUCCESS;
}
API cuMemcpyAsync(CUdeviceptr dst, CUdeviceptr src, size_t bytes, CUstream stream) {
  NEED_CONTEXT(stream->device);
  log("copy stream=%d bytes=%zu%s", stream->number_, bytes,
      is_pageable(dst) || is_pageable(src) ? " pageable" : "");
  copy(stream, is_pageable(dst) || is_pageable(src),
       [=] { memmove(bytes_at(dst), bytes_at(src), bytes); });
  return CUDA_SUCCESS;
}
API cuMemcpyPeerAsync(CUdeviceptr dst, CUcontext to, CUdeviceptr src, CUcontext from, size_t bytes,
                      CUstream stream) {
  NEED_CONTEXT(stream->device);
  const auto *target = allocation_of(dst), *source = allocation_of(src);
  NEED(target != nullptr && source != nullptr && target->second.device == to->device &&
           source->second.device == from->device && stream->device == from->device,
       CUDA_ERROR_INVALID_VALUE);
  log("copy stream=%d bytes=%zu from=%d to=%d", stream->number_, bytes, from->device, to->device);
  stream->give([=] { memmove(bytes_at(dst), bytes_at(src), bytes); });
  return CUDA_SUCCESS;
}
API cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D* given, CUstream stream) {
  NEED_CONTEXT(stream->device);
  const CUDA_MEMCPY2D of = *given;
  const bool from_host = of.srcMemoryType == CU_MEMORYTYPE_HOST;
  const bool to_host = of.dstMemoryType == CU_MEMORYTYPE_HOST;
  NEED((from_host || is_device(of.srcDevice)) && (to_host || is_device(of.dstDevice)),
       CUDA_ERROR_INVALID_VALUE);
  log("rows stream=%d width=%zu height=%zu", stream->number_, of.WidthInBytes, of.Height);
  auto* to = static_cast<char*>(to_host ? of.dstHost : bytes_at(of.dstDevice));
  const auto* from = static_cast<const char*>(from_host ? of.srcHost : bytes_at(of.srcDevice));
  copy(stream, from_host || to_host, [=] {
    for (size_t row = 0; row < of.Height; ++row) {
      memcpy(to + row * of.dstPitch, from + row * of.srcPitch, of.WidthInBytes);
    }
  });
  return CUDA_SUCCESS;
}
template <typename T>
CUresult fill(CUdeviceptr dst, size_t pitch, T value, size_t count, CUstream stream) {
  NEED_CONTEXT(stream->device);
  NEED(is_device(dst) && dst % sizeof value == 0, CUDA_ERROR_INVALID_VALUE);
  log("fill stream=%d size=%zu pitch=%zu count=%zu value=%llx", stream->number_, sizeof value,
      pitch, count, static_cast<unsigned long long>(value));
  stream->give([=] {
    for (size_t i = 0; i < count; ++i) {
      memcpy(static_cast<char*>(bytes_at(dst)) + i * pitch, &value, sizeof value);
    }
  });
  return CUDA_SUCCESS;
}
API cuMemsetD8Async(CUdeviceptr dst, unsigned char value, size_t count, CUstream stream) {
  return fill(dst, 1, value, count, stream);
}
API cuMemsetD16Async(CUdeviceptr dst, unsigned short value, size_t count, CUstream stream) {
  return fill(dst, 2, value, count, stream);
}
API cuMemsetD32Async(CUdeviceptr dst, unsigned value, size_t count, CUstream stream) {
  return fill(dst, 4, value, count, stream);
}
API cuMemsetD2D32Async(CUdeviceptr dst, size_t pitch, unsigned value, size_t width, size_t height,
                       CUstream stream) {
  NEED(width == 1, CUDA_ERROR_INVALID_VALUE);
  return fill(dst, pitch, value, height, stream);
}
// A process and its file.
API cuIpcGetMemHandle(CUipcMemHandle* handle, CUdeviceptr address) {
  const auto* found = allocation_of(address);
  NEED(found != nullptr && found->first == address, CUDA_ERROR_INVALID_VALUE);
  snprintf(handle->reserved, sizeof handle->reserved, "/proc/%d/fd/%d %zu", getpid(),
           found->second.file, found->second.bytes);
  return CUDA_SUCCESS;
}
API cuIpcOpenMemHandle_v2(CUdeviceptr* address, CUipcMemHandle handle, unsigned flags) {
  NEED(current != nullptr && flags == CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS,
       CUDA_ERROR_INVALID_CONTEXT);
  char path[64];
  size_t bytes = 0;
  NEED(sscanf(handle.reserved, "%63s %zu", path, &bytes) == 2, CUDA_ERROR_INVALID_VALUE);
  const int file = open(path, O_RDWR);
  NEED(file >= 0, CUDA_ERROR_INVALID_VALUE);
  return allocate(address, bytes, current->device, file, true);
}
API cuIpcCloseMemHandle(CUdeviceptr address) { return release(address, true); }

// --- streams and events

static std::mutex streams_lock;
static std::vector<CUstream> streams;

API cuStreamCreateWithPriority(CUstream* stream, unsigned flags, int priority) {
  NEED(current != nullptr && flags == CU_STREAM_NON_BLOCKING, CUDA_ERROR_INVALID_CONTEXT);
  *stream = new CUstream_st{};
  (*stream)->device = current->device;
  (*stream)->number_ = number();
  std::thread([of = *stream] { of->run(); }).detach();
  const Lock held(streams_lock);
  streams.push_back(*stream);
  log("stream %d device=%d priority=%d", (*stream)->number_, current->device, priority);
  return CUDA_SUCCESS;
}
API cuStreamDestroy_v2(CUstream stream) {
  NEED_CONTEXT(stream->device);
  {
    const Lock all(streams_lock);
    streams.erase(std::find(streams.begin(), streams.end(), stream));
  }
  const Lock held(stream->lock);
  stream->stopping = true;
  stream->changed.notify_all();
  return CUDA_SUCCESS;
}
API cuStreamSynchronize(CUstream stream) {
  stream = of(stream);
  NEED_CONTEXT(stream->device);
  if (stream->captured != nullptr) return stream->broken = true, kCaptureUnsupported;
  stream->mark()->wait();
  return lost ? CUDA_ERROR_ILLEGAL_ADDRESS : CUDA_SUCCESS;
}
API cuStreamQuery(CUstream stream) {
  NEED_CONTEXT(stream->device);
  return stream->pending == 0 ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}
API cuCtxSynchronize() {
  NEED(current != nullptr, CUDA_ERROR_INVALID_CONTEXT);
  log("synchronize device=%d", current->device);
  std::vector<std::shared_ptr<Mark>> marks;
  {
    const Lock held(streams_lock);
    for (CUstream stream : streams) {
      if (stream->device == current->device) marks.push_back(stream->mark());
    }
  }
  for (const auto& mark : marks) mark->wait();
  return lost ? CUDA_ERROR_ILLEGAL_ADDRESS : CUDA_SUCCESS;
}
API cuStreamWriteValue32_v2(CUstream stream, CUdeviceptr address, uint32_t value, unsigned) {
  NEED_CONTEXT(stream->device);
  stream->give([=] { reinterpret_cast<std::atomic<uint32_t>*>(address)->store(value); });
  return CUDA_SUCCESS;
}
API cuStreamWaitValue32_v2(CUstream stream, CUdeviceptr address, uint32_t value, unsigned) {
  NEED_CONTEXT(stream->device);
  stream->give([=] {
    const auto* at = reinterpret_cast<std::atomic<uint32_t>*>(address);
    while (static_cast<int32_t>(at->load() - value) < 0) std::this_thread::yield();
  });
  return CUDA_SUCCESS;
}
API cuLaunchHostFunc(CUstream stream, CUhostFn fn, void* user) {
  NEED_CONTEXT(stream->device);
  log("host_func stream=%d", stream->number_);
  stream->give([=] { call_on_host(fn, user); });
  return CUDA_SUCCESS;
}
API cuStreamBeginCapture_v2(CUstream stream, int mode) {
  NEED_CONTEXT(stream->device);
  NEED(mode == CU_STREAM_CAPTURE_MODE_RELAXED, CUDA_ERROR_INVALID_VALUE);
  log("capture stream=%d", stream->number_);
  stream->captured = new CUgraph_st;
  stream->broken = false;
  return CUDA_SUCCESS;
}
API cuStreamEndCapture(CUstream stream, CUgraph* graph) {
  NEED_CONTEXT(stream->device);
  *graph = stream->broken ? nullptr : stream->captured;
  stream->captured = nullptr;
  return stream->broken ? static_cast<CUresult>(kCaptureInvalidated) : CUDA_SUCCESS;
}
API cuStreamIsCapturing(CUstream stream, int* status) {
  *status = stream->captured == nullptr ? 0 : stream->broken ? 2 : 1;
  return CUDA_SUCCESS;
}
API cuEventCreate(CUevent* event, unsigned flags) {
  NEED(current != nullptr, CUDA_ERROR_INVALID_CONTEXT);
  *event = new CUevent_st{current->device, flags, nullptr};
  return CUDA_SUCCESS;
}
API cuEventDestroy_v2(CUevent event) {
  delete event;
  return CUDA_SUCCESS;
}
API cuEventRecord(CUevent event, CUstream stream) {
  NEED(event->device == stream->device, CUDA_ERROR_INVALID_HANDLE);
  event->mark = stream->mark();
  return CUDA_SUCCESS;
}
API cuStreamWaitEvent(CUstream stream, CUevent event, unsigned) {
  const auto mark = event->mark;
  if (mark != nullptr) stream->give([mark] { mark->wait(); });
  return CUDA_SUCCESS;
}
API cuEventQuery(CUevent event) {
  return event->mark == nullptr || event->mark->reached() ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}
API cuEventSynchronize(CUevent event) {
  if (event->mark != nullptr) event->mark->wait();
  return CUDA_SUCCESS;
}
API cuEventElapsedTime(float* milliseconds, CUevent start, CUevent end) {
  NEED(start->mark != nullptr && end->mark != nullptr && start->flags == 0 && end->flags == 0,
       CUDA_ERROR_INVALID_HANDLE);
  *milliseconds =
      std::chrono::duration<float, std::milli>(end->mark->time - start->mark->time).count();
  return CUDA_SUCCESS;
}
