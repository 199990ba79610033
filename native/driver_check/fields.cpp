#include "driver_check/fields.h"

#include <algorithm>
#include <cstring>
#include <iterator>

#include "driver/functions.h"

namespace bringup::driver_check {
namespace {

#define BRINGUP_FIELD(name, parameters, capability) \
  Field { #name, offsetof(bringup_driver, name), parameters, capability }

constexpr Field kFields[] = {
    BRINGUP_FIELD(device_count, "count", 0),
    BRINGUP_FIELD(device_props, "device props", 0),
    BRINGUP_FIELD(device_synchronize, "device", 0),
    BRINGUP_FIELD(mem_alloc, "device bytes address", 0),
    BRINGUP_FIELD(mem_free, "device address", 0),
    BRINGUP_FIELD(mem_info, "device free_bytes total_bytes", 0),
    BRINGUP_FIELD(copy_async, "kind dst_device dst src_device src bytes stream", 0),
    BRINGUP_FIELD(fill_async, "device dst value bytes stream", 0),
    BRINGUP_FIELD(stream_create, "device priority stream", 0),
    BRINGUP_FIELD(stream_destroy, "stream", 0),
    BRINGUP_FIELD(stream_synchronize, "device stream", 0),
    BRINGUP_FIELD(stream_query, "device stream", 0),
    BRINGUP_FIELD(event_create, "device timing event", 0),
    BRINGUP_FIELD(event_destroy, "event", 0),
    BRINGUP_FIELD(event_record, "event device stream", 0),
    BRINGUP_FIELD(event_wait, "event device stream", 0),
    BRINGUP_FIELD(event_query, "event", 0),
    BRINGUP_FIELD(event_synchronize, "event", 0),
    BRINGUP_FIELD(event_elapsed, "start end milliseconds", 0),
    BRINGUP_FIELD(last_error, "", 0),
    BRINGUP_FIELD(host_alloc, "bytes address", 0),
    BRINGUP_FIELD(host_free, "address", 0),
    BRINGUP_FIELD(host_view, "device address host_address", 0),
    BRINGUP_FIELD(host_func, "device stream fn user", 0),
    BRINGUP_FIELD(module_load, "device library module", 0),
    BRINGUP_FIELD(module_unload, "module", 0),
    BRINGUP_FIELD(get_function, "module name fn", 0),
    BRINGUP_FIELD(launch, "device stream launch", 0),
    BRINGUP_FIELD(graph_create, "device graph", 0),
    BRINGUP_FIELD(graph_destroy, "graph", 0),
    BRINGUP_FIELD(graph_add_kernel, "graph launch", 0),
    BRINGUP_FIELD(graph_add_copy, "graph kind dst src bytes", 0),
    BRINGUP_FIELD(graph_add_host_func, "graph fn user", 0),
    BRINGUP_FIELD(graph_launch, "graph stream", 0),
    BRINGUP_FIELD(graph_update_kernel, "graph kernel launch", 0),
    BRINGUP_FIELD(init, "", BRINGUP_HAS_LIFECYCLE),
    BRINGUP_FIELD(shutdown, "", BRINGUP_HAS_LIFECYCLE),
    BRINGUP_FIELD(error_detail, "detail", BRINGUP_HAS_ERROR_DETAIL),
    BRINGUP_FIELD(stream_wait_for, "device stream nanoseconds", BRINGUP_HAS_TIMED_WAITS),
    BRINGUP_FIELD(event_wait_for, "event nanoseconds", BRINGUP_HAS_TIMED_WAITS),
    BRINGUP_FIELD(device_reset, "device", BRINGUP_HAS_RESET),
    BRINGUP_FIELD(host_register, "address bytes", BRINGUP_HAS_HOST_MEMORY),
    BRINGUP_FIELD(host_unregister, "address", BRINGUP_HAS_HOST_MEMORY),
    BRINGUP_FIELD(pointer_info, "address info", BRINGUP_HAS_POINTERS),
    BRINGUP_FIELD(copy_2d_async,
                  "kind dst_device dst dst_pitch src_device src src_pitch width height stream",
                  BRINGUP_HAS_COPY_2D),
    BRINGUP_FIELD(fill_wide_async, "device dst pattern size count stream", BRINGUP_HAS_WIDE_FILL),
    BRINGUP_FIELD(module_load_data, "device data bytes module", BRINGUP_HAS_MODULE_DATA),
    BRINGUP_FIELD(launch_values, "device stream launch", BRINGUP_HAS_LAUNCH_VALUES),
    BRINGUP_FIELD(graph_add_values, "graph launch", BRINGUP_HAS_LAUNCH_VALUES),
    BRINGUP_FIELD(graph_update_values, "graph kernel launch", BRINGUP_HAS_LAUNCH_VALUES),
    BRINGUP_FIELD(profiler_start, "device", BRINGUP_HAS_PROFILER),
    BRINGUP_FIELD(profiler_stop, "device", BRINGUP_HAS_PROFILER),
    BRINGUP_FIELD(profiler_read, "device records capacity count lost", BRINGUP_HAS_PROFILER),
};
#undef BRINGUP_FIELD

#define BRINGUP_ONE(name) +1
#define BRINGUP_ONE_OF(group, name) +1
constexpr size_t kFunctions = 1  // last_error
    BRINGUP_DRIVER_UNGROUPED(BRINGUP_ONE) BRINGUP_DRIVER_GROUPED(BRINGUP_ONE_OF);
#undef BRINGUP_ONE
#undef BRINGUP_ONE_OF
static_assert(std::size(kFields) == kFunctions, "every function of the table is a field");

}  // namespace

std::span<const Field> fields() { return kFields; }

const Field* find_field(size_t offset) {
  const auto* found = std::find_if(std::begin(kFields), std::end(kFields),
                                   [&](const Field& field) { return field.offset == offset; });
  return found != std::end(kFields) ? found : nullptr;
}

const Field* find_field(const char* name) {
  const auto* found = std::find_if(std::begin(kFields), std::end(kFields), [&](const Field& field) {
    return std::strcmp(field.name, name) == 0;
  });
  return found != std::end(kFields) ? found : nullptr;
}

bool is_null(const bringup_driver& table, const Field& field) {
  void* function = nullptr;
  std::memcpy(&function, reinterpret_cast<const char*>(&table) + field.offset, sizeof function);
  return function == nullptr;
}

bool announced(const bringup_driver& table, const Field& field) {
  const bool has_bit = field.capability == 0 || (table.capabilities & field.capability) != 0;
  return has_bit && !is_null(table, field);
}

const char* capability_name(uint64_t bit) {
  switch (bit) {
    case BRINGUP_HAS_LIFECYCLE:
      return "BRINGUP_HAS_LIFECYCLE";
    case BRINGUP_HAS_ERROR_DETAIL:
      return "BRINGUP_HAS_ERROR_DETAIL";
    case BRINGUP_HAS_TIMED_WAITS:
      return "BRINGUP_HAS_TIMED_WAITS";
    case BRINGUP_HAS_RESET:
      return "BRINGUP_HAS_RESET";
    case BRINGUP_HAS_HOST_MEMORY:
      return "BRINGUP_HAS_HOST_MEMORY";
    case BRINGUP_HAS_POINTERS:
      return "BRINGUP_HAS_POINTERS";
    case BRINGUP_HAS_COPY_2D:
      return "BRINGUP_HAS_COPY_2D";
    case BRINGUP_HAS_WIDE_FILL:
      return "BRINGUP_HAS_WIDE_FILL";
    case BRINGUP_HAS_MODULE_DATA:
      return "BRINGUP_HAS_MODULE_DATA";
    case BRINGUP_HAS_LAUNCH_VALUES:
      return "BRINGUP_HAS_LAUNCH_VALUES";
    case BRINGUP_HAS_PROFILER:
      return "BRINGUP_HAS_PROFILER";
    default:
      return "an unknown bit";
  }
}

}  // namespace bringup::driver_check
