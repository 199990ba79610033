// The loaded driver, for the other packages of native/torch: is there one, its streams, host views,
// kernel launches.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Stream.h>
#include <c10/util/SmallVector.h>

#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "bringup/driver.h"
#include "runtime/kernel_table.h"
#include "runtime/launch_block.h"
#include "runtime/values_code.h"

namespace bringup::torch_ext {

// The driver that owns PrivateUse1, or null.
const bringup_driver* active_driver() noexcept;

// Turns a driver status into a c10::Error that names `what` and repeats the driver's message.
// BRINGUP_OK: nothing.
void check_driver(int32_t status, const char* what,
                  const bringup_driver& driver = *active_driver());

// The message of that error.
std::string driver_failure_text(int32_t status, const char* what,
                                const bringup_driver& driver = *active_driver());

// The driver's own message for its last failure on this thread; without any, what the status means.
std::string driver_error_text(int32_t status);

// The native handle of torch's current stream on `device` (null = the default stream).
bringup_stream current_driver_stream(c10::DeviceIndex device);

// A CPU tensor over the same memory, without a copy, for a driver with host-visible memory. Does
// not wait for the stream, and keeps the device's memory only where it is `lasting`. Raises when
// the driver has no host view.
at::Tensor host_alias(const at::Tensor& device_tensor, bool lasting);
// Whether it is memory that such an alias does not keep.
bool is_borrowed(const c10::Storage& storage);

// The driver's waits. What is waited for may be an operator in Python, on the driver's thread: a
// caller that holds the GIL releases it for the wait. They return the driver's status.
int32_t wait_for_device(c10::DeviceIndex device) noexcept;
int32_t wait_for_stream(c10::DeviceIndex device, bringup_stream stream) noexcept;
int32_t wait_for_event(bringup_event event) noexcept;
// The same for what the kit itself waits for.
void wait_without_gil(const std::function<void()>& wait);

// Waits for the current stream of `device` and raises what failed in it, as a failure of `what`.
void synchronize_current_stream(c10::DeviceIndex device,
                                const char* what = "waiting for the current stream");

// True when the driver starts this kernel: device code, and on a device that runs host code every
// kernel. Otherwise it is a host entry, which is called and launches for itself.
bool launched_by_driver(const runtime::Kernel& kernel) noexcept;

// A kernel that lives as long as the process, as its name does.
struct LastingKernel {
  std::shared_ptr<const runtime::Kernel> kernel;
  const char* name = nullptr;
  uint64_t flags = 0;                                                  // of its launches
  mutable std::array<std::atomic<bringup_kernel_fn>, 64> functions{};  // as each device has it
  mutable std::array<std::atomic<void*>, 64> fault_words{};            // likewise
};

// Over what a kernel of kernel.h's form runs.
struct Grid {
  int64_t blocks = 1;      // 1 for a host entry
  int64_t work_items = 0;  // that the blocks share; 0: unknown
  bool operator==(const Grid&) const = default;
};

// Starts a kernel in the current stream of `device`, which exists; takes the block. What the driver
// starts goes to driver->launch, a host entry is called here and now with the native stream.
void launch_kernel(const LastingKernel& lasting, runtime::LaunchBlock block, const Grid& grid,
                   c10::DeviceIndex device);

// The same of a host entry alone, by its arguments.
void call_host_entry(const runtime::Kernel& kernel, void** args, int32_t count,
                     c10::DeviceIndex device, const char* operator_name);

// Starts a kernel for tensors on a device of torch's CUDA backend, with that device current, in
// torch's current stream: a host entry is called here and now, device code with plain arguments is
// given to the driver that open_cuda_launcher opened.
void call_on_cuda(const LastingKernel& lasting, void** args, int32_t count, c10::Device device);
// Opens the driver at `path` for them, beside the active one and whether or not there is one; once.
// Throws std::runtime_error that says what is wrong with it.
void open_cuda_launcher(const std::string& path);

// Who starts device code, and in which stream.
struct Launcher {
  const bringup_driver& driver;
  DLDevice device;
  bringup_stream stream;
  uint64_t flags = 0;  // BRINGUP_VALUES_*: of what kind the stream is
};
// The one path of plain arguments to a driver. `fault`: what fault() in args= is.
void launch_with_values(const LastingKernel& lasting, void* const* args, void* fault,
                        const Launcher& launcher);
// Raises when the device lacks what the launch asks for beyond blocks of threads: a driver that was
// built for an older header would leave it out.
void check_device_has(const runtime::ValuesLaunch& launch, const char* operator_name,
                      c10::DeviceIndex device, const bringup_driver& driver = *active_driver());

// As launch_kernel, for device code with plain arguments (kernel->values); `args` as the
// kernel's entry would take them, read before this returns.
void launch_values(const LastingKernel& lasting, void* const* args, c10::DeviceIndex device);
// The same from values as the driver gets them, over `blocks` blocks of `threads` threads in x.
struct PlainLaunch {
  // For the driver; valid as long as this.
  bringup_launch_values_args arguments() const;

  const LastingKernel& kernel;
  c10::DeviceIndex device;
  int64_t threads;
  int64_t blocks;
  c10::SmallVector<bringup_value, 32> values;
};
void launch_plain_values(const PlainLaunch& launch);
// Whether the driver loads device code and starts it with plain values.
bool launches_values() noexcept;
// Raises when the driver cannot start it.
void check_takes_values(const runtime::Kernel& kernel, const char* operator_name,
                        const bringup_driver& driver = *active_driver());
// Where its kernel says that it cannot compute, for driver::fault_word; null for one without rules.
void* fault_word_of(const LastingKernel& lasting, const std::vector<std::string>& rules,
                    c10::DeviceIndex device);
void* fault_word_of(const std::vector<std::string>& rules, const char* operator_name,
                    c10::DeviceIndex device);

// The device code of a kernel, loaded into `device` at its first use. The kernel is kept.
bringup_kernel_fn device_function(const std::shared_ptr<const runtime::Kernel>& kernel,
                                  c10::DeviceIndex device,
                                  const bringup_driver& driver = *active_driver());

// The vendor's object of a bringup_native_kind, as the driver's native_handle; BRINGUP_UNSUPPORTED
// where the driver has none.
int32_t native_handle(c10::DeviceIndex device, bringup_stream stream, int32_t kind, void** handle);

// Host work in a stream of `device` failed: the next synchronisation of that device or one of its
// streams raises `message`. The first report stands. From any thread.
void report_host_failure(c10::DeviceIndex device, std::string message) noexcept;
// Takes the reported failure, or an empty text; raises it.
std::string take_host_failure(c10::DeviceIndex device);
void raise_host_failure(c10::DeviceIndex device);

}  // namespace bringup::torch_ext
