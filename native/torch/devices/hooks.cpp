// torch's hooks for PrivateUse1: device switching from anywhere, generators, pinned memory,
// resizing.
#include <ATen/Context.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/DeviceGuard.h>

#include <algorithm>

#include "torch/devices/allocator.h"
#include "torch/devices/generator.h"
#include "torch/devices/host_allocator.h"
#include "torch/devices/profiler.h"
#include "torch/devices/state.h"

namespace bringup::torch_ext {
namespace {

class DriverHooks final : public at::PrivateUse1HooksInterface {
 public:
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return driver_facts().device_count > 0; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  void init() const override {}

  c10::DeviceIndex deviceCount() const override {
    return static_cast<c10::DeviceIndex>(driver_facts().device_count);
  }
  void setCurrentDevice(c10::DeviceIndex device) const override { set_current_device(device); }
  c10::DeviceIndex getCurrentDevice() const override { return current_device(); }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override {
    const c10::DeviceIndex former = current_device();
    if (device >= 0) set_current_device(device);
    return former;
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override {
    return exchangeDevice(device);
  }
  at::Device getDeviceFromPtr(void* data) const override {
    return {kDriverDevice, device_of_address(data)};
  }

  const at::Generator& getDefaultGenerator(c10::DeviceIndex device) const override {
    return default_generator(device);
  }
  at::Generator getNewGenerator(c10::DeviceIndex device) const override {
    return at::make_generator<DriverGenerator>(checked_device(device));
  }

  bool isPinnedPtr(const void* data) const override { return is_pinned_address(data); }
  at::Allocator* getPinnedMemoryAllocator() const override { return &host_allocator(); }

  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    TORCH_CHECK(storage.resizable(), "Trying to resize storage that is not resizable");
    const c10::DeviceIndex device = storage.device().index();
    c10::DeviceGuard guard(storage.device());
    at::DataPtr grown = allocate_intercepted(bytes, device);
    const size_t kept = std::min(storage.nbytes(), bytes);
    if (kept > 0) {
      const ProfiledWork work(BRINGUP_DEVICE_TO_DEVICE, kept, current_stream(device));
      check_driver(
          active_driver()->copy_async(BRINGUP_DEVICE_TO_DEVICE, device, grown.get(), device,
                                      storage.data(), kept, current_driver_stream(device)),
          "copying a storage that is resized");
      device_allocator().recordStream(storage.data_ptr(), current_stream(device));
    }
    storage.unsafeGetStorageImpl()->set_data_ptr_noswap(std::move(grown));
    storage.unsafeGetStorageImpl()->set_nbytes(bytes);
  }
};

}  // namespace

void grow(const c10::Storage& storage, size_t bytes) {
  if (bytes <= storage.nbytes()) return;
  at::detail::getPrivateUse1Hooks().resizePrivateUse1Bytes(storage, bytes);
}

void register_hooks() {
  // Never destroyed: torch keeps a plain pointer to it.
  static auto* hooks = new DriverHooks;
  at::RegisterPrivateUse1HooksInterface(hooks);
  // The driver is loaded, so the device is ready; until torch knows it takes no memory for pinned.
  at::globalContext().lazyInitDevice(kDriverDevice);
}

}  // namespace bringup::torch_ext
