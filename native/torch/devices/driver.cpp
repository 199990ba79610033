// Opening and checking a driver, making it torch's backend, and turning its statuses into errors.
#include "torch/devices/driver.h"

#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/util/Exception.h>
#include <pthread.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <mutex>
#include <stdexcept>
#include <utility>

#include "driver/checked.h"
#include "driver/traced.h"
#include "runtime/loader.h"
#include "torch/common/allocation.h"
#include "torch/common/torch_private.h"
#include "torch/devices/fill.h"
#include "torch/devices/layouts.h"
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

[[noreturn]] void refuse(const std::string& path, const std::string& why) {
  throw std::runtime_error("the driver " + path + " cannot be used: " + why);
}

template <typename Function>
void need(const std::string& path, Function function, const char* name) {
  if (function == nullptr) {
    refuse(path, "its required function '" + std::string(name) +
                     "' is NULL (bringup/driver.h says which functions are required)");
  }
}

void check_required(const std::string& path, const bringup_driver& table) {
#define BRINGUP_NEED(name) need(path, table.name, #name)
  BRINGUP_NEED(device_count);
  BRINGUP_NEED(device_props);
  BRINGUP_NEED(device_synchronize);
  BRINGUP_NEED(mem_alloc);
  BRINGUP_NEED(mem_free);
  BRINGUP_NEED(mem_info);
  BRINGUP_NEED(copy_async);
  BRINGUP_NEED(fill_async);
  BRINGUP_NEED(stream_create);
  BRINGUP_NEED(stream_destroy);
  BRINGUP_NEED(stream_synchronize);
  BRINGUP_NEED(stream_query);
  BRINGUP_NEED(event_create);
  BRINGUP_NEED(event_destroy);
  BRINGUP_NEED(event_record);
  BRINGUP_NEED(event_wait);
  BRINGUP_NEED(event_query);
  BRINGUP_NEED(event_synchronize);
  BRINGUP_NEED(event_elapsed);
#undef BRINGUP_NEED
}

const char* status_name(int32_t status) {
  switch (status) {
    case BRINGUP_OK:
      return "ok";
    case BRINGUP_INVALID:
      return "invalid argument";
    case BRINGUP_OUT_OF_MEMORY:
      return "out of memory";
    case BRINGUP_NOT_READY:
      return "not ready";
    case BRINGUP_UNSUPPORTED:
      return "unsupported";
    case BRINGUP_DEVICE_LOST:
      return "device lost";
    case BRINGUP_KERNEL_FAILED:
      return "kernel failed";
    case BRINGUP_ERROR:
      return "error";
    default:
      return "unknown status";
  }
}

std::string error_text_of(const bringup_driver& table, int32_t status) {
  const char* text = table.last_error != nullptr ? table.last_error() : nullptr;
  if (text != nullptr && *text != '\0') return text;
  return std::string(status_name(status)) + " (status " + std::to_string(status) + ")";
}

// The end of the last field that every version 1 table has: what follows is optional.
constexpr size_t kSmallestTable =
    offsetof(bringup_driver, event_elapsed) + sizeof(bringup_driver::event_elapsed);

bringup_driver read_table(const std::string& path, const runtime::Library& library) {
  const auto get =
      reinterpret_cast<bringup_driver_get_fn>(library.find_symbol("bringup_driver_get"));
  if (get == nullptr) refuse(path, "it exports no function 'bringup_driver_get'");
  const bringup_driver* given = get(BRINGUP_DRIVER_ABI);
  if (given == nullptr) {
    refuse(path, "it does not speak driver ABI " + std::to_string(BRINGUP_DRIVER_ABI));
  }
  if (given->struct_size < kSmallestTable) {
    refuse(path, "its function table is too small: " + std::to_string(given->struct_size) +
                     " bytes, at least " + std::to_string(kSmallestTable) + " are needed");
  }
  if (given->abi_version != BRINGUP_DRIVER_ABI) {
    refuse(path, "it is written for driver ABI " + std::to_string(given->abi_version) +
                     ", this is driver ABI " + std::to_string(BRINGUP_DRIVER_ABI));
  }
  bringup_driver table{};
  std::memcpy(&table, given, std::min<size_t>(given->struct_size, sizeof(table)));
  check_required(path, table);
  // Below the checks: a trace has what the driver said, not what the checks made of it.
  if (!g_trace.path.empty()) table = driver::traced(table, path, g_trace);
  return driver::checked(table);
}

std::string read_text(const std::string& path, const char* text, const char* what) {
  constexpr size_t kMost = 1024;
  if (text == nullptr) return "";
  const size_t length = strnlen(text, kMost);
  if (length == kMost) refuse(path, std::string("its ") + what + " does not end");
  return {text, length};
}

DriverFacts read_facts(const std::string& path, const bringup_driver& table) {
  DriverFacts facts;
  facts.path = path;
  facts.device_name = read_text(path, table.device_name, "device_name");
  facts.description = read_text(path, table.description, "description");
  const auto must = [&](int32_t status, const char* what) {
    if (status != BRINGUP_OK) refuse(path, std::string(what) + ": " + error_text_of(table, status));
  };
  must(table.device_count(&facts.device_count), "device_count");
  if (facts.device_count < 1) refuse(path, "it has no device");
  if (facts.device_count > kMaxDevices) {
    refuse(path, "it has " + std::to_string(facts.device_count) + " devices, at most " +
                     std::to_string(kMaxDevices) + " are supported");
  }
  facts.host_visible = table.host_view != nullptr;
  facts.runs_host_code = table.launch != nullptr;
  for (int32_t device = 0; device < facts.device_count; ++device) {
    bringup_device_props props{};
    props.struct_size = sizeof(props);
    must(table.device_props(device, &props), "device_props");
    facts.host_visible = facts.host_visible && props.host_visible_memory != 0;
    facts.runs_host_code = facts.runs_host_code && props.runs_host_code != 0;
    if (device == 0) facts.driver_version = props.driver_version;
    facts.absent_dtypes[static_cast<size_t>(device)] = absent_dtypes(props);
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
}

}  // namespace

void set_driver_trace(const std::string& path, bool payload, uint64_t limit) {
  std::lock_guard lock(g_mutex);
  g_trace = {path, payload, limit};
}

DriverFacts open_driver(const std::string& path) {
  std::lock_guard lock(g_mutex);
  if (g_active.load() != nullptr) throw std::logic_error("a driver is already installed");
  auto opened = std::make_unique<Loaded>();
  opened->library = runtime::Library::open(path);
  opened->table = read_table(path, *opened->library);
  opened->facts = read_facts(path, opened->table);
  delete g_opened;  // opened before, but refused for its name
  g_opened = opened.release();
  return g_opened->facts;
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
  register_allocator();
  register_host_allocator();
  register_guard();
  register_hooks();
  register_operators();
  register_layouts();
  register_copies();
  register_fills();
  register_fallback();
  register_autocast();
  register_profiler();
  register_recurrent_cells();
  register_attention_choice();
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

std::string driver_error_text(int32_t status) { return error_text_of(*active_driver(), status); }

std::string driver_failure_text(int32_t status, const char* what) {
  std::string text = driver_error_text(status);
  if (status == BRINGUP_KERNEL_FAILED) return text;  // it says which operator, which matters
  return std::string(what) + " failed on device '" + driver_facts().device_name + "': " + text;
}

void check_driver(int32_t status, const char* what) {
  if (C10_LIKELY(status == BRINGUP_OK)) return;
  const std::string text = driver_failure_text(status, what);
  TORCH_CHECK_WITH(OutOfMemoryError, status != BRINGUP_OUT_OF_MEMORY, text);
  TORCH_CHECK(false, text);
}

namespace {

struct HostFailures {
  std::mutex mutex;
  std::array<std::string, kMaxDevices> messages;
  std::atomic<bool> any{false};
};

HostFailures& host_failures() {
  static auto* failures = new HostFailures;
  return *failures;
}

}  // namespace

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
