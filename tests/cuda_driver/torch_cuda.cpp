// What a CPU build of torch lacks for CUDA tensors, on the library in the place of libcuda: the
// guard of devices and streams that torch's CUDA registers. Its streams are CUDA's, an id of 0 the
// legacy default stream.
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/util/Exception.h>
#include <dlfcn.h>

#include <array>

#include "cuda_api.h"

namespace {

using c10::Device;
using c10::DeviceIndex;
using c10::DeviceType;
using c10::Stream;

cuda_api api;
DeviceIndex count = 0;
thread_local DeviceIndex current = 0;
thread_local std::array<c10::StreamId, 64> streams{};

void use(DeviceIndex device) {
  CUcontext context = nullptr;
  CUdevice id = 0;
  api.cuDeviceGet(&id, device);
  api.cuDevicePrimaryCtxRetain(&context, id);
  api.cuCtxSetCurrent(context);
  current = device;
}

class Guard final : public c10::impl::DeviceGuardImplInterface {
 public:
  DeviceType type() const override { return DeviceType::CUDA; }
  Device getDevice() const override { return {DeviceType::CUDA, current}; }
  Device exchangeDevice(Device to) const override {
    const Device before = getDevice();
    if (to != before) use(to.index());
    return before;
  }
  void setDevice(Device device) const override { exchangeDevice(device); }
  void uncheckedSetDevice(Device device) const noexcept override { exchangeDevice(device); }
  Stream getStream(Device device) const override {
    return Stream(Stream::UNSAFE, device, streams[static_cast<size_t>(device.index())]);
  }
  Stream exchangeStream(Stream stream) const override {
    const Stream before = getStream(stream.device());
    streams[static_cast<size_t>(stream.device_index())] = stream.id();
    return before;
  }
  void* getStreamNativeHandle(const Stream stream) const override {
    return reinterpret_cast<void*>(stream.id());
  }
  void synchronizeStream(const Stream& stream) const override {
    const auto code = api.cuStreamSynchronize(static_cast<CUstream>(stream.native_handle()));
    TORCH_CHECK(code == CUDA_SUCCESS, "CUDA error ", code);
  }
  DeviceIndex deviceCount() const noexcept override { return count; }
};

}  // namespace

#define SHOWN extern "C" __attribute__((visibility("default")))

SHOWN void install(const char* libcuda, int devices) {
  void* library = dlopen(libcuda, RTLD_NOW);
#define FIND(name, version, parameters) \
  *reinterpret_cast<void**>(&api.name) = dlsym(library, #name #version);
  CUDA_FUNCTIONS(FIND)
  count = static_cast<DeviceIndex>(devices);
  api.cuInit(0);
  use(0);
  static Guard guard;
  c10::impl::registerDeviceGuard(DeviceType::CUDA, &guard);
}

SHOWN void* allocate(int device, size_t bytes) {
  const c10::Device before = Guard().exchangeDevice({DeviceType::CUDA, DeviceIndex(device)});
  CUdeviceptr address = 0;
  api.cuMemAlloc(&address, bytes);
  Guard().setDevice(before);
  return reinterpret_cast<void*>(address);
}

SHOWN void* new_stream(int device) {
  const c10::Device before = Guard().exchangeDevice({DeviceType::CUDA, DeviceIndex(device)});
  CUstream made = nullptr;
  api.cuStreamCreateWithPriority(&made, CU_STREAM_NON_BLOCKING, 0);
  Guard().setDevice(before);
  return made;
}

SHOWN void set_stream(int device, void* queue) {
  streams[static_cast<size_t>(device)] = reinterpret_cast<c10::StreamId>(queue);
}

SHOWN void synchronize(int device) {
  const c10::Device before = Guard().exchangeDevice({DeviceType::CUDA, DeviceIndex(device)});
  api.cuCtxSynchronize();
  api.cuStreamSynchronize(nullptr);
  Guard().setDevice(before);
}

SHOWN int current_device() { return current; }
