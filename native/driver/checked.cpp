#include "driver/checked.h"

#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <optional>
#include <string>

#include "driver/call.h"
#include "driver/functions.h"
#include "driver/table.h"

namespace bringup::driver {
namespace {

// A handle that was just made.
int32_t made(const char* function, Handles& handles, const void* handle, int32_t device) {
  if (handle == nullptr) return broken(function, "returned BRINGUP_OK and no handle");
  if (handles.add(handle, device)) return BRINGUP_OK;
  return broken(function, "gave a handle that is still in use: each has to be its own");
}

const char* last_error();

// The status of a function that ends a handle. No exception can report a failure,
// because destructors call it, so each function warns once.
int32_t ended(const char* function, int32_t status, std::atomic_flag& warned) {
  status = known(function, status);
  if (status == BRINGUP_OK || state().ending || warned.test_and_set()) return status;
  const std::string text = *last_error() != '\0' ? last_error() : status_name(status);
  std::fprintf(stderr,
               "bringup: the driver's %s failed (%s), and the driver keeps what it should have "
               "given back. This is reported once; BRINGUP_DRIVER_TRACE=FILE shows every call\n",
               function, text.c_str());
  std::fflush(stderr);
  return status;
}

// --- device

int32_t device_count(int32_t* count) {
  const Call call("device_count");
  *count = 0;
  const int32_t status = known("device_count", real().device_count(count));
  state().device_count = *count;
  return status;
}

// What is wrong with the properties, or nothing.
std::optional<std::string> contradiction(const bringup_device_props& props) {
  if (!ends(props.name)) return "gave a name without an end";
  if (!ends(props.arch)) return "gave an arch without an end";
  if (!ends(props.driver_version)) return "gave a driver_version without an end";
  if (props.total_memory == 0) return "says that the device has no memory";
  if (props.max_allocation > props.total_memory) {
    return "says that one allocation has up to " + std::to_string(props.max_allocation) +
           " bytes, more than the " + std::to_string(props.total_memory) + " of the device";
  }
  const uint32_t alignment = props.alignment;
  if (alignment != 0 && (alignment < 64 || (alignment & (alignment - 1)) != 0)) {
    return "gave the alignment " + std::to_string(alignment) +
           ", which is no power of two of at least 64";
  }
  constexpr uint64_t kAlways = BRINGUP_DTYPE_INT64 | BRINGUP_DTYPE_BOOL;
  if (props.dtypes != 0 && (props.dtypes & kAlways) != kAlways) {
    return "gave dtypes without int64 or bool, which torch needs on every device";
  }
  if (props.greatest_priority > 0 || props.least_priority < 0) {
    return "gave stream priorities from " + std::to_string(props.greatest_priority) +
           " (greatest) to " + std::to_string(props.least_priority) +
           " (least), which do not hold 0";
  }
  return std::nullopt;
}

int32_t device_props(int32_t device, bringup_device_props* props) {
  const Call call("device_props", device);
  Given<bringup_device_props> given;
  const int32_t status = known("device_props", real().device_props(device, &given.value));
  if (status != BRINGUP_OK) return status;
  if (!given.is_intact()) {
    return broken("device_props", "wrote behind the structure that it was given");
  }
  if (const auto why = contradiction(given.value)) return broken("device_props", *why);
  state().segments.set_alignment(device, given.value.alignment);
  state().segments.set_capacity(device, given.value.total_memory);
  given.copy_to(props);
  return BRINGUP_OK;
}

std::string name_of(int32_t device, const void* stream) {
  char text[64];
  std::snprintf(text, sizeof text, "work of stream %p of device %d", stream, device);
  return text;
}

// Waits for a stream no longer than the limit. BRINGUP_TIMEOUT and words when it is over; nothing
// when the work has ended and stream_synchronize is still to say how.
std::optional<int32_t> wait_for_stream(const char* function, int32_t device,
                                       bringup_stream stream) {
  if (real().stream_wait_for != nullptr) {
    const int32_t status = real().stream_wait_for(device, stream, wait_limit().count());
    if (status != BRINGUP_TIMEOUT) return known("stream_wait_for", status);
    too_long(function, name_of(device, stream));
    return BRINGUP_TIMEOUT;
  }
  int32_t status = BRINGUP_OK;
  const auto is_over = [&] {
    status = real().stream_query(device, stream);
    return status != BRINGUP_NOT_READY;
  };
  if (!wait_until(is_over)) {
    too_long(function, name_of(device, stream));
    return BRINGUP_TIMEOUT;
  }
  if (status != BRINGUP_OK) return known("stream_query", status);
  return std::nullopt;
}

int32_t wait_for_device(int32_t device) {
  int32_t first = BRINGUP_OK;  // every stream is waited for, whatever another one did
  if (wait_limit().count() != 0) {
    std::vector<const void*> all = state().streams.of(device);
    all.push_back(nullptr);
    for (const void* stream : all) {
      const int32_t status = wait_for_stream("device_synchronize", device,
                                             static_cast<bringup_stream>(const_cast<void*>(stream)))
                                 .value_or(BRINGUP_OK);
      if (status == BRINGUP_TIMEOUT) return BRINGUP_ERROR;
      if (status == BRINGUP_OK || first != BRINGUP_OK) continue;
      keep_words();
      first = status;
    }
  }
  const int32_t status = known("device_synchronize", real().device_synchronize(device));
  return first != BRINGUP_OK ? first : status;
}

int32_t device_synchronize(int32_t device) {
  const Call call("device_synchronize", device);
  return state().faults.watch(device, nullptr, true, [&] { return wait_for_device(device); });
}

// --- memory

int32_t mem_alloc(int32_t device, size_t bytes, void** address) {
  const Call call("mem_alloc", device);
  if (state().counts_memory && !state().segments.has_room(device, bytes)) {
    *address = nullptr;
    return fail(BRINGUP_OUT_OF_MEMORY, bytes,
                " bytes more than are live are beyond the total_memory of device ", device,
                ", of which the driver cannot say what is free");
  }
  return memory_from("mem_alloc", bytes, device, address,
                     [&] { return real().mem_alloc(device, bytes, address); });
}

int32_t mem_free(int32_t device, void* address) {
  return memory_back("mem_free", device, address, real().mem_free);
}

int32_t mem_info(int32_t device, size_t* free_bytes, size_t* total_bytes) {
  const Call call("mem_info", device);
  *free_bytes = *total_bytes = 0;
  const int32_t status = known("mem_info", real().mem_info(device, free_bytes, total_bytes));
  if (status != BRINGUP_OK || *free_bytes <= *total_bytes) return status;
  return broken("mem_info", "says that ", *free_bytes, " bytes of ", *total_bytes, " are free");
}

int32_t copy_async(bringup_copy_kind kind, int32_t dst_device, void* dst, int32_t src_device,
                   const void* src, size_t bytes, bringup_stream stream) {
  const int32_t device = kind == BRINGUP_HOST_TO_DEVICE ? dst_device : src_device;
  const Call call("copy_async", device, stream);
  return give_work("copy_async", device, stream, [&] {
    return real().copy_async(kind, dst_device, dst, src_device, src, bytes, stream);
  });
}

int32_t fill_async(int32_t device, void* dst, uint8_t value, size_t bytes, bringup_stream stream) {
  const Call call("fill_async", device, stream);
  return give_work("fill_async", device, stream,
                   [&] { return real().fill_async(device, dst, value, bytes, stream); });
}

// --- streams and events

int32_t stream_create(int32_t device, int32_t priority, bringup_stream* stream) {
  const Call call("stream_create", device);
  *stream = nullptr;
  const int32_t status = known("stream_create", real().stream_create(device, priority, stream));
  return status == BRINGUP_OK ? made("stream_create", state().streams, *stream, device) : status;
}

int32_t stream_destroy(bringup_stream stream) {
  const Call call("stream_destroy", -1, stream);
  state().streams.remove(stream);
  static std::atomic_flag warned;
  return ended("stream_destroy", real().stream_destroy(stream), warned);
}

int32_t stream_synchronize(int32_t device, bringup_stream stream) {
  const Call call("stream_synchronize", device, stream);
  return state().faults.watch(device, stream, false, [&] {
    if (wait_limit().count() != 0) {
      const auto ended = wait_for_stream("stream_synchronize", device, stream);
      if (ended.has_value()) return *ended == BRINGUP_TIMEOUT ? BRINGUP_ERROR : *ended;
    }
    return known("stream_synchronize", real().stream_synchronize(device, stream));
  });
}

int32_t stream_query(int32_t device, bringup_stream stream) {
  const Call call("stream_query", device, stream);
  return known("stream_query", real().stream_query(device, stream), true);
}

int32_t event_create(int32_t device, int32_t timing, bringup_event* event) {
  const Call call("event_create", device);
  *event = nullptr;
  if (timing != 0 && !state().has_timing) {
    return fail(BRINGUP_UNSUPPORTED,
                "the driver has no event_elapsed, so an event cannot have timing: expected one "
                "without enable_timing=True");
  }
  const int32_t status = known("event_create", real().event_create(device, timing, event));
  return status == BRINGUP_OK ? made("event_create", state().events, *event, device) : status;
}

int32_t event_destroy(bringup_event event) {
  const Call call("event_destroy");
  state().events.remove(event);
  static std::atomic_flag warned;
  return ended("event_destroy", real().event_destroy(event), warned);
}

int32_t event_record(bringup_event event, int32_t device, bringup_stream stream) {
  const Call call("event_record", device, stream);
  return known("event_record", real().event_record(event, device, stream));
}

int32_t event_wait(bringup_event event, int32_t device, bringup_stream stream) {
  const Call call("event_wait", device, stream);
  gave(device, stream);
  return known("event_wait", real().event_wait(event, device, stream));
}

int32_t event_query(bringup_event event) {
  const Call call("event_query");
  return known("event_query", real().event_query(event), true);
}

// No longer than the limit, as wait_for_stream.
std::optional<int32_t> wait_for_event(bringup_event event) {
  constexpr const char* kWhat = "what the event was recorded after";
  if (real().event_wait_for != nullptr) {
    const int32_t status = real().event_wait_for(event, wait_limit().count());
    if (status != BRINGUP_TIMEOUT) return known("event_wait_for", status);
    return too_long("event_synchronize", kWhat);
  }
  int32_t status = BRINGUP_OK;
  const auto is_over = [&] {
    status = real().event_query(event);
    return status != BRINGUP_NOT_READY;
  };
  if (!wait_until(is_over)) return too_long("event_synchronize", kWhat);
  if (status != BRINGUP_OK) return known("event_query", status);
  return std::nullopt;
}

int32_t event_synchronize(bringup_event event) {
  const Call call("event_synchronize");
  return state().faults.watch(-1, nullptr, false, [&] {
    if (wait_limit().count() != 0) {
      const auto ended = wait_for_event(event);
      if (ended.has_value()) return *ended;
    }
    return known("event_synchronize", real().event_synchronize(event));
  });
}

int32_t event_elapsed(bringup_event start, bringup_event end, double* milliseconds) {
  const Call call("event_elapsed");
  *milliseconds = 0;
  const int32_t status =
      known("event_elapsed", real().event_elapsed(start, end, milliseconds), true);
  if (status != BRINGUP_OK || std::isfinite(*milliseconds)) return status;
  return broken("event_elapsed", "gave no finite number of milliseconds");
}

// The driver's words, or ours for what it did wrong. Text that does not end is cut.
const char* last_error() {
  if (words()[0] != '\0') return words();
  if (real().last_error == nullptr) return "";
  constexpr size_t kMost = 4096;
  const char* text = real().last_error();
  if (text == nullptr) return "";
  if (strnlen(text, kMost) < kMost) return text;
  thread_local char cut[256];
  std::snprintf(cut, sizeof cut, "%.200s... (the text of last_error() does not end)", text);
  return cut;
}

// --- optional groups

int32_t host_alloc(size_t bytes, void** address) {
  const Call call("host_alloc");
  *address = nullptr;
  const int32_t status = known("host_alloc", real().host_alloc(bytes, address));
  if (status != BRINGUP_OK || *address != nullptr) return status;
  return broken("host_alloc", "returned BRINGUP_OK and no address");
}

BRINGUP_STATUS_ONLY(host_free)

int32_t host_view(int32_t device, const void* address, void** host_address) {
  const Call call("host_view", device);
  *host_address = nullptr;
  const int32_t status = known("host_view", real().host_view(device, address, host_address));
  if (status != BRINGUP_OK || *host_address != nullptr) return status;
  return broken("host_view", "returned BRINGUP_OK and no address");
}

int32_t host_func(int32_t device, bringup_stream stream, void (*fn)(void* user), void* user) {
  const Call call("host_func", device, stream);
  gave(device, stream);
  return known("host_func", real().host_func(device, stream, fn, user));
}

int32_t module_load(int32_t device, const char* library, void** module) {
  const Call call("module_load", device);
  *module = nullptr;
  const int32_t status = known("module_load", real().module_load(device, library, module));
  return loaded("module_load", status, *module);
}

int32_t module_unload(void* module) {
  const Call call("module_unload");
  state().modules.remove(module);
  static std::atomic_flag warned;
  return ended("module_unload", real().module_unload(module), warned);
}

int32_t get_function(void* module, const char* name, bringup_kernel_fn* fn) {
  const Call call("get_function", -1, nullptr, name);
  *fn = nullptr;
  const int32_t status = known("get_function", real().get_function(module, name, fn));
  if (status != BRINGUP_OK || *fn != nullptr) return status;
  return broken("get_function", "returned BRINGUP_OK and no function");
}

int32_t launch(int32_t device, bringup_stream stream, const bringup_launch* what) {
  const Call call("launch", device, stream, what->name);
  return give_work("launch", device, stream, [&] { return real().launch(device, stream, what); });
}

int32_t graph_create(int32_t device, bringup_graph* graph) {
  const Call call("graph_create", device);
  *graph = nullptr;
  const int32_t status = known("graph_create", real().graph_create(device, graph));
  return status == BRINGUP_OK ? made("graph_create", state().graphs, *graph, device) : status;
}

int32_t graph_destroy(bringup_graph graph) {
  const Call call("graph_destroy");
  state().graphs.remove(graph);
  state().faults.destroyed(graph);
  static std::atomic_flag warned;
  return ended("graph_destroy", real().graph_destroy(graph), warned);
}

BRINGUP_STATUS_ONLY(graph_add_kernel)
BRINGUP_STATUS_ONLY(graph_add_copy)
BRINGUP_STATUS_ONLY(graph_add_host_func)

int32_t graph_launch(bringup_graph graph, bringup_stream stream) {
  const int32_t device = state().graphs.device_of(graph).value_or(-1);
  const Call call("graph_launch", device, stream);
  const int32_t status =
      give_work("graph_launch", device, stream, [&] { return real().graph_launch(graph, stream); });
  if (status == BRINGUP_OK) state().faults.graph_launched(graph, device, stream);
  return status;
}

BRINGUP_STATUS_ONLY(graph_update_kernel)

// Keeps a table for as long as the process lives.
const bringup_driver* keep(const bringup_driver& table) {
  const std::lock_guard lock(state().mutex);
  state().tables.push_back(std::make_unique<bringup_driver>(table));
  return state().tables.back().get();
}

}  // namespace

void end_release_warnings() { state().ending = true; }

bringup_driver checked(const bringup_driver& driver) {
  bringup_driver whole = driver;
  complete(whole);
  state().real = keep(whole);
  state().stopped = keep(stopped(whole));
  state().has_timing = driver.event_elapsed != nullptr;
  state().counts_work = driver.stream_query == nullptr;
  state().counts_memory = driver.mem_info == nullptr;
  bringup_driver table = whole;
#define BRINGUP_CHECKED(name, ...) \
  if (whole.name != nullptr) table.name = name;
  BRINGUP_DRIVER_UNGROUPED(BRINGUP_CHECKED)
#undef BRINGUP_CHECKED
  check_groups(whole, table);
  table.last_error = &last_error;
  return table;
}

}  // namespace bringup::driver
