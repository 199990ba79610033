// What the files of this folder share: the loaded driver's facts, this thread's current device and
// streams.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/Device.h>
#include <c10/core/Layout.h>
#include <c10/core/ScalarType.h>
#include <c10/core/Stream.h>

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "torch/devices/driver.h"

namespace bringup::torch_ext {

constexpr c10::DeviceType kDriverDevice = c10::DeviceType::PrivateUse1;
constexpr c10::DispatchKeySet kDriverKeys(c10::DispatchKey::PrivateUse1);
constexpr c10::DispatchKeySet kCpuKeys(c10::DispatchKey::CPU);
constexpr int kMaxDevices = 64;

// A bit for each ScalarType.
using DtypeSet = uint64_t;
static_assert(static_cast<int>(c10::ScalarType::NumOptions) <= 64);

// Stream priorities, as CUDA numbers them: lower is more urgent.
struct PriorityRange {
  int32_t greatest = 0;
  int32_t least = 0;
};

// Facts about a driver that passed every check of its contract.
struct DriverFacts {
  std::string path;
  std::string device_name;
  std::string description;
  std::string driver_version;  // of its first device, or ""
  std::string functions;       // that its table has, separated by spaces
  int32_t device_count = 0;
  bool host_visible = false;         // every device lets the host read and write its memory
  bool host_visible_memory = false;  // they say so, whether or not it has host_view here
  bool runs_host_code = false;       // every device runs kernels that were built for the host
  bool takes_plain_values = false;   // none does, and launches have addresses and numbers
  std::array<DtypeSet, kMaxDevices> absent_dtypes{};  // of which a device can have no tensors
  size_t alignment = 64;                              // of what mem_alloc gives, on every device
  std::array<PriorityRange, kMaxDevices> priorities{};
  std::array<uint8_t, kMaxDevices> models{};  // the first device with this one's arch
};

// The trace that the driver which is opened next gets; an empty path: none. `limit` 0: any size.
void set_driver_trace(const std::string& path, bool payload, uint64_t limit);

// Opens and checks a driver without making it active. Throws std::runtime_error that says what is
// wrong with it.
DriverFacts open_driver(const std::string& path);
// The same for a table in memory, which must live as long as the process. `path`: for messages.
DriverFacts open_driver_table(uintptr_t table, const std::string& path);
// Gives an opened driver up that shall not be installed.
void close_driver();
// Makes the opened driver torch's PrivateUse1 backend: allocator, guard, hooks, operators. Once in
// a process. True when autograd had started before and just got threads for the devices.
bool install_driver();

// Ends the installed driver, after which every call of it fails or does nothing.
int32_t shut_down_driver();

// Drops pending work and failures of a device. Raises when the driver cannot.
int32_t reset_device(c10::DeviceIndex device);

// What the driver knows of an address, where it says so.
std::optional<bringup_pointer_info> driver_pointer_info(const void* address);

// The loaded driver's facts; only while active_driver() is not null.
const DriverFacts& driver_facts() noexcept;
bringup_device_props device_props(c10::DeviceIndex device);

// The dtypes that a device with these properties lacks.
DtypeSet absent_dtypes(const bringup_device_props& props) noexcept;
// torch's names of those that it has.
std::vector<std::string> dtype_names(const bringup_device_props& props);
[[noreturn]] void refuse_dtype(c10::ScalarType type, c10::DeviceIndex device);
// Called for every device tensor that comes to be. TypeError names dtype, device and what to do.
inline void check_dtype(c10::ScalarType type, c10::DeviceIndex device) {
  const DtypeSet absent = driver_facts().absent_dtypes[static_cast<size_t>(device)];
  if (C10_UNLIKELY((absent >> static_cast<int>(type) & 1) != 0)) refuse_dtype(type, device);
}

// NotImplementedError for a layout that is neither strided nor sparse_coo.
void refuse_other_layouts(c10::Layout layout);

// The first of the driver's devices that code for this one runs on. Of torch's CUDA the device
// itself, and 0 for what is neither.
inline uint8_t device_model(c10::Device device) noexcept {
  if (device.is_cuda()) return static_cast<uint8_t>(device.index());
  const bool is_ours = device.type() == kDriverDevice && active_driver() != nullptr;
  return is_ours ? driver_facts().models[static_cast<size_t>(std::max<int>(device.index(), 0))] : 0;
}

// This thread's current device. set_current_device raises for an index that does not exist.
c10::DeviceIndex current_device() noexcept;
void set_current_device(c10::DeviceIndex device);
c10::DeviceIndex checked_device(c10::DeviceIndex device);  // -1 becomes the current one

// This thread's current stream; streams come from a pool and live as long as the process.
c10::Stream current_stream(c10::DeviceIndex device) noexcept;
c10::Stream exchange_current_stream(c10::Stream stream);
// A priority beyond the device's range becomes its nearest end, as in CUDA.
c10::Stream pooled_stream(c10::DeviceIndex device, int32_t priority);

// Work that a thread has put off: it comes before anything else that the thread enqueues.
class DeferredWork {
 public:
  virtual void enqueue() noexcept = 0;

 protected:
  ~DeferredWork() = default;
};
// This thread's, or null.
inline DeferredWork*& deferred_work() noexcept {
  static thread_local DeferredWork* work = nullptr;
  return work;
}

// To enqueue something there, or to wait.
inline bringup_stream native_stream(const c10::Stream& stream) noexcept {
  if (C10_UNLIKELY(deferred_work() != nullptr)) deferred_work()->enqueue();
  return reinterpret_cast<bringup_stream>(stream.id());
}

// True in a child of fork(): the driver's threads and queues stayed in the parent.
bool in_forked_child() noexcept;

// An event that is destroyed with its owner.
struct DestroyEvent {
  void operator()(bringup_event event) const noexcept {
    if (!in_forked_child()) active_driver()->event_destroy(event);
  }
};
using EventPtr = std::unique_ptr<bringup_event_s, DestroyEvent>;
// Null and the driver's status where it makes none.
inline int32_t create_event(c10::DeviceIndex device, bool timing, EventPtr& event) {
  bringup_event created = nullptr;
  const int32_t status = active_driver()->event_create(device, timing ? 1 : 0, &created);
  if (status == BRINGUP_OK) event.reset(created);
  return status;
}

// Waits after every launch, so that an error is raised where it was caused
// (BRINGUP_LAUNCH_BLOCKING).
void set_launch_blocking(bool blocking) noexcept;

// Whether events that the driver refuses to this thread are waited for on the host, in place of an
// error: torch's Future does not survive one while it is completed, and who waits for it would
// wait for ever.
bool& waits_in_place_of_events() noexcept;

// Parts of install_driver in their order, a file each: register_<part>().
// clang-format off
#define BRINGUP_DEVICE_PARTS(V) \
  V(allocator) V(host_allocator) V(guard) V(hooks) V(operators) V(metadata) V(layouts) \
  V(collectives) V(copies) V(fills) V(fallback) V(autocast) V(profiler) V(recurrent_cells) \
  V(synchronized_norm) V(attention_choice) V(native_handles)
// clang-format on
#define BRINGUP_PART(part) void register_##part();
BRINGUP_DEVICE_PARTS(BRINGUP_PART)
#undef BRINGUP_PART

}  // namespace bringup::torch_ext
