// The driver's functions by name, for faults that are asked for by name.
#pragma once

#include <array>
#include <bitset>
#include <string_view>

// clang-format off
// Those that give back what the driver gave out.
#define BRINGUP_SIM_RELEASES(X) \
  X(mem_free) X(stream_destroy) X(event_destroy) X(host_free) X(host_unregister) X(module_unload) \
  X(graph_destroy) X(ipc_close) X(comm_destroy)

// All others that take effect on a device. Not here: device_count, device_props, device_reset, and
// what only tells of errors.
#define BRINGUP_SIM_CALLS(X) \
  X(device_synchronize) X(mem_alloc) X(mem_info) X(copy_async) X(fill_async) X(copy_2d_async) \
  X(fill_wide_async) X(stream_create) X(stream_synchronize) X(stream_wait_for) X(stream_query) \
  X(event_create) X(event_record) X(event_wait) X(event_query) X(event_synchronize) \
  X(event_wait_for) X(event_elapsed) X(host_alloc) X(host_register) X(host_view) X(host_func) \
  X(pointer_info) X(module_load) X(module_load_data) X(get_function) X(launch) X(graph_create) \
  X(graph_add_kernel) X(graph_add_copy) X(graph_add_host_func) X(graph_launch) \
  X(graph_update_kernel) X(launch_values) X(graph_add_values) X(graph_update_values) \
  X(profiler_start) X(profiler_stop) X(profiler_read) X(native_handle) X(stream_capture_begin) \
  X(stream_capture_end) X(stream_capture_abort) X(stream_capture_query) X(ipc_export) X(ipc_open) \
  X(comm_id) X(comm_create) X(all_reduce) X(reduce_scatter) X(all_gather) X(broadcast) X(send) \
  X(recv) X(all_to_all) X(graph_add_conditional)
// clang-format on

namespace bringup::sim {

enum class Function {
#define BRINGUP_SIM_NAME(name) name,
  BRINGUP_SIM_RELEASES(BRINGUP_SIM_NAME) BRINGUP_SIM_CALLS(BRINGUP_SIM_NAME)
#undef BRINGUP_SIM_NAME
      graph_kernel,  // no call: a kernel of a graph, when the device comes to it
};

inline constexpr std::array kFunctionNames = {
#define BRINGUP_SIM_NAME(name) std::string_view(#name),
    BRINGUP_SIM_RELEASES(BRINGUP_SIM_NAME) BRINGUP_SIM_CALLS(BRINGUP_SIM_NAME)
#undef BRINGUP_SIM_NAME
        std::string_view("graph_kernel"),
};
inline constexpr size_t kFunctionCount = kFunctionNames.size();
inline constexpr size_t kReleaseCount = 0
#define BRINGUP_SIM_ONE(name) +1
    BRINGUP_SIM_RELEASES(BRINGUP_SIM_ONE);
#undef BRINGUP_SIM_ONE

using FunctionSet = std::bitset<kFunctionCount>;

inline constexpr std::string_view name_of(Function function) {
  return kFunctionNames[static_cast<size_t>(function)];
}
inline constexpr bool is_release(Function function) {
  return static_cast<size_t>(function) < kReleaseCount;
}
// Work in a stream: it can be refused at once, or fail when the device comes to it.
inline constexpr bool can_fail_later(Function function) {
  return function == Function::launch || function == Function::launch_values ||
         function == Function::copy_async || function == Function::fill_async ||
         function == Function::copy_2d_async || function == Function::fill_wide_async ||
         function == Function::graph_launch || function == Function::graph_kernel ||
         (function >= Function::all_reduce && function <= Function::all_to_all);
}

}  // namespace bringup::sim
