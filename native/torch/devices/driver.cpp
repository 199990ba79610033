// Opening and checking a driver, making it torch's backend, and turning its statuses into errors.
#include "torch/devices/driver.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/util/Exception.h>
#include <pthread.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <utility>

#include "driver/checked.h"
#include "driver/table.h"
#include "driver/traced.h"
#include "engine/util/forever.h"
#include "runtime/loader.h"
#include "torch/common/allocation.h"
#include "torch/common/torch_private.h"
#include "torch/devices/state.h"

namespace bringup::torch_ext {
namespace {

// The driver's table, completed with nulls to the size this build knows, and the library it lives
// in. Never given back: tensors may be freed until the very end of the process.
struct Loaded {
  bringup_driver table{};
  DriverFacts facts;
  std::shared_ptr<runtime::Library> library;
};

std::mutex g_mutex;
driver::TraceOptions g_trace;  // guarded by g_mutex
Loaded* g_opened = nullptr;    // guarded by g_mutex until it is published in g_active
std::atomic<const Loaded*> g_active{nullptr};
std::atomic<bool> g_forked{false};

DriverFacts facts_of(const std::string& path, const bringup_driver& table,
                     const driver::Description& described) {
  DriverFacts facts;
  facts.path = path;
  facts.device_name = described.device_name;
  facts.description = described.description;
  facts.device_count = static_cast<int32_t>(described.devices.size());
  facts.host_visible = table.host_view != nullptr;
  facts.host_visible_memory = true;
  facts.runs_host_code = table.launch != nullptr;
  facts.takes_plain_values = table.launch_values != nullptr;
  for (size_t device = 0; device < described.devices.size(); ++device) {
    const bringup_device_props& props = described.devices[device];
    facts.host_visible = facts.host_visible && props.host_visible_memory != 0;
    facts.host_visible_memory = facts.host_visible_memory && props.host_visible_memory != 0;
    facts.runs_host_code = facts.runs_host_code && props.runs_host_code != 0;
    facts.takes_plain_values = facts.takes_plain_values && props.runs_host_code == 0;
    if (device == 0) facts.driver_version = props.driver_version;
    facts.absent_dtypes[device] = absent_dtypes(props);
    facts.alignment = std::max<size_t>(facts.alignment, props.alignment);
    facts.priorities[device] = {props.greatest_priority, props.least_priority};
    while (std::strcmp(described.devices[facts.models[device]].arch, props.arch) != 0) {
      ++facts.models[device];  // ends at the device itself
    }
  }
  return facts;
}

void require_free_backend() {
  using c10::impl::device_guard_impl_registry;
  const bool taken =
      at::isPrivateUse1HooksRegistered() ||
      device_guard_impl_registry[static_cast<size_t>(kDriverDevice)].load() != nullptr;
  if (taken) {
    throw std::runtime_error(
        "another backend has already registered itself for torch's PrivateUse1 device in this "
        "process: only one can");
  }
  using Key = c10::DispatchKey;
  for (const Key key : {Key::PrivateUse1, Key::SparsePrivateUse1, Key::SparseCsrPrivateUse1,
                        Key::QuantizedPrivateUse1, Key::NestedTensorPrivateUse1}) {
    if (!c10::Dispatcher::singleton().hasBackendFallbackForDispatchKey(key)) continue;
    throw std::runtime_error(
        std::string("other code has registered a fallback of all operators for ") + toString(key) +
        " (m.fallback(...) of TORCH_LIBRARY_IMPL(_, ...), or of torch.library.Library(\"_\", "
        "\"IMPL\")), and a driver brings its own, which runs the CPU's kernels: take that one out. "
        "Kernels of single operators stay, m.impl(\"sub.Tensor\", ...), boxed ones too; "
        "devices.set_fallback_policy and BRINGUP_FALLBACK say what may fall back");
  }
}

// `read` gives the driver's table.
template <class Read>
DriverFacts open_and_start(const std::string& path, std::shared_ptr<runtime::Library> library,
                           Read read) {
  std::lock_guard lock(g_mutex);
  if (g_opened != nullptr) throw std::logic_error("a driver is already opened");
  auto opened = std::make_unique<Loaded>();
  opened->library = std::move(library);
  try {
    bringup_driver table = read();
    const std::string functions = driver::function_names(table);  // a trace may hide some
    // Below the checks: a trace has what the driver said, not what the checks made of it.
    if (!g_trace.path.empty()) table = driver::traced(table, path, g_trace);
    opened->table = driver::checked(table);
    opened->facts = facts_of(path, opened->table, driver::start(opened->table, kMaxDevices));
    opened->facts.functions = functions;
  } catch (const driver::Refused& why) {
    throw std::runtime_error("the driver " + path + " cannot be used: " + why.what());
  }
  g_opened = opened.release();
  return g_opened->facts;
}

struct HostFailures {
  std::mutex mutex;
  std::array<std::string, kMaxDevices> messages;
  std::atomic<bool> any{false};
};

HostFailures& host_failures() { return forever<HostFailures>(); }

}  // namespace

void set_driver_trace(const std::string& path, bool payload, uint64_t limit) {
  std::lock_guard lock(g_mutex);
  g_trace = {path, payload, limit};
}

DriverFacts open_driver(const std::string& path) {
  auto library = runtime::Library::open(path);
  const auto get =
      reinterpret_cast<bringup_driver_get_fn>(library->find_symbol("bringup_driver_get"));
  return open_and_start(path, library, [&] { return driver::read_table(get); });
}

DriverFacts open_driver_table(uintptr_t table, const std::string& path) {
  return open_and_start(path, nullptr, [&] {
    return driver::read_table(reinterpret_cast<const bringup_driver*>(table));
  });
}

void close_driver() {
  std::lock_guard lock(g_mutex);
  if (g_opened == nullptr || g_active.load() != nullptr) {
    throw std::logic_error("no driver is opened and not installed");
  }
  const std::unique_ptr<Loaded> closed(std::exchange(g_opened, nullptr));
  if (closed->table.shutdown != nullptr) closed->table.shutdown();
}

int32_t shut_down_driver() {
  driver::end_release_warnings();
  const auto shutdown = active_driver()->shutdown;
  return shutdown != nullptr ? shutdown() : BRINGUP_OK;
}

int32_t reset_device(c10::DeviceIndex device) {
  const bringup_driver& driver = *active_driver();
  device = checked_device(device);
  TORCH_CHECK(driver.device_reset != nullptr, "device '", driver_facts().device_name, ":",
              static_cast<int>(device),
              "' cannot be reset: its driver has no device_reset (BRINGUP_HAS_RESET of "
              "bringup/driver.h). Start the process anew");
  const int32_t status = driver.device_reset(device);
  if (status == BRINGUP_OK) take_host_failure(device);
  return status;
}

std::optional<bringup_pointer_info> driver_pointer_info(const void* address) {
  const bringup_driver& driver = *active_driver();
  if (driver.pointer_info == nullptr) return std::nullopt;
  bringup_pointer_info info{};
  info.struct_size = sizeof info;
  check_driver(driver.pointer_info(address, &info), "asking whose memory an address lies in");
  return info;
}

bool install_driver() {
  std::lock_guard lock(g_mutex);
  if (g_opened == nullptr || g_active.load() != nullptr) {
    throw std::logic_error("no driver waits to be installed");
  }
  require_free_backend();
  const auto device_count = static_cast<c10::DeviceIndex>(g_opened->facts.device_count);
  require_autograd_devices(device_count);
  g_active.store(g_opened, std::memory_order_release);
  pthread_atfork(nullptr, nullptr, [] { g_forked = true; });
  install_cpu_allocation_interceptor();
#define BRINGUP_REGISTER(part) register_##part();
  BRINGUP_DEVICE_PARTS(BRINGUP_REGISTER)
#undef BRINGUP_REGISTER
  return start_autograd_device_threads(device_count);
}

const bringup_driver* active_driver() noexcept {
  const Loaded* active = g_active.load(std::memory_order_acquire);
  return active != nullptr ? &active->table : nullptr;
}

const DriverFacts& driver_facts() noexcept {
  return g_active.load(std::memory_order_acquire)->facts;
}

bringup_device_props device_props(c10::DeviceIndex device) {
  bringup_device_props props{};
  props.struct_size = sizeof(props);
  check_driver(active_driver()->device_props(device, &props), "reading the device's properties");
  return props;
}

bool in_forked_child() noexcept { return g_forked.load(std::memory_order_relaxed); }

std::string driver_error_text(int32_t status) {
  return driver::error_text(*active_driver(), status);
}

std::string driver_failure_text(int32_t status, const char* what, const bringup_driver& driver) {
  std::string text = driver::error_text(driver, status);
  if (status == BRINGUP_KERNEL_FAILED) return text;  // it says which operator, which matters
  const bool resets = status == BRINGUP_DEVICE_LOST && driver.device_reset != nullptr;
  const char* next = resets ? ". reset_device() of the device's module makes it usable again; what "
                              "its tensors hold is lost"
                            : "";
  return std::string(what) + " failed on device '" + driver.device_name + "': " + text + next;
}

void check_driver(int32_t status, const char* what, const bringup_driver& driver) {
  if (C10_LIKELY(status == BRINGUP_OK)) return;
  const std::string text = driver_failure_text(status, what, driver);
  TORCH_CHECK_WITH(OutOfMemoryError, status != BRINGUP_OUT_OF_MEMORY, text);
  TORCH_CHECK(false, text);
}

void report_host_failure(c10::DeviceIndex device, std::string message) noexcept {
  HostFailures& failures = host_failures();
  std::lock_guard lock(failures.mutex);
  std::string& first = failures.messages[static_cast<size_t>(device)];
  if (first.empty()) first = std::move(message);
  failures.any.store(true, std::memory_order_release);
}

std::string take_host_failure(c10::DeviceIndex device) {
  HostFailures& failures = host_failures();
  if (C10_LIKELY(!failures.any.load(std::memory_order_acquire))) return "";
  std::lock_guard lock(failures.mutex);
  std::string message = std::exchange(failures.messages[static_cast<size_t>(device)], "");
  failures.any.store(std::any_of(failures.messages.begin(), failures.messages.end(),
                                 [](const std::string& text) { return !text.empty(); }));
  return message;
}

void raise_host_failure(c10::DeviceIndex device) {
  const std::string message = take_host_failure(device);
  TORCH_CHECK(message.empty(), message);
}

}  // namespace bringup::torch_ext
