// The simulated NPU's function table: every function checks its arguments and hands over to the
// simulator.
#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <thread>

#include "bringup/driver.h"
#include "driver/functions.h"
#include "sim/capability_functions.h"
#include "sim/faulty_driver.h"
#include "sim/handles.h"
#include "sim/host_ranges.h"
#include "sim/simulator.h"
#include "sim/values_launch.h"

namespace bringup::sim {
namespace {

constexpr size_t kPinnedAlignment = 4096;

CopyTask copy_task(bringup_copy_kind kind, void* dst, const void* src, size_t bytes) {
  require(kind == BRINGUP_HOST_TO_DEVICE || kind == BRINGUP_DEVICE_TO_HOST ||
              kind == BRINGUP_DEVICE_TO_DEVICE,
          "a copy of an unknown kind");
  CopyTask task{dst, src, bytes};
  if (bytes == 0) return task;
  if (kind != BRINGUP_DEVICE_TO_HOST)
    task.dst = simulator().range(dst, bytes, "the target of a copy");
  if (kind != BRINGUP_HOST_TO_DEVICE)
    task.src = simulator().range(src, bytes, "the source of a copy");
  return task;
}

// The stream that a copy is given to: of the source, when it is on a device.
std::shared_ptr<Stream> copy_stream(bringup_copy_kind kind, int32_t dst_device, int32_t src_device,
                                    bringup_stream stream) {
  const int32_t device = kind == BRINGUP_HOST_TO_DEVICE ? dst_device : src_device;
  return simulator().stream(device, stream);
}

// --- device

void device_count(int32_t* count) {
  simulator();
  *count = kDeviceCount;
}

void device_props(int32_t device, bringup_device_props* props) {
  const DeviceMemory& memory = simulator().memory(device);
  bringup_device_props all{};
  all.struct_size = props->struct_size;
  std::strncpy(all.name, "Simulated NPU", sizeof(all.name) - 1);
  std::strncpy(all.arch, simulator().arch(device).c_str(), sizeof(all.arch) - 1);
  all.total_memory = memory.capacity();
  all.core_count = std::max(1u, std::thread::hardware_concurrency());
  all.supports_float64 = 1;
  all.supports_int64 = 1;
  all.host_visible_memory = memory.isolated() ? 0 : 1;
  all.runs_host_code = simulator().runs_host_code() ? 1 : 0;
  all.alignment = DeviceMemory::kAlignment;
  std::memcpy(all.uuid, "bringup-sim-npu", sizeof(all.uuid));
  all.uuid[sizeof(all.uuid) - 1] = static_cast<uint8_t>(device);
  std::strncpy(all.driver_version, "1.1", sizeof(all.driver_version) - 1);
  all.least_priority = kLeastPriority;
  all.greatest_priority = kGreatestPriority;
  std::copy(std::begin(kMaxGrid), std::end(kMaxGrid), all.max_grid);
  std::copy(std::begin(kMaxBlock), std::end(kMaxBlock), all.max_block);
  all.max_block_threads = kMaxBlockThreads;
  all.max_shared_bytes = kMaxSharedBytes;
  all.max_allocation = memory.capacity();
  std::memcpy(props, &all, std::min<size_t>(props->struct_size, sizeof(all)));
}

void device_synchronize(int32_t device) {
  may_wait();
  simulator().synchronize(device);
}

// --- memory

void mem_alloc(int32_t device, size_t bytes, void** address) {
  require(bytes > 0, "an allocation of 0 bytes");
  DeviceMemory& memory = simulator().memory(device);
  *address = memory.allocate(bytes);
  if (*address != nullptr) return;
  refuse(BRINGUP_OUT_OF_MEMORY, "device ", device, " has no range of ", bytes, " bytes free (",
         memory.free_bytes(), " of ", memory.capacity(), " bytes are free)");
}

void mem_free(int32_t device, void* address) {
  require(simulator().memory(device).release(address),
          "an address was freed that is not the start of an allocation of that device");
}

void mem_info(int32_t device, size_t* free_bytes, size_t* total_bytes) {
  const DeviceMemory& memory = simulator().memory(device);
  *free_bytes = memory.free_bytes();
  *total_bytes = memory.capacity();
}

void copy_async(bringup_copy_kind kind, int32_t dst_device, void* dst, int32_t src_device,
                const void* src, size_t bytes, bringup_stream stream) {
  copy_stream(kind, dst_device, src_device, stream)->enqueue(copy_task(kind, dst, src, bytes));
}

void copy_2d_async(bringup_copy_kind kind, int32_t dst_device, void* dst, size_t dst_pitch,
                   int32_t src_device, const void* src, size_t src_pitch, size_t width,
                   size_t height, bringup_stream stream) {
  require(dst_pitch >= width && src_pitch >= width, "a copy of rows that overlap each other");
  if (width == 0 || height == 0) return;
  const auto span = [&](size_t pitch) { return (height - 1) * pitch + width; };
  auto queue = copy_stream(kind, dst_device, src_device, stream);
  const CopyTask to = copy_task(kind, dst, src, width);
  RowCopyTask task{static_cast<std::byte*>(to.dst),
                   dst_pitch,
                   static_cast<const std::byte*>(to.src),
                   src_pitch,
                   width,
                   height};
  if (kind != BRINGUP_DEVICE_TO_HOST)
    simulator().range(dst, span(dst_pitch), "the target of a copy");
  if (kind != BRINGUP_HOST_TO_DEVICE)
    simulator().range(src, span(src_pitch), "the source of a copy");
  queue->enqueue(task);
}

void fill_async(int32_t device, void* dst, uint8_t value, size_t bytes, bringup_stream stream) {
  if (bytes == 0) return;
  auto queue = simulator().stream(device, stream);
  queue->enqueue(FillTask{simulator().range(dst, bytes, "the target of a fill"), value, bytes});
}

void fill_wide_async(int32_t device, void* dst, const void* pattern, uint32_t size, size_t count,
                     bringup_stream stream) {
  require(size <= 16 && std::has_single_bit(size),
          "a fill with a pattern of another size than "
          "1, 2, 4, 8 or 16 bytes");
  require(reinterpret_cast<uintptr_t>(dst) % size == 0,
          "a fill of memory that is not aligned to the pattern");
  if (count == 0) return;
  auto queue = simulator().stream(device, stream);
  WideFillTask task{simulator().range(dst, size * count, "the target of a fill"), {}, size, count};
  std::memcpy(task.pattern.data(), pattern, size);
  queue->enqueue(task);
}

// --- streams

void stream_create(int32_t device, int32_t priority, bringup_stream* stream) {
  *stream = simulator().create_stream(device, priority);
}

void stream_destroy(bringup_stream stream) {
  may_wait();
  require(stream != nullptr, "the default stream cannot be destroyed");
  simulator().destroy_stream(stream);
}

void stream_synchronize(int32_t device, bringup_stream stream) {
  may_wait();
  simulator().stream(device, stream)->synchronize();
}

int32_t stream_query(int32_t device, bringup_stream stream) {
  const auto queue = simulator().stream(device, stream);
  queue->refuse_in_capture("a question for the end of its work");
  queue->demand();
  return queue->idle() ? BRINGUP_OK : BRINGUP_NOT_READY;
}

// --- events

void event_create(int32_t device, int32_t timing, bringup_event* event) {
  simulator().memory(device);
  auto* holder =
      std::make_unique<std::shared_ptr<Event>>(std::make_shared<Event>(timing != 0)).release();
  *event = reinterpret_cast<bringup_event>(holder);
}

void event_destroy(bringup_event event) {
  const std::unique_ptr<std::shared_ptr<Event>> holder(&event_of(event));
}

void event_record(bringup_event event, int32_t device, bringup_stream stream) {
  simulator().stream(device, stream)->record(event_of(event));
}

void event_wait(bringup_event event, int32_t device, bringup_stream stream) {
  auto record = event_of(event)->last();
  auto queue = simulator().stream(device, stream);
  if (record != nullptr && (!record->done() || record->failure() != nullptr)) {
    queue->enqueue(WaitTask{std::move(record)});
  }
}

int32_t event_query(bringup_event event) {
  simulator();
  const auto record = event_of(event)->last();
  if (record == nullptr) return BRINGUP_OK;
  record->demand();
  return record->done() ? BRINGUP_OK : BRINGUP_NOT_READY;
}

void event_synchronize(bringup_event event) {
  may_wait();
  simulator();
  const auto record = event_of(event)->last();
  if (record == nullptr) return;
  record->wait();
  if (auto stream = record->stream()) stream->raise_failure();
}

int32_t event_elapsed(bringup_event start, bringup_event end, double* milliseconds) {
  simulator();
  int64_t times[2] = {};
  for (size_t i = 0; const bringup_event handle : {start, end}) {
    const auto record = event_of(handle)->last();
    require(event_of(handle)->timing(), "both events need timing to tell the time between them");
    require(record != nullptr, "both events must be recorded to tell the time between them");
    if (!record->done()) return BRINGUP_NOT_READY;
    times[i++] = record->time();
  }
  *milliseconds = static_cast<double>(times[1] - times[0]) / 1e6;
  return BRINGUP_OK;
}

const char* last_error() { return last_error_text().c_str(); }

// --- optional groups

void host_alloc(size_t bytes, void** address) {
  const size_t rounded = (bytes + kPinnedAlignment - 1) / kPinnedAlignment * kPinnedAlignment;
  *address = std::aligned_alloc(kPinnedAlignment, rounded);
  if (*address == nullptr) throw std::bad_alloc();
  host_ranges().add(*address, rounded, false);
}

int32_t host_free(void* address) {
  host_ranges().remove(address, false);
  std::free(address);
  return BRINGUP_OK;
}

void host_view(int32_t device, const void* address, void** host_address) {
  const DeviceMemory& memory = simulator().memory(device);
  if (memory.isolated()) {
    throw SimError(BRINGUP_UNSUPPORTED,
                   "device memory is isolated from the host (BRINGUP_SIM_ISOLATED=1)");
  }
  require(memory.contains(address), "a host view was asked for an address outside that device");
  *host_address = memory.worker_address(address);
}

void host_func(int32_t device, bringup_stream stream, void (*fn)(void* user), void* user) {
  simulator().stream(device, stream)->enqueue(HostTask{fn, user});
}

void module_load(int32_t device, const char* library, void** module) {
  simulator().memory(device);
  *module = dlopen(library, RTLD_NOW | RTLD_LOCAL);
  if (*module != nullptr) return;
  const char* reason = dlerror();
  throw SimError(BRINGUP_INVALID,
                 reason != nullptr ? reason : std::string("cannot load ") + library);
}

// A path that leads to the open file and that no other module of the process has: dlopen takes two
// equal ones for one library. So the number of the module is written into it.
std::string path_of(int file, uint64_t number) {
  std::string path = "/proc/self/fd";
  for (; number != 0; number /= 2) path += number % 2 != 0 ? "//." : "/.";
  return path + "/" + std::to_string(file);
}

void module_load_data(int32_t device, const void* data, size_t bytes, void** module) {
  static std::atomic<uint64_t> modules{1};
  simulator().memory(device);
  const int file = memfd_create("bringup-kernel", MFD_CLOEXEC);
  require(file >= 0, "no memory file for a module");
  const auto* next = static_cast<const char*>(data);
  size_t left = bytes;
  while (left > 0) {
    const ssize_t written = write(file, next, left);
    if (written < 0) break;
    next += written;
    left -= static_cast<size_t>(written);
  }
  *module = left == 0 ? dlopen(path_of(file, modules++).c_str(), RTLD_NOW | RTLD_LOCAL) : nullptr;
  const char* reason = left == 0 ? dlerror() : "the module does not fit into memory";
  close(file);
  if (*module != nullptr) return;
  throw SimError(BRINGUP_INVALID, reason != nullptr ? reason : "cannot load a module");
}

int32_t module_unload(void* module) { return dlclose(module) == 0 ? BRINGUP_OK : BRINGUP_INVALID; }

void get_function(void* module, const char* name, bringup_kernel_fn* fn) {
  *fn = reinterpret_cast<bringup_kernel_fn>(dlsym(module, name));
  if (*fn != nullptr) return;
  refuse(BRINGUP_INVALID, "the module exports no function '", name, "'");
}

void check_blocks(const bringup_launch& launch) {
  require(launch.grid >= 1, "a launch over less than one block");
  const int64_t work_items = read_launch(launch).work_items;
  require(work_items == 0 || work_items >= launch.grid, "a launch of more blocks than work items");
}

void check_launch(const bringup_launch& launch) {
  require(launch.struct_size >= offsetof(bringup_launch, flags),
          "a launch with a struct_size too small");
  require(launch.fn != nullptr, "a launch without a function");
  check_blocks(launch);
}

void launch(int32_t device, bringup_stream stream, const bringup_launch* launch) {
  OwnedLaunch owned(*launch);
  check_launch(*launch);
  simulator().stream(device, stream)->enqueue(std::move(owned));
}

// --- graphs

void graph_create(int32_t device, bringup_graph* graph) {
  simulator().memory(device);
  auto* holder =
      std::make_unique<std::shared_ptr<Graph>>(std::make_shared<Graph>(device)).release();
  *graph = reinterpret_cast<bringup_graph>(holder);
}

void graph_destroy(bringup_graph graph) {
  const std::unique_ptr<std::shared_ptr<Graph>> holder(&graph_of(graph));
}

void graph_add_kernel(bringup_graph graph, const bringup_launch* launch) {
  OwnedLaunch owned(*launch);
  check_launch(*launch);
  graph_of(graph)->add(std::move(owned));
}

void graph_add_copy(bringup_graph graph, bringup_copy_kind kind, void* dst, const void* src,
                    size_t bytes) {
  graph_of(graph)->add(copy_task(kind, dst, src, bytes));
}

void graph_add_host_func(bringup_graph graph, void (*fn)(void* user), void* user) {
  graph_of(graph)->add(HostTask{fn, user});
}

void graph_launch(bringup_graph graph, bringup_stream stream) {
  const std::shared_ptr<Graph> shared = graph_of(graph);
  simulator().stream(shared->device(), stream)->enqueue(GraphTask{shared, shared->kernels()});
}

void graph_update_kernel(bringup_graph graph, int32_t kernel, const bringup_launch* launch) {
  check_blocks(*launch);
  graph_of(graph)->update(kernel, *launch);
}

// --- profiler

void profiler_start(int32_t device) { simulator().work_log(device).start(); }

void profiler_stop(int32_t device) { simulator().work_log(device).stop(); }

void profiler_read(int32_t device, bringup_record* records, int32_t capacity, int32_t* count,
                   uint64_t* lost) {
  *count = simulator().work_log(device).read(records, capacity, *lost);
}

// Every function that there is.
const bringup_driver& own_table() {
  static const bringup_driver made = [] {
    bringup_driver table{};
    table.struct_size = sizeof table;
    table.abi_version = BRINGUP_DRIVER_ABI;
    table.device_name = "npu";
    table.description =
        "bringup's simulated NPU: two devices with memory and streams of their own, on the host";
    table.last_error = last_error;
#define BRINGUP_SIM_HAS(function, parameters, ...) \
  table.function = guarded_call<function>;         \
  __VA_OPT__(table.capabilities |= BRINGUP_HAS_##__VA_ARGS__;)
    BRINGUP_DRIVER_FUNCTIONS(BRINGUP_SIM_HAS)
#undef BRINGUP_SIM_HAS
    return table;
  }();
  return made;
}

}  // namespace
}  // namespace bringup::sim

BRINGUP_EXPORT const bringup_driver* bringup_driver_get(uint32_t abi_version) {
  static const bringup_driver table = bringup::sim::with_faults(bringup::sim::own_table());
  return abi_version == BRINGUP_DRIVER_ABI ? &table : nullptr;
}
