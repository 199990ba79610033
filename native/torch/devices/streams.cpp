// The current device and streams of each thread, and the pool that streams come from.
#include <c10/util/Exception.h>
#include <nanobind/nanobind.h>

#include <algorithm>
#include <array>
#include <map>
#include <mutex>
#include <optional>

#include "torch/devices/state.h"
#include "torch/devices/stream_observer.h"

namespace bringup::torch_ext {
namespace {

// torch.Stream() objects are copied and shared without an owner, so native streams are never
// destroyed and new ones are handed out round robin from a fixed number, as torch does for CUDA.
constexpr size_t kStreamsPerPool = 32;

// Streams are created at their first use, without the lock: a driver in Python needs the GIL for
// it, which another thread may have that waits for the lock.
class StreamPool {
 public:
  bringup_stream next_stream(c10::DeviceIndex device, int32_t priority) {
    std::unique_lock lock(mutex_);
    const size_t place = next_++ % kStreamsPerPool;
    if (streams_[place] != nullptr) return streams_[place];
    lock.unlock();
    bringup_stream created = nullptr;
    check_driver(active_driver()->stream_create(device, priority, &created), "creating a stream");
    lock.lock();
    if (streams_[place] == nullptr) return streams_[place] = created;
    lock.unlock();  // another thread was faster, and nothing removes a stream
    active_driver()->stream_destroy(created);
    return streams_[place];
  }

 private:
  std::mutex mutex_;
  std::array<bringup_stream, kStreamsPerPool> streams_{};
  size_t next_ = 0;
};

// One for each priority that was asked for.
StreamPool& stream_pool(c10::DeviceIndex device, int32_t priority) {
  struct Pools {
    std::mutex mutex;
    std::map<std::pair<c10::DeviceIndex, int32_t>, StreamPool> of;
  };
  static auto* pools = new Pools;
  std::lock_guard lock(pools->mutex);
  return pools->of[{device, priority}];
}

struct Current {
  c10::DeviceIndex device = 0;
  std::array<c10::StreamId, kMaxDevices> streams{};  // 0 is the default stream
};
thread_local Current t_current;
thread_local StreamObserver* t_observer = nullptr;

template <class Wait>
int32_t without_gil(const Wait& wait) noexcept {
  std::optional<nanobind::gil_scoped_release> no_gil;
  if (Py_IsInitialized() != 0 && PyGILState_Check() != 0) no_gil.emplace();
  return wait();
}

}  // namespace

c10::DeviceIndex current_device() noexcept { return t_current.device; }

void set_current_device(c10::DeviceIndex device) { t_current.device = checked_device(device); }

c10::DeviceIndex checked_device(c10::DeviceIndex device) {
  if (device == -1) return t_current.device;
  const int32_t count = driver_facts().device_count;
  TORCH_CHECK(device >= 0 && device < count, "there is no device '", driver_facts().device_name,
              ":", static_cast<int>(device), "': this driver has ", count, " (0 to ", count - 1,
              ")");
  return device;
}

c10::Stream current_stream(c10::DeviceIndex device) noexcept {
  return c10::Stream(c10::Stream::UNSAFE, c10::Device(kDriverDevice, device),
                     t_current.streams[static_cast<size_t>(device)]);
}

c10::Stream exchange_current_stream(c10::Stream stream) {
  const c10::DeviceIndex device = checked_device(stream.device_index());
  const c10::Stream former = current_stream(device);
  t_current.streams[static_cast<size_t>(device)] = stream.id();
  return former;
}

c10::Stream pooled_stream(c10::DeviceIndex device, int32_t priority) {
  device = checked_device(device);
  const PriorityRange& range = driver_facts().priorities[static_cast<size_t>(device)];
  priority = std::clamp(priority, range.greatest, range.least);
  bringup_stream stream = stream_pool(device, priority).next_stream(device, priority);
  return c10::Stream(c10::Stream::UNSAFE, c10::Device(kDriverDevice, device),
                     static_cast<c10::StreamId>(reinterpret_cast<intptr_t>(stream)));
}

StreamObserver* stream_observer() noexcept { return t_observer; }

void set_stream_observer(StreamObserver* observer) noexcept { t_observer = observer; }

bringup_stream current_driver_stream(c10::DeviceIndex device) {
  return native_stream(current_stream(checked_device(device)));
}

int32_t wait_for_device(c10::DeviceIndex device) noexcept {
  return without_gil([&] { return active_driver()->device_synchronize(device); });
}

int32_t wait_for_stream(c10::DeviceIndex device, bringup_stream stream) noexcept {
  return without_gil([&] { return active_driver()->stream_synchronize(device, stream); });
}

int32_t wait_for_event(bringup_event event) noexcept {
  return without_gil([&] { return active_driver()->event_synchronize(event); });
}

void wait_without_gil(const std::function<void()>& wait) {
  without_gil([&] { return wait(), BRINGUP_OK; });
}

void synchronize_current_stream(c10::DeviceIndex device, const char* what) {
  device = checked_device(device);
  check_driver(wait_for_stream(device, native_stream(current_stream(device))), what);
  raise_host_failure(device);
}

}  // namespace bringup::torch_ext
