// Kernel launches: device code goes to the driver, a host entry is called with the native stream.
#include <c10/core/DeviceGuard.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>
#include <c10/util/ScopeExit.h>

#include <atomic>
#include <fstream>
#include <iterator>
#include <map>
#include <mutex>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "driver/faults.h"
#include "driver/table.h"
#include "runtime/context.h"
#include "runtime/loader.h"
#include "runtime/values_code.h"
#include "runtime/view_refusal.h"
#include "torch/common/kernel_call.h"
#include "torch/devices/allocator.h"
#include "torch/devices/profiler.h"
#include "torch/devices/state.h"

namespace bringup::torch_ext {
namespace {

// From memory where the driver can: it need not find the file. A file that needs others beside it
// is only found by its path.
int32_t load_module(const bringup_driver& driver, c10::DeviceIndex device, const std::string& path,
                    void** module) {
  if (driver.module_load_data == nullptr) return driver.module_load(device, path.c_str(), module);
  std::ifstream file(path, std::ios::binary);
  const std::string content{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  const bool readable = file.good() && !content.empty();
  if (!readable) {
    TORCH_CHECK(driver.module_load != nullptr, "cannot read ", path);
    return driver.module_load(device, path.c_str(), module);
  }
  const int32_t status = driver.module_load_data(device, content.data(), content.size(), module);
  const bool refused = status == BRINGUP_INVALID || status == BRINGUP_UNSUPPORTED;
  if (!refused || driver.module_load == nullptr) return status;
  return driver.module_load(device, path.c_str(), module);
}

// Whether the driver has to load this kernel before it can start it.
bool loads_kernel(const bringup_driver& driver, const runtime::Kernel& kernel) {
  const bool loads = driver.module_load != nullptr || driver.module_load_data != nullptr;
  return kernel.library != nullptr && loads && driver.get_function != nullptr;
}

using runtime::ArgKind;

static_assert(static_cast<int>(ArgKind::kTensorList) == BRINGUP_ARG_TENSOR_LIST &&
                  static_cast<int>(ArgKind::kTensor) == BRINGUP_ARG_TENSOR,
              "the launch block and the driver ABI number the kinds of arguments alike");

std::atomic<bool> g_launch_blocking{false};

const bringup_driver& launching_driver(const char* operator_name) {
  const bringup_driver& driver = *active_driver();
  TORCH_CHECK(driver.launch != nullptr, "operator '", operator_name, "': the driver of device '",
              driver_facts().device_name, "' has no launch function, so it cannot run device code");
  return driver;
}

bringup_kernel_fn function_of(const LastingKernel& lasting, c10::DeviceIndex device,
                              const bringup_driver& driver = *active_driver()) {
  std::atomic<bringup_kernel_fn>& known = lasting.functions[static_cast<size_t>(device)];
  bringup_kernel_fn fn = known.load(std::memory_order_acquire);
  if (C10_UNLIKELY(fn == nullptr)) {
    fn = device_function(lasting.kernel, device, driver);
    known.store(fn, std::memory_order_release);
  }
  return fn;
}

// The kernel and its name last, so that only the arguments have to be kept.
void launch_device_code(const LastingKernel& lasting, runtime::LaunchBlock block, const Grid& grid,
                        c10::DeviceIndex device) {
  const bringup_driver& driver = launching_driver(lasting.name);
  bringup_launch launch{};
  launch.struct_size = sizeof(launch);
  launch.nargs = block.size();
  launch.args = block.args();
  launch.kinds = block.kinds();
  launch.fn = function_of(lasting, device);
  launch.grid = grid.blocks;
  launch.work_items = grid.work_items;
  launch.name = lasting.name;
  launch.flags = lasting.flags;
  launch.owner = block.detach();
  launch.release = &runtime::LaunchBlock::free_detached;
  check_driver(driver.launch(device, current_driver_stream(device), &launch), lasting.name);
}

// Scratch memory on the device, for work that a host entry starts on its stream. It goes back to
// the caching allocator when the entry has returned, which gives it to later work of that stream
// only.
class DeviceWorkspace final : public runtime::WorkspaceSource {
 public:
  explicit DeviceWorkspace(c10::Stream stream) : stream_(stream) {}

  void* take(size_t bytes) noexcept override try {
    const c10::StreamGuard guard(stream_);  // a thread of the kernel's has another one
    std::lock_guard lock(mutex_);
    return held_.emplace_back(allocate(bytes)).get();
  } catch (...) {
    return nullptr;  // the kernel says what that means for it
  }

 private:
  at::DataPtr allocate(size_t bytes) const {
    const c10::Device device = stream_.device();
    return device.is_privateuseone() ? allocate_block(bytes, device.index())
                                     : c10::GetAllocator(device.type())->allocate(bytes);
  }

  c10::Stream stream_;
  std::mutex mutex_;
  std::vector<at::DataPtr> held_;
};

// Of device code for torch's CUDA tensors. Never freed, as its library.
std::atomic<const bringup_driver*> g_cuda_launcher{nullptr};

// Torch makes the device current and a stream of it; the driver takes both as they are.
void launch_in_stream(const LastingKernel& lasting, void** args, const c10::Stream& stream) {
  const char* name = lasting.name;
  TORCH_CHECK(lasting.kernel->values->rules().empty(), name,
              ": args= has fault(), which no wait for a device of torch's looks at");
  const bringup_driver& driver = *g_cuda_launcher.load(std::memory_order_acquire);
  launch_with_values(lasting, args, nullptr,
                     {driver,
                      {runtime::kDlCuda, stream.device_index()},
                      static_cast<bringup_stream>(stream.native_handle()),
                      BRINGUP_VALUES_NATIVE_QUEUE});
  if (!g_launch_blocking) return;
  try {
    stream.synchronize();
  } catch (const c10::Error& error) {
    TORCH_CHECK(false, name, " failed on device '", stream.device(),
                "': ", error.what_without_backtrace());
  }
}

Launcher launcher_of(c10::DeviceIndex device) {
  return {*active_driver(), {runtime::kDlExtDev, device}, current_driver_stream(device)};
}

void launch_on_driver(const LastingKernel& lasting, void* const* args, c10::DeviceIndex device) {
  void* fault = fault_word_of(lasting, lasting.kernel->values->rules(), device);
  launch_with_values(lasting, args, fault, launcher_of(device));
}

}  // namespace

int32_t native_handle(c10::DeviceIndex device, bringup_stream stream, int32_t kind, void** handle) {
  const bringup_driver& driver = *active_driver();
  if (driver.native_handle == nullptr) return BRINGUP_UNSUPPORTED;
  return driver.native_handle(device, stream, kind, handle);
}

void register_native_handles() {
  runtime::set_native_handle([](DLDevice device, void* stream, int32_t kind, void** handle) {
    if (device.device_type != runtime::kDlExtDev) return int32_t{BRINGUP_UNSUPPORTED};
    return native_handle(static_cast<c10::DeviceIndex>(device.device_id),
                         static_cast<bringup_stream>(stream), kind, handle);
  });
}

void launch_with_values(const LastingKernel& lasting, void* const* args, void* fault,
                        const Launcher& launcher) {
  const bringup_driver& driver = launcher.driver;
  const auto device = static_cast<c10::DeviceIndex>(launcher.device.device_id);
  check_takes_values(*lasting.kernel, lasting.name, driver);
  const bringup_kernel_fn fn = function_of(lasting, device, driver);
  const runtime::HostContext context(launcher.device, launcher.stream);
  runtime::ValuesLaunch lowered;
  lowered.fault = fault;
  const char* reason = lasting.kernel->values->lower(args, context.get(), lowered);
  TORCH_CHECK(reason == nullptr, lasting.name, ": ", reason);
  check_device_has(lowered, lasting.name, device, driver);
  lowered.flags |= launcher.flags;
  const bringup_launch_values_args launch = lowered.arguments(fn, lasting.name);
  check_driver(driver.launch_values(device, launcher.stream, &launch), lasting.name, driver);
}

void check_device_has(const runtime::ValuesLaunch& launch, const char* operator_name,
                      c10::DeviceIndex device, const bringup_driver& driver) {
  if (C10_LIKELY(launch.cluster.x == 0 && launch.flags == 0)) return;
  bringup_device_props props{};
  props.struct_size = sizeof props;
  check_driver(driver.device_props(device, &props), operator_name, driver);
  const uint64_t blocks = uint64_t{launch.cluster.x} * launch.cluster.y * launch.cluster.z;
  TORCH_CHECK(blocks <= props.max_cluster, "operator '", operator_name, "' has clusters of ",
              blocks, " blocks (cluster=), and device '", driver.device_name, "' takes ",
              props.max_cluster == 0 ? "none" : std::to_string(props.max_cluster) + " at most");
  TORCH_CHECK((launch.flags & ~props.values_flags) == 0, "operator '", operator_name,
              "' starts all its blocks at the same time (cooperative=), which device '",
              driver.device_name, "' does not do");
}

bringup_kernel_fn device_function(const std::shared_ptr<const runtime::Kernel>& kernel,
                                  c10::DeviceIndex device, const bringup_driver& driver) {
  if (!loads_kernel(driver, *kernel)) {
    TORCH_CHECK(kernel->run != nullptr, "kernel '", kernel->name, "' of ", kernel->library->path(),
                " is in a form that only a driver can load, and that of device '",
                driver.device_name,
                "' has no functions for it (module_load or module_load_data, and get_function)");
    return kernel->run;
  }
  struct Loaded {
    std::shared_ptr<const runtime::Kernel> kernel;  // or another one could get its address
    bringup_kernel_fn fn;
  };
  static std::mutex mutex;
  using Key = std::tuple<const bringup_driver*, const runtime::Kernel*, c10::DeviceIndex>;
  static auto* functions = new std::map<Key, Loaded>;
  {
    std::lock_guard lock(mutex);
    const auto known = functions->find({&driver, kernel.get(), device});
    if (known != functions->end()) return known->second.fn;
  }
  const std::string what = "loading kernel '" + kernel->name + "' of " + kernel->library->path();
  void* module = nullptr;
  check_driver(load_module(driver, device, kernel->library->path(), &module), what.c_str(), driver);
  auto unload = c10::make_scope_exit([&] {
    if (driver.module_unload != nullptr) driver.module_unload(module);
  });
  bringup_kernel_fn fn = nullptr;
  check_driver(driver.get_function(module, kernel->name.c_str(), &fn), what.c_str(), driver);
  if (&driver == active_driver() && driver_facts().runs_host_code) {
    runtime::let_views_refuse(reinterpret_cast<const void*>(fn));
  }
  std::lock_guard lock(mutex);
  const auto [known, is_first] =
      functions->try_emplace({&driver, kernel.get(), device}, Loaded{kernel, fn});
  if (is_first) unload.release();  // else another thread was first
  return known->second.fn;
}

void check_takes_values(const runtime::Kernel& kernel, const char* operator_name,
                        const bringup_driver& driver) {
  TORCH_CHECK(driver.launch_values != nullptr, "operator '", operator_name,
              "' is device code with plain arguments (block=), and the driver of device '",
              driver.device_name,
              "' does not take these (BRINGUP_HAS_LAUNCH_VALUES of bringup/driver.h): leave block= "
              "out, and the driver gets kernel.h's arguments");
  TORCH_CHECK(loads_kernel(driver, kernel), "operator '", operator_name,
              "': the driver of device '", driver.device_name,
              "' has no functions that load device code (module_load, get_function)");
}

void* fault_word_of(const std::vector<std::string>& rules, const char* operator_name,
                    c10::DeviceIndex device) {
  if (C10_LIKELY(rules.empty())) return nullptr;
  void* word = nullptr;
  check_driver(driver::fault_word(device, operator_name, rules, &word), operator_name);
  return word;
}

void* fault_word_of(const LastingKernel& lasting, const std::vector<std::string>& rules,
                    c10::DeviceIndex device) {
  std::atomic<void*>& known = lasting.fault_words[static_cast<size_t>(device)];
  void* word = known.load(std::memory_order_acquire);
  if (C10_UNLIKELY(word == nullptr)) {
    word = fault_word_of(rules, lasting.name, device);
    known.store(word, std::memory_order_release);
  }
  return word;
}

void launch_values(const LastingKernel& lasting, void* const* args, c10::DeviceIndex device) {
  {
    const ProfiledWork work(lasting.name, current_stream(device));
    launch_on_driver(lasting, args, device);
  }
  if (g_launch_blocking) synchronize_current_stream(device, lasting.name);
}

bringup_launch_values_args PlainLaunch::arguments() const {
  bringup_launch_values_args launch{};
  launch.struct_size = sizeof launch;
  launch.nvalues = static_cast<int32_t>(values.size());
  launch.values = values.data();
  launch.fn = function_of(kernel, device);
  launch.grid = {static_cast<uint32_t>(blocks), 1, 1};
  launch.block = {static_cast<uint32_t>(threads), 1, 1};
  if (threads == 1) launch.work_items = launch.grid;
  launch.name = kernel.name;
  return launch;
}

void launch_plain_values(const PlainLaunch& launch) {
  const c10::DeviceIndex device = launch.device;
  const bringup_launch_values_args arguments = launch.arguments();
  {
    const ProfiledWork work(arguments.name, current_stream(device));
    check_driver(active_driver()->launch_values(device, current_driver_stream(device), &arguments),
                 arguments.name);
  }
  if (g_launch_blocking) synchronize_current_stream(device, arguments.name);
}

bool launches_values() noexcept {
  const bringup_driver& driver = *active_driver();
  const bool loads = driver.module_load != nullptr || driver.module_load_data != nullptr;
  return driver.launch_values != nullptr && loads && driver.get_function != nullptr;
}

void set_launch_blocking(bool blocking) noexcept { g_launch_blocking = blocking; }

bool launched_by_driver(const runtime::Kernel& kernel) noexcept {
  return kernel.kind == runtime::KernelKind::kDeviceCode || driver_facts().runs_host_code;
}

void open_cuda_launcher(const std::string& path) {
  const auto library = runtime::Library::open(path);
  const auto get =
      reinterpret_cast<bringup_driver_get_fn>(library->find_symbol("bringup_driver_get"));
  try {
    auto table = std::make_unique<bringup_driver>(driver::read_table(get));
    table->device_name = "cuda";
    for (const bringup_device_props& props : driver::start(*table, kMaxDevices).devices) {
      if ((props.values_flags & BRINGUP_VALUES_NATIVE_QUEUE) != 0) continue;
      throw driver::Refused("it takes no streams of torch's (BRINGUP_VALUES_NATIVE_QUEUE)");
    }
    new std::shared_ptr<runtime::Library>(library);
    g_cuda_launcher.store(table.release(), std::memory_order_release);
  } catch (const driver::Refused& why) {
    throw std::runtime_error("the driver " + path + " cannot be used: " + why.what());
  }
}

void call_on_cuda(const LastingKernel& lasting, void** args, int32_t count, c10::Device device) {
  const c10::DeviceGuard guard(device);  // a launch goes to the current device
  const c10::impl::VirtualGuardImpl cuda(device.type());
  const c10::Stream stream = cuda.getStream(device);
  if (lasting.kernel->values != nullptr) return launch_in_stream(lasting, args, stream);
  DeviceWorkspace workspace(stream);
  const runtime::HostContext context({runtime::kDlCuda, device.index()}, stream.native_handle(), 0,
                                     1, &workspace);
  call_kernel(lasting.kernel->run, args, count, context.get(), lasting.name);
}

void call_host_entry(const runtime::Kernel& kernel, void** args, int32_t count,
                     c10::DeviceIndex device, const char* operator_name) {
  const ProfiledWork work(ProfiledHostEntry{operator_name}, current_stream(device));
  DeviceWorkspace workspace(current_stream(device));
  const runtime::HostContext context({runtime::kDlExtDev, device}, current_driver_stream(device), 0,
                                     1, &workspace);
  call_kernel(kernel.run, args, count, context.get(), operator_name);
}

void launch_kernel(const LastingKernel& lasting, runtime::LaunchBlock block, const Grid& grid,
                   c10::DeviceIndex device) {
  if (launched_by_driver(*lasting.kernel)) {
    const ProfiledWork work(lasting.name, current_stream(device));
    if (lasting.kernel->values != nullptr) {
      launch_on_driver(lasting, block.args(), device);
    } else {
      launch_device_code(lasting, std::move(block), grid, device);
    }
  } else {
    call_host_entry(*lasting.kernel, block.args(), block.size(), device, lasting.name);
  }
  if (g_launch_blocking) synchronize_current_stream(device, lasting.name);
}

}  // namespace bringup::torch_ext
