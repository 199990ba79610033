// torch's device guard: switching device and stream, events.
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/util/Exception.h>

#include "torch/devices/allocator.h"
#include "torch/devices/state.h"
#include "torch/devices/stream_observer.h"

namespace bringup::torch_ext {
namespace {

bringup_event native_event(void* event) { return static_cast<bringup_event>(event); }

void before_host_wait(const char* what) {
  if (StreamObserver* observer = stream_observer()) observer->on_host_wait(what);
}

// After a call for an event: whether the host has waited instead, for the event or, where it is
// null, for the stream. What that wait says comes with the device's next synchronisation.
bool is_waited_for(int32_t status, const c10::Stream& stream, bringup_event event) {
  if (C10_LIKELY(status == BRINGUP_OK) || !waits_in_place_of_events()) return false;
  const c10::DeviceIndex device = stream.device_index();
  const int32_t waited =
      event != nullptr ? wait_for_event(event) : wait_for_stream(device, native_stream(stream));
  if (waited != BRINGUP_OK) report_host_failure(device, driver_error_text(waited));
  return true;
}

class DriverGuard final : public c10::impl::DeviceGuardImplInterface {
 public:
  c10::DeviceType type() const override { return kDriverDevice; }

  c10::Device exchangeDevice(c10::Device device) const override {
    const c10::Device former = getDevice();
    if (device.has_index()) set_current_device(device.index());
    return former;
  }
  c10::Device getDevice() const override { return {kDriverDevice, current_device()}; }
  void setDevice(c10::Device device) const override { set_current_device(device.index()); }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    if (device.index() >= 0 && device.index() < deviceCount()) set_current_device(device.index());
  }
  c10::DeviceIndex deviceCount() const noexcept override {
    return static_cast<c10::DeviceIndex>(driver_facts().device_count);
  }
  c10::DeviceCapability getDeviceCapability(c10::Device device) const override {
    const bringup_device_props props = device_props(checked_device(device.index()));
    c10::DeviceCapability capability;
    auto& data = capability.capability_data;
    static_assert(c10::kIndex_Double == static_cast<int>(c10::ScalarType::Double));
    data.capability_bits &= ~absent_dtypes(props);
    if (props.supports_int64 == 0) data.supported_scalar_types.has_Long = 0;
    return capability;
  }

  c10::Stream getStream(c10::Device device) const override {
    return current_stream(checked_device(device.index()));
  }
  c10::Stream getDefaultStream(c10::Device device) const override {
    return c10::Stream(c10::Stream::DEFAULT, {kDriverDevice, checked_device(device.index())});
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool urgent) const override {
    const c10::DeviceIndex index = checked_device(device.index());
    const PriorityRange& range = driver_facts().priorities[static_cast<size_t>(index)];
    return pooled_stream(index, urgent ? range.greatest : 0);
  }
  c10::Stream getNewStream(c10::Device device, int priority) const override {
    return pooled_stream(device.index(), priority);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    return exchange_current_stream(stream);
  }
  void* getStreamNativeHandle(const c10::Stream stream) const override {
    return native_stream(stream);
  }
  bool queryStream(const c10::Stream& stream) const override {
    before_host_wait("Stream.query()");
    const int32_t status =
        active_driver()->stream_query(stream.device_index(), native_stream(stream));
    if (status == BRINGUP_NOT_READY) return false;
    check_driver(status, "querying a stream");
    return true;
  }
  bool isStreamCapturing(const c10::Stream& stream) const override {
    const StreamObserver* observer = stream_observer();
    return observer != nullptr &&
           (stream == current_stream(stream.device_index()) || observer->captures(stream));
  }
  void synchronizeStream(const c10::Stream& stream) const override {
    before_host_wait("Stream.synchronize()");
    check_driver(wait_for_stream(stream.device_index(), native_stream(stream)),
                 "waiting for a stream");
    raise_host_failure(stream.device_index());
  }
  void synchronizeDevice(const c10::DeviceIndex device) const override {
    before_host_wait("synchronize()");
    check_driver(wait_for_device(checked_device(device)), "waiting for a device");
    raise_host_failure(checked_device(device));
  }

  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex device,
              const c10::EventFlag flag) const override {
    TORCH_CHECK(device == -1 || device == stream.device_index(), "an event of device ",
                static_cast<int>(device), " cannot be recorded in a stream of device ",
                static_cast<int>(stream.device_index()));
    const bringup_stream queue = native_stream(stream);
    int32_t status = BRINGUP_OK;
    if (*event == nullptr) {
      bringup_event created = nullptr;
      const int32_t timing = flag == c10::EventFlag::BACKEND_DEFAULT ? 1 : 0;
      status = active_driver()->event_create(stream.device_index(), timing, &created);
      if (is_waited_for(status, stream, nullptr)) return;
      check_driver(status, "creating an event");
      *event = created;
    }
    status = active_driver()->event_record(native_event(*event), stream.device_index(), queue);
    if (is_waited_for(status, stream, nullptr)) return;
    check_driver(status, "recording an event");
    if (StreamObserver* observer = stream_observer()) observer->on_record(*event, stream);
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (event == nullptr) return;
    const int32_t status = active_driver()->event_wait(native_event(event), stream.device_index(),
                                                       native_stream(stream));
    if (is_waited_for(status, stream, native_event(event))) return;
    check_driver(status, "making a stream wait for an event");
    if (StreamObserver* observer = stream_observer()) observer->on_block(event, stream);
  }
  bool queryEvent(void* event) const override {
    if (event == nullptr) return true;
    before_host_wait("Event.query()");
    const int32_t status = active_driver()->event_query(native_event(event));
    if (status == BRINGUP_NOT_READY) return false;
    check_driver(status, "querying an event");
    return true;
  }
  void synchronizeEvent(void* event) const override {
    if (event == nullptr) return;
    before_host_wait("Event.synchronize()");
    check_driver(wait_for_event(native_event(event)), "waiting for an event");
    // An event does not tell its device.
    for (c10::DeviceIndex device = 0; device < deviceCount(); ++device) raise_host_failure(device);
  }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override {
    if (event != nullptr && !in_forked_child()) active_driver()->event_destroy(native_event(event));
  }
  double elapsedTime(void* start, void* end, const c10::DeviceIndex) const override {
    TORCH_CHECK(start != nullptr && end != nullptr,
                "both events must be recorded before the time between them is known");
    double milliseconds = 0;
    check_driver(
        active_driver()->event_elapsed(native_event(start), native_event(end), &milliseconds),
        "reading the time between two events (both must be complete)");
    return milliseconds;
  }

  void recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& stream) const override {
    device_allocator().recordStream(data, stream);
  }
};

}  // namespace

bool& waits_in_place_of_events() noexcept {
  static thread_local bool waits = false;
  return waits;
}

void register_guard() {
  // Never destroyed: torch keeps a plain pointer to it.
  static const auto* guard = new DriverGuard;
  c10::impl::DeviceGuardImplRegistrar(kDriverDevice, guard);
}

}  // namespace bringup::torch_ext
