// Checks of the functions behind capability bits.
#include <tuple>

#include "driver/call.h"
#include "driver/functions.h"

namespace bringup::driver {
namespace {

// --- LIFECYCLE

BRINGUP_STATUS_ONLY(init)

// A wait that was given up leaves work behind, and what has pending work cannot be destroyed.
bool is_idle() {
  for (int32_t device = 0; device < state().device_count.load(); ++device) {
    std::vector<const void*> streams = state().streams.of(device);
    streams.push_back(nullptr);
    for (const void* stream : streams) {
      const auto handle = static_cast<bringup_stream>(const_cast<void*>(stream));
      if (real().stream_query(device, handle) != BRINGUP_OK) return false;
    }
  }
  return true;
}

// What nothing gives back before: streams of the pools, modules.
int32_t give_back(const bringup_driver& driver) {
  int32_t first = BRINGUP_OK;
  const auto note = [&](const char* function, int32_t status) {
    if (first != BRINGUP_OK) return;
    first = known(function, status);
    if (first != BRINGUP_OK && words()[0] == '\0') {
      fail(first, function, " failed at the driver's end");
    }
  };
  for (const void* stream : state().streams.take()) {
    note("stream_destroy",
         driver.stream_destroy(static_cast<bringup_stream>(const_cast<void*>(stream))));
  }
  for (void* module : state().modules.take()) {
    if (driver.module_unload != nullptr) note("module_unload", driver.module_unload(module));
  }
  return first;
}

int32_t shutdown() {
  const Call call("shutdown");
  const bringup_driver& driver = real();
  const bool idle = is_idle();
  state().real.store(state().stopped.load());  // before: nothing calls the driver while it ends
  const int32_t given_back = idle ? give_back(driver) : BRINGUP_OK;
  const int32_t status = known("shutdown", driver.shutdown());
  return status != BRINGUP_OK ? status : given_back;
}

// --- ERROR_DETAIL. No Call: it tells of the former one.

int32_t error_detail(bringup_error_detail* detail) {
  if (words()[0] != '\0') {
    Given<bringup_error_detail> own;
    own.value = kept_detail();
    own.copy_to(detail);
    return BRINGUP_OK;
  }
  Given<bringup_error_detail> given;
  given.value.device = -1;
  const int32_t status = known("error_detail", real().error_detail(&given.value));
  if (status != BRINGUP_OK) return status;
  if (!given.is_intact()) {
    return broken("error_detail", "wrote behind the structure that it was given");
  }
  if (!ends(given.value.kernel)) return broken("error_detail", "gave a kernel without an end");
  if (!ends(given.value.text)) return broken("error_detail", "gave a text without an end");
  given.copy_to(detail);
  return BRINGUP_OK;
}

// --- TIMED_WAITS. A time that is over is no failure.

int32_t stream_wait_for(int32_t device, bringup_stream stream, int64_t nanoseconds) {
  const Call call("stream_wait_for", device, stream);
  return state().faults.watch(device, stream, false, [&] {
    const int32_t status = real().stream_wait_for(device, stream, nanoseconds);
    return status == BRINGUP_TIMEOUT ? status : known("stream_wait_for", status);
  });
}

int32_t event_wait_for(bringup_event event, int64_t nanoseconds) {
  const Call call("event_wait_for");
  return state().faults.watch(-1, nullptr, false, [&] {
    const int32_t status = real().event_wait_for(event, nanoseconds);
    return status == BRINGUP_TIMEOUT ? status : known("event_wait_for", status);
  });
}

// --- RESET, HOST_MEMORY, POINTERS

int32_t device_reset(int32_t device) {
  const Call call("device_reset", device);
  const int32_t status = known("device_reset", real().device_reset(device));
  return status == BRINGUP_OK ? state().faults.reset(device) : status;
}

BRINGUP_STATUS_ONLY(host_register)
BRINGUP_STATUS_ONLY(host_unregister)

int32_t pointer_info(const void* address, bringup_pointer_info* info) {
  const Call call("pointer_info");
  Given<bringup_pointer_info> given;
  given.value.device = -1;
  const int32_t status = known("pointer_info", real().pointer_info(address, &given.value));
  if (status != BRINGUP_OK) return status;
  const bringup_pointer_info& found = given.value;
  if (!given.is_intact()) {
    return broken("pointer_info", "wrote behind the structure that it was given");
  }
  if (found.kind < BRINGUP_POINTER_UNKNOWN || found.kind > BRINGUP_POINTER_HOST) {
    return broken("pointer_info", "gave the kind ", found.kind, ", which there is not");
  }
  const int32_t count = state().device_count.load();
  if (found.kind == BRINGUP_POINTER_DEVICE && (found.device < 0 || found.device >= count)) {
    return broken("pointer_info", "gave the device ", found.device, " of ", count);
  }
  const auto offset =
      reinterpret_cast<uintptr_t>(address) - reinterpret_cast<uintptr_t>(found.base);
  if (found.base != nullptr && offset >= found.bytes) {
    return broken("pointer_info", "gave an allocation that does not hold the address");
  }
  given.copy_to(info);
  return BRINGUP_OK;
}

// --- COPY_2D, WIDE_FILL, MODULE_DATA

int32_t copy_2d_async(bringup_copy_kind kind, int32_t dst_device, void* dst, size_t dst_pitch,
                      int32_t src_device, const void* src, size_t src_pitch, size_t width,
                      size_t height, bringup_stream stream) {
  const int32_t device = kind == BRINGUP_HOST_TO_DEVICE ? dst_device : src_device;
  const Call call("copy_2d_async", device, stream);
  return give_work("copy_2d_async", device, stream, [&] {
    return real().copy_2d_async(kind, dst_device, dst, dst_pitch, src_device, src, src_pitch, width,
                                height, stream);
  });
}

int32_t fill_wide_async(int32_t device, void* dst, const void* pattern, uint32_t size, size_t count,
                        bringup_stream stream) {
  const Call call("fill_wide_async", device, stream);
  return give_work("fill_wide_async", device, stream, [&] {
    return real().fill_wide_async(device, dst, pattern, size, count, stream);
  });
}

int32_t module_load_data(int32_t device, const void* data, size_t bytes, void** module) {
  const Call call("module_load_data", device);
  *module = nullptr;
  const int32_t status =
      known("module_load_data", real().module_load_data(device, data, bytes, module));
  return loaded("module_load_data", status, *module);
}

// --- LAUNCH_VALUES

int32_t launch_values(int32_t device, bringup_stream stream,
                      const bringup_launch_values_args* launch) {
  const Call call("launch_values", device, stream, launch->name);
  const int32_t status = give_work("launch_values", device, stream,
                                   [&] { return real().launch_values(device, stream, launch); });
  if (status == BRINGUP_OK) state().faults.launched(device, stream, *launch);
  return status;
}

int32_t graph_add_values(bringup_graph graph, const bringup_launch_values_args* launch) {
  const Call call("graph_add_values", -1, nullptr, launch->name);
  const int32_t status = known("graph_add_values", real().graph_add_values(graph, launch));
  if (status == BRINGUP_OK) {
    const bringup_graph whole = state().faults.whole_of(graph);
    state().faults.added(whole, state().graphs.device_of(whole).value_or(-1), *launch);
  }
  return status;
}

int32_t graph_update_values(bringup_graph graph, int32_t kernel,
                            const bringup_launch_values_args* launch) {
  const Call call("graph_update_values", -1, nullptr, launch->name);
  return known("graph_update_values", real().graph_update_values(graph, kernel, launch));
}

// --- PROFILER

int32_t profiler_start(int32_t device) {
  const Call call("profiler_start", device);
  return state().work.start(device,
                            [&] { return known("profiler_start", real().profiler_start(device)); });
}

int32_t profiler_stop(int32_t device) {
  const Call call("profiler_stop", device);
  return state().work.stop(device,
                           [&] { return known("profiler_stop", real().profiler_stop(device)); });
}

// What is wrong with a record of this device; empty: nothing.
std::string wrong_record(const bringup_record& record, int32_t device) {
  if (record.kind < BRINGUP_RECORD_KERNEL || record.kind > BRINGUP_RECORD_GRAPH) {
    return "of kind " + std::to_string(record.kind) + ", which there is not";
  }
  if (record.device != device) return "of device " + std::to_string(record.device);
  if (record.end < record.begin) return "of work that ended before it began";
  if (!ends(record.name)) return "with a name without an end";
  return "";
}

int32_t profiler_read(int32_t device, bringup_record* records, int32_t capacity, int32_t* count,
                      uint64_t* lost) {
  const Call call("profiler_read", device);
  *count = 0;
  *lost = 0;
  int32_t given = 0;
  const int32_t status =
      known("profiler_read", real().profiler_read(device, records, capacity, &given, lost));
  if (status != BRINGUP_OK) return status;
  if (given < 0 || given > capacity) {
    return broken("profiler_read", "gave ", given, " records where there is room for ", capacity);
  }
  for (int32_t i = 0; i < given; ++i) {
    const std::string wrong = wrong_record(records[i], device);
    if (!wrong.empty()) return broken("profiler_read", "gave a record ", wrong);
  }
  *count = given;
  return BRINGUP_OK;
}

// --- NATIVE, STREAM_CAPTURE

int32_t native_handle(int32_t device, bringup_stream stream, int32_t kind, void** handle) {
  const Call call("native_handle", device, stream);
  if (kind != BRINGUP_NATIVE_MEMORY) *handle = nullptr;
  const int32_t status = known("native_handle", real().native_handle(device, stream, kind, handle));
  const bool may_be_zero = kind == BRINGUP_NATIVE_DEVICE;  // a number at the vendor's
  if (status != BRINGUP_OK || *handle != nullptr || may_be_zero) return status;
  return broken("native_handle", "returned BRINGUP_OK and no handle");
}

int32_t stream_capture_begin(int32_t device, bringup_stream stream) {
  const Call call("stream_capture_begin", device, stream);
  return known("stream_capture_begin", real().stream_capture_begin(device, stream));
}

int32_t stream_capture_end(int32_t device, bringup_stream stream, bringup_graph graph) {
  const Call call("stream_capture_end", device, stream);
  const int32_t status =
      known("stream_capture_end", real().stream_capture_end(device, stream, graph));
  if (status == BRINGUP_OK) state().faults.captured(graph, device, stream);
  return status;
}

int32_t stream_capture_abort(int32_t device, bringup_stream stream) {
  const Call call("stream_capture_abort", device, stream);
  return known("stream_capture_abort", real().stream_capture_abort(device, stream));
}

int32_t stream_capture_query(int32_t device, bringup_stream stream, int32_t* capture) {
  const Call call("stream_capture_query", device, stream);
  *capture = BRINGUP_CAPTURE_NONE;
  const int32_t status =
      known("stream_capture_query", real().stream_capture_query(device, stream, capture));
  if (status != BRINGUP_OK) return status;
  if (*capture >= BRINGUP_CAPTURE_NONE && *capture <= BRINGUP_CAPTURE_BROKEN) return status;
  return broken("stream_capture_query", "gave the state ", *capture, ", which there is not");
}

// --- IPC

BRINGUP_STATUS_ONLY(ipc_export)

// How much there is only the exporter knows.
int32_t ipc_open(int32_t device, const bringup_ipc_handle* handle, void** address) {
  const Call call("ipc_open", device);
  return memory_from("ipc_open", 1, device, address,
                     [&] { return real().ipc_open(device, handle, address); });
}

int32_t ipc_close(int32_t device, void* address) {
  return memory_back("ipc_close", device, address, real().ipc_close);
}

// --- CONDITIONAL

int32_t graph_add_conditional(bringup_graph graph, int32_t kind, const void* predicate,
                              bringup_graph* first, bringup_graph* second) {
  const Call call("graph_add_conditional");
  *first = *second = nullptr;
  const int32_t status = known("graph_add_conditional",
                               real().graph_add_conditional(graph, kind, predicate, first, second));
  if (status != BRINGUP_OK) return status;
  if (*first == nullptr || *second == nullptr || *first == *second) {
    return broken("graph_add_conditional", "returned BRINGUP_OK and no two graphs");
  }
  for (const bringup_graph part : {*first, *second}) state().faults.made_for(part, graph);
  return status;
}

// --- COLLECTIVES

BRINGUP_STATUS_ONLY(comm_id)
BRINGUP_STATUS_ONLY(comm_abort)
BRINGUP_STATUS_ONLY(comm_query)

int32_t comm_create(int32_t device, const bringup_comm_id* id, int32_t rank, int32_t size,
                    int64_t nanoseconds, bringup_comm* comm) {
  const Call call("comm_create", device);
  *comm = nullptr;
  const int32_t status =
      known("comm_create", real().comm_create(device, id, rank, size, nanoseconds, comm));
  if (status != BRINGUP_OK) return status;
  if (*comm == nullptr) return broken("comm_create", "returned BRINGUP_OK and no communicator");
  if (state().comms.add(*comm, device)) return status;
  return broken("comm_create", "gave a communicator that is live already");
}

int32_t comm_destroy(bringup_comm comm) {
  const Call call("comm_destroy");
  state().comms.remove(comm);
  return known("comm_destroy", real().comm_destroy(comm));
}

// The last argument is the stream.
#define BRINGUP_COLLECTIVE(name)                                                                \
  constexpr auto name = [](bringup_comm comm, auto... arguments) -> int32_t {                   \
    const bringup_stream stream = std::get<sizeof...(arguments) - 1>(std::tuple(arguments...)); \
    const int32_t device = state().comms.device_of(comm).value_or(-1);                          \
    const Call call(#name, device, stream, #name);                                              \
    gave(device, stream);                                                                       \
    return known(#name, real().name(comm, arguments...));                                       \
  };
BRINGUP_COLLECTIVE(all_reduce)
BRINGUP_COLLECTIVE(reduce_scatter)
BRINGUP_COLLECTIVE(all_gather)
BRINGUP_COLLECTIVE(broadcast)
BRINGUP_COLLECTIVE(send)
BRINGUP_COLLECTIVE(recv)
BRINGUP_COLLECTIVE(all_to_all)
#undef BRINGUP_COLLECTIVE

}  // namespace

void check_groups(const bringup_driver& driver, bringup_driver& table) {
#define BRINGUP_CHECKED(name, ...) \
  if (driver.name != nullptr) table.name = name;
  BRINGUP_DRIVER_GROUPED(BRINGUP_CHECKED)
#undef BRINGUP_CHECKED
}

}  // namespace bringup::driver
