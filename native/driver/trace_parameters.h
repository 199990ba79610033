// The names of the parameters of each function of the table, as in bringup/driver.h. What a trace
// calls them; the list of functions that traced.cpp goes through does not compile where one is
// missing here.
#pragma once

#include <string_view>

namespace bringup::driver::parameters {

#define BRINGUP_PARAMETERS(function, names) inline constexpr std::string_view function = names;

BRINGUP_PARAMETERS(device_count, "count")
BRINGUP_PARAMETERS(device_props, "device props")
BRINGUP_PARAMETERS(device_synchronize, "device")
BRINGUP_PARAMETERS(mem_alloc, "device bytes address")
BRINGUP_PARAMETERS(mem_free, "device address")
BRINGUP_PARAMETERS(mem_info, "device free_bytes total_bytes")
BRINGUP_PARAMETERS(copy_async, "kind dst_device dst src_device src bytes stream")
BRINGUP_PARAMETERS(fill_async, "device dst value bytes stream")
BRINGUP_PARAMETERS(stream_create, "device priority stream")
BRINGUP_PARAMETERS(stream_destroy, "stream")
BRINGUP_PARAMETERS(stream_synchronize, "device stream")
BRINGUP_PARAMETERS(stream_query, "device stream")
BRINGUP_PARAMETERS(event_create, "device timing event")
BRINGUP_PARAMETERS(event_destroy, "event")
BRINGUP_PARAMETERS(event_record, "event device stream")
BRINGUP_PARAMETERS(event_wait, "event device stream")
BRINGUP_PARAMETERS(event_query, "event")
BRINGUP_PARAMETERS(event_synchronize, "event")
BRINGUP_PARAMETERS(event_elapsed, "start end milliseconds")
BRINGUP_PARAMETERS(host_alloc, "bytes address")
BRINGUP_PARAMETERS(host_free, "address")
BRINGUP_PARAMETERS(host_view, "device address host_address")
BRINGUP_PARAMETERS(host_func, "device stream fn user")
BRINGUP_PARAMETERS(module_load, "device library module")
BRINGUP_PARAMETERS(module_unload, "module")
BRINGUP_PARAMETERS(get_function, "module name fn")
BRINGUP_PARAMETERS(launch, "device stream launch")
BRINGUP_PARAMETERS(graph_create, "device graph")
BRINGUP_PARAMETERS(graph_destroy, "graph")
BRINGUP_PARAMETERS(graph_add_kernel, "graph launch")
BRINGUP_PARAMETERS(graph_add_copy, "graph kind dst src bytes")
BRINGUP_PARAMETERS(graph_add_host_func, "graph fn user")
BRINGUP_PARAMETERS(graph_launch, "graph stream")
BRINGUP_PARAMETERS(graph_update_kernel, "graph kernel launch")
BRINGUP_PARAMETERS(init, "")
BRINGUP_PARAMETERS(shutdown, "")
BRINGUP_PARAMETERS(error_detail, "detail")
BRINGUP_PARAMETERS(stream_wait_for, "device stream nanoseconds")
BRINGUP_PARAMETERS(event_wait_for, "event nanoseconds")
BRINGUP_PARAMETERS(device_reset, "device")
BRINGUP_PARAMETERS(host_register, "address bytes")
BRINGUP_PARAMETERS(host_unregister, "address")
BRINGUP_PARAMETERS(pointer_info, "address info")
BRINGUP_PARAMETERS(copy_2d_async,
                   "kind dst_device dst dst_pitch src_device src src_pitch width height stream")
BRINGUP_PARAMETERS(fill_wide_async, "device dst pattern size count stream")
BRINGUP_PARAMETERS(module_load_data, "device data bytes module")
BRINGUP_PARAMETERS(launch_values, "device stream launch")
BRINGUP_PARAMETERS(graph_add_values, "graph launch")
BRINGUP_PARAMETERS(graph_update_values, "graph kernel launch")
BRINGUP_PARAMETERS(profiler_start, "device")
BRINGUP_PARAMETERS(profiler_stop, "device")
BRINGUP_PARAMETERS(profiler_read, "device records capacity count lost")
BRINGUP_PARAMETERS(native_handle, "device stream kind handle")
BRINGUP_PARAMETERS(stream_capture_begin, "device stream")
BRINGUP_PARAMETERS(stream_capture_end, "device stream graph")
BRINGUP_PARAMETERS(stream_capture_abort, "device stream")
BRINGUP_PARAMETERS(stream_capture_query, "device stream state")
BRINGUP_PARAMETERS(ipc_export, "device address handle")
BRINGUP_PARAMETERS(ipc_open, "device handle address")
BRINGUP_PARAMETERS(ipc_close, "device address")

#undef BRINGUP_PARAMETERS

}  // namespace bringup::driver::parameters
