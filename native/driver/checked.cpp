#include "driver/checked.h"

#include <cmath>
#include <cstdio>
#include <cstring>
#include <set>
#include <string>

#include "driver/books.h"
#include "driver/waits.h"

namespace bringup::driver {
namespace {

struct State {
  bringup_driver real{};
  Segments segments;
  Handles streams;
  Handles events;
  Handles graphs;
  std::mutex mutex;
  std::set<std::pair<int32_t, bringup_stream>> streams_of;  // for waits with a limit
};

// Never destroyed: memory may be freed until the very end of the process.
State& state() {
  static auto* one = new State;
  return *one;
}
const bringup_driver& real() { return state().real; }

// Why the last call of this thread broke the contract; no text: it did not. Plain memory, because
// threads make calls while they end.
thread_local char t_broken[512];

int32_t broken(const char* function, const std::string& what) {
  std::snprintf(t_broken, sizeof t_broken,
                "the driver breaks the contract of bringup/driver.h: %s %s", function,
                what.c_str());
  return BRINGUP_ERROR;
}

// One call: forgets the text of the former, and is watched.
struct Call : WatchedCall {
  Call(const char* function, int32_t device = -1, const void* stream = nullptr,
       const char* name = nullptr)
      : WatchedCall(function, device, stream, name) {
    t_broken[0] = '\0';
  }
};

int32_t known(const char* function, int32_t status, bool is_query = false) {
  if (status == BRINGUP_OK) return status;
  if (status < BRINGUP_OK || status > BRINGUP_ERROR) {
    return broken(function,
                  "returned the status " + std::to_string(status) + ", which there is not");
  }
  if (status == BRINGUP_NOT_READY && !is_query) {
    return broken(function, "returned BRINGUP_NOT_READY, which only queries may");
  }
  return status;
}

// A handle that was just made.
int32_t made(const char* function, Handles& handles, const void* handle) {
  if (handle == nullptr) return broken(function, "returned BRINGUP_OK and no handle");
  if (handles.add(handle)) return BRINGUP_OK;
  return broken(function, "gave a handle that is still in use: each has to be its own");
}

template <size_t kSize>
bool ends(const char (&text)[kSize]) {
  return std::memchr(text, '\0', kSize) != nullptr;
}

// --- device

int32_t device_count(int32_t* count) {
  const Call call("device_count");
  *count = 0;
  return known("device_count", real().device_count(count));
}

int32_t device_props(int32_t device, bringup_device_props* props) {
  const Call call("device_props", device);
  struct {
    bringup_device_props props;
    unsigned char behind[64];
  } given{};
  given.props.struct_size = sizeof given.props;
  std::memset(given.behind, 0x5a, sizeof given.behind);
  const int32_t status = known("device_props", real().device_props(device, &given.props));
  if (status != BRINGUP_OK) return status;
  for (const unsigned char byte : given.behind) {
    if (byte != 0x5a) return broken("device_props", "wrote behind the structure that it was given");
  }
  if (!ends(given.props.name)) return broken("device_props", "gave a name without an end");
  if (!ends(given.props.arch)) return broken("device_props", "gave an arch without an end");
  if (given.props.total_memory == 0)
    return broken("device_props", "says that the device has no memory");
  given.props.struct_size = props->struct_size;
  std::memcpy(props, &given.props, std::min<size_t>(props->struct_size, sizeof given.props));
  return BRINGUP_OK;
}

int32_t too_long(const char* function, const std::string& what) {
  std::snprintf(t_broken, sizeof t_broken,
                "%s: %s has not ended after %.1f s (BRINGUP_WAIT_TIMEOUT)", function, what.c_str(),
                static_cast<double>(wait_limit().count()) / 1e9);
  return BRINGUP_ERROR;
}

std::string name_of(int32_t device, bringup_stream stream) {
  char text[64];
  std::snprintf(text, sizeof text, "work of stream %p of device %d", static_cast<void*>(stream),
                device);
  return text;
}

// False when the stream's work has not ended in time.
bool stream_ends(int32_t device, bringup_stream stream) {
  return wait_until([&] { return real().stream_query(device, stream) != BRINGUP_NOT_READY; });
}

int32_t device_synchronize(int32_t device) {
  const Call call("device_synchronize", device);
  if (wait_limit().count() != 0) {
    std::set<std::pair<int32_t, bringup_stream>> all;
    {
      const std::lock_guard lock(state().mutex);
      all = state().streams_of;
    }
    all.emplace(device, nullptr);
    for (const auto& [of, stream] : all) {
      if (of == device && !stream_ends(device, stream)) {
        return too_long("device_synchronize", name_of(device, stream));
      }
    }
  }
  return known("device_synchronize", real().device_synchronize(device));
}

// --- memory

int32_t mem_alloc(int32_t device, size_t bytes, void** address) {
  const Call call("mem_alloc", device);
  *address = nullptr;
  const int32_t status = known("mem_alloc", real().mem_alloc(device, bytes, address));
  if (status != BRINGUP_OK) return status;
  if (const auto why = state().segments.add(device, *address, bytes)) {
    return broken("mem_alloc", *why);
  }
  return BRINGUP_OK;
}

int32_t mem_free(int32_t device, void* address) {
  const Call call("mem_free", device);
  state().segments.remove(device, address);  // before: another thread may get it right after
  return known("mem_free", real().mem_free(device, address));
}

int32_t mem_info(int32_t device, size_t* free_bytes, size_t* total_bytes) {
  const Call call("mem_info", device);
  *free_bytes = *total_bytes = 0;
  const int32_t status = known("mem_info", real().mem_info(device, free_bytes, total_bytes));
  if (status != BRINGUP_OK || *free_bytes <= *total_bytes) return status;
  return broken("mem_info", "says that " + std::to_string(*free_bytes) + " bytes of " +
                                std::to_string(*total_bytes) + " are free");
}

int32_t copy_async(bringup_copy_kind kind, int32_t dst_device, void* dst, int32_t src_device,
                   const void* src, size_t bytes, bringup_stream stream) {
  const Call call("copy_async", kind == BRINGUP_HOST_TO_DEVICE ? dst_device : src_device, stream);
  return known("copy_async",
               real().copy_async(kind, dst_device, dst, src_device, src, bytes, stream));
}

int32_t fill_async(int32_t device, void* dst, uint8_t value, size_t bytes, bringup_stream stream) {
  const Call call("fill_async", device, stream);
  return known("fill_async", real().fill_async(device, dst, value, bytes, stream));
}

// --- streams and events

int32_t stream_create(int32_t device, int32_t priority, bringup_stream* stream) {
  const Call call("stream_create", device);
  *stream = nullptr;
  int32_t status = known("stream_create", real().stream_create(device, priority, stream));
  if (status == BRINGUP_OK) status = made("stream_create", state().streams, *stream);
  if (status == BRINGUP_OK) {
    const std::lock_guard lock(state().mutex);
    state().streams_of.emplace(device, *stream);
  }
  return status;
}

int32_t stream_destroy(bringup_stream stream) {
  const Call call("stream_destroy", -1, stream);
  state().streams.remove(stream);
  {
    const std::lock_guard lock(state().mutex);
    std::erase_if(state().streams_of, [&](const auto& of) { return of.second == stream; });
  }
  return known("stream_destroy", real().stream_destroy(stream));
}

int32_t stream_synchronize(int32_t device, bringup_stream stream) {
  const Call call("stream_synchronize", device, stream);
  if (wait_limit().count() != 0 && !stream_ends(device, stream)) {
    return too_long("stream_synchronize", name_of(device, stream));
  }
  return known("stream_synchronize", real().stream_synchronize(device, stream));
}

int32_t stream_query(int32_t device, bringup_stream stream) {
  const Call call("stream_query", device, stream);
  return known("stream_query", real().stream_query(device, stream), true);
}

int32_t event_create(int32_t device, int32_t timing, bringup_event* event) {
  const Call call("event_create", device);
  *event = nullptr;
  const int32_t status = known("event_create", real().event_create(device, timing, event));
  return status == BRINGUP_OK ? made("event_create", state().events, *event) : status;
}

int32_t event_destroy(bringup_event event) {
  const Call call("event_destroy");
  state().events.remove(event);
  return known("event_destroy", real().event_destroy(event));
}

int32_t event_record(bringup_event event, int32_t device, bringup_stream stream) {
  const Call call("event_record", device, stream);
  return known("event_record", real().event_record(event, device, stream));
}

int32_t event_wait(bringup_event event, int32_t device, bringup_stream stream) {
  const Call call("event_wait", device, stream);
  return known("event_wait", real().event_wait(event, device, stream));
}

int32_t event_query(bringup_event event) {
  const Call call("event_query");
  return known("event_query", real().event_query(event), true);
}

int32_t event_synchronize(bringup_event event) {
  const Call call("event_synchronize");
  const auto is_over = [&] { return real().event_query(event) != BRINGUP_NOT_READY; };
  if (wait_limit().count() != 0 && !wait_until(is_over)) {
    return too_long("event_synchronize", "what the event was recorded after");
  }
  return known("event_synchronize", real().event_synchronize(event));
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
  if (t_broken[0] != '\0') return t_broken;
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

int32_t host_free(void* address) {
  const Call call("host_free");
  return known("host_free", real().host_free(address));
}

int32_t host_view(int32_t device, const void* address, void** host_address) {
  const Call call("host_view", device);
  *host_address = nullptr;
  const int32_t status = known("host_view", real().host_view(device, address, host_address));
  if (status != BRINGUP_OK || *host_address != nullptr) return status;
  return broken("host_view", "returned BRINGUP_OK and no address");
}

int32_t host_func(int32_t device, bringup_stream stream, void (*fn)(void* user), void* user) {
  const Call call("host_func", device, stream);
  return known("host_func", real().host_func(device, stream, fn, user));
}

int32_t module_load(int32_t device, const char* library, void** module) {
  const Call call("module_load", device);
  *module = nullptr;
  const int32_t status = known("module_load", real().module_load(device, library, module));
  if (status != BRINGUP_OK || *module != nullptr) return status;
  return broken("module_load", "returned BRINGUP_OK and no module");
}

int32_t module_unload(void* module) {
  const Call call("module_unload");
  return known("module_unload", real().module_unload(module));
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
  return known("launch", real().launch(device, stream, what));
}

int32_t graph_create(int32_t device, bringup_graph* graph) {
  const Call call("graph_create", device);
  *graph = nullptr;
  const int32_t status = known("graph_create", real().graph_create(device, graph));
  return status == BRINGUP_OK ? made("graph_create", state().graphs, *graph) : status;
}

int32_t graph_destroy(bringup_graph graph) {
  const Call call("graph_destroy");
  state().graphs.remove(graph);
  return known("graph_destroy", real().graph_destroy(graph));
}

int32_t graph_add_kernel(bringup_graph graph, const bringup_launch* what) {
  const Call call("graph_add_kernel");
  return known("graph_add_kernel", real().graph_add_kernel(graph, what));
}

int32_t graph_add_copy(bringup_graph graph, bringup_copy_kind kind, void* dst, const void* src,
                       size_t bytes) {
  const Call call("graph_add_copy");
  return known("graph_add_copy", real().graph_add_copy(graph, kind, dst, src, bytes));
}

int32_t graph_add_host_func(bringup_graph graph, void (*fn)(void* user), void* user) {
  const Call call("graph_add_host_func");
  return known("graph_add_host_func", real().graph_add_host_func(graph, fn, user));
}

int32_t graph_launch(bringup_graph graph, bringup_stream stream) {
  const Call call("graph_launch", -1, stream);
  return known("graph_launch", real().graph_launch(graph, stream));
}

int32_t graph_update_kernel(bringup_graph graph, int32_t kernel, const bringup_launch* what) {
  const Call call("graph_update_kernel");
  return known("graph_update_kernel", real().graph_update_kernel(graph, kernel, what));
}

}  // namespace

bringup_driver checked(const bringup_driver& driver) {
  state().real = driver;
  bringup_driver table = driver;
#define BRINGUP_CHECKED(name) table.name = driver.name != nullptr ? &name : nullptr;
  BRINGUP_CHECKED(device_count)
  BRINGUP_CHECKED(device_props)
  BRINGUP_CHECKED(device_synchronize)
  BRINGUP_CHECKED(mem_alloc)
  BRINGUP_CHECKED(mem_free)
  BRINGUP_CHECKED(mem_info)
  BRINGUP_CHECKED(copy_async)
  BRINGUP_CHECKED(fill_async)
  BRINGUP_CHECKED(stream_create)
  BRINGUP_CHECKED(stream_destroy)
  BRINGUP_CHECKED(stream_synchronize)
  BRINGUP_CHECKED(stream_query)
  BRINGUP_CHECKED(event_create)
  BRINGUP_CHECKED(event_destroy)
  BRINGUP_CHECKED(event_record)
  BRINGUP_CHECKED(event_wait)
  BRINGUP_CHECKED(event_query)
  BRINGUP_CHECKED(event_synchronize)
  BRINGUP_CHECKED(event_elapsed)
  BRINGUP_CHECKED(host_alloc)
  BRINGUP_CHECKED(host_free)
  BRINGUP_CHECKED(host_view)
  BRINGUP_CHECKED(host_func)
  BRINGUP_CHECKED(module_load)
  BRINGUP_CHECKED(module_unload)
  BRINGUP_CHECKED(get_function)
  BRINGUP_CHECKED(launch)
  BRINGUP_CHECKED(graph_create)
  BRINGUP_CHECKED(graph_destroy)
  BRINGUP_CHECKED(graph_add_kernel)
  BRINGUP_CHECKED(graph_add_copy)
  BRINGUP_CHECKED(graph_add_host_func)
  BRINGUP_CHECKED(graph_launch)
  BRINGUP_CHECKED(graph_update_kernel)
#undef BRINGUP_CHECKED
  table.last_error = &last_error;
  return table;
}

}  // namespace bringup::driver
