#include "torch/devices/shared_memory.h"

#include <ATen/ops/from_blob.h>

#include <condition_variable>
#include <deque>
#include <mutex>

#include "engine/util/forever.h"
#include "torch/devices/allocator.h"

namespace bringup::torch_ext {
namespace {

// Of memory that ended on whatever thread; closing it waits for the device.
struct Ended {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<uint64_t> numbers;
};

Ended& ended() { return forever<Ended>(); }

}  // namespace

std::pair<bringup_ipc_handle, size_t> export_memory(const at::Tensor& tensor) {
  const c10::DeviceIndex device = tensor.device().index();
  c10::StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
  const auto* address = static_cast<const std::byte*>(storage->data());
  const std::byte* begin = segment_of_address(device, address);
  TORCH_CHECK(begin != nullptr, "its memory did not come from the device's allocator");
  bringup_ipc_handle handle{};
  check_driver(active_driver()->ipc_export(device, const_cast<std::byte*>(begin), &handle),
               "exporting device memory");
  storage->set_resizable(false);
  return {handle, static_cast<size_t>(address - begin)};
}

void* open_memory(c10::DeviceIndex device, const bringup_ipc_handle& handle) {
  void* address = nullptr;
  check_driver(active_driver()->ipc_open(checked_device(device), &handle, &address),
               "opening another process's device memory");
  return address;
}

void wait_to_close(c10::DeviceIndex device) {
  const int32_t status = wait_for_device(device);
  if (status != BRINGUP_OK) report_host_failure(device, driver_error_text(status));
}

int32_t close_memory(c10::DeviceIndex device, void* address) {
  return active_driver()->ipc_close(device, address);
}

at::Tensor tensor_in_opened(void* address, size_t bytes, c10::DeviceIndex device, uint64_t number) {
  const auto end = [number](void*) {
    if (in_forked_child()) return;
    Ended& all = ended();
    const std::lock_guard lock(all.mutex);
    all.numbers.push_back(number);
    all.changed.notify_one();
  };
  return at::from_blob(address, {static_cast<int64_t>(bytes)}, end,
                       at::TensorOptions(at::kByte).device(c10::Device(kDriverDevice, device)));
}

uint64_t next_ended_memory() {
  Ended& all = ended();
  std::unique_lock lock(all.mutex);
  all.changed.wait(lock, [&] { return !all.numbers.empty(); });
  const uint64_t number = all.numbers.front();
  all.numbers.pop_front();
  return number;
}

}  // namespace bringup::torch_ext
