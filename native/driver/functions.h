// Every function of a driver's table with the names of its parameters as in bringup/driver.h,
// listed once: what reads, checks, traces or wraps a table goes through these lists, so that none
// forgets a function. V(function, "names of parameters"), and behind a capability bit its group.
#pragma once

// clang-format off
// Without one of these there is no device.
#define BRINGUP_DRIVER_REQUIRED(V) \
  V(device_count, "count") V(device_props, "device props") V(mem_alloc, "device bytes address") \
  V(mem_free, "device address") V(copy_async, "kind dst_device dst src_device src bytes stream") \
  V(stream_create, "device priority stream") V(stream_synchronize, "device stream") \
  V(event_create, "device timing event") V(event_destroy, "event") \
  V(event_record, "event device stream") V(event_wait, "event device stream") \
  V(event_query, "event")

// Where a driver has none of these the checked table has one made of the required functions.
#define BRINGUP_DRIVER_SUBSTITUTED(V) \
  V(device_synchronize, "device") V(mem_info, "device free_bytes total_bytes") \
  V(fill_async, "device dst value bytes stream") V(stream_destroy, "stream") \
  V(stream_query, "device stream") V(event_synchronize, "event") \
  V(event_elapsed, "start end milliseconds")

// last_error, the one optional function that returns no status, is not listed here.
#define BRINGUP_DRIVER_OPTIONAL(V) \
  V(host_alloc, "bytes address") V(host_free, "address") \
  V(host_view, "device address host_address") V(host_func, "device stream fn user") \
  V(module_load, "device library module") V(module_unload, "module") \
  V(get_function, "module name fn") V(launch, "device stream launch") \
  V(graph_create, "device graph") V(graph_destroy, "graph") V(graph_add_kernel, "graph launch") \
  V(graph_add_copy, "graph kind dst src bytes") V(graph_add_host_func, "graph fn user") \
  V(graph_launch, "graph stream") V(graph_update_kernel, "graph kernel launch")

// Functions behind a capability bit, BRINGUP_HAS_<group>.
#define BRINGUP_DRIVER_GROUPED(V) \
  V(init, "", LIFECYCLE) V(shutdown, "", LIFECYCLE) V(error_detail, "detail", ERROR_DETAIL) \
  V(stream_wait_for, "device stream nanoseconds", TIMED_WAITS) \
  V(event_wait_for, "event nanoseconds", TIMED_WAITS) V(device_reset, "device", RESET) \
  V(host_register, "address bytes", HOST_MEMORY) V(host_unregister, "address", HOST_MEMORY) \
  V(pointer_info, "address info", POINTERS) \
  V(copy_2d_async, \
    "kind dst_device dst dst_pitch src_device src src_pitch width height stream", COPY_2D) \
  V(fill_wide_async, "device dst pattern size count stream", WIDE_FILL) \
  V(module_load_data, "device data bytes module", MODULE_DATA) \
  V(launch_values, "device stream launch", LAUNCH_VALUES) \
  V(graph_add_values, "graph launch", LAUNCH_VALUES) \
  V(graph_update_values, "graph kernel launch", LAUNCH_VALUES) \
  V(profiler_start, "device", PROFILER) V(profiler_stop, "device", PROFILER) \
  V(profiler_read, "device records capacity count lost", PROFILER) \
  V(native_handle, "device stream kind handle", NATIVE) \
  V(stream_capture_begin, "device stream", STREAM_CAPTURE) \
  V(stream_capture_end, "device stream graph", STREAM_CAPTURE) \
  V(stream_capture_abort, "device stream", STREAM_CAPTURE) \
  V(stream_capture_query, "device stream state", STREAM_CAPTURE) \
  V(ipc_export, "device address handle", IPC) V(ipc_open, "device handle address", IPC) \
  V(ipc_close, "device address", IPC) V(comm_id, "id", COLLECTIVES) \
  V(comm_create, "device id rank size nanoseconds comm", COLLECTIVES) \
  V(comm_destroy, "comm", COLLECTIVES) V(comm_abort, "comm", COLLECTIVES) \
  V(comm_query, "comm", COLLECTIVES) \
  V(all_reduce, "comm src dst count dtype reduction stream", COLLECTIVES) \
  V(reduce_scatter, "comm src dst count dtype reduction stream", COLLECTIVES) \
  V(all_gather, "comm src dst bytes stream", COLLECTIVES) \
  V(broadcast, "comm address bytes root stream", COLLECTIVES) \
  V(send, "comm src bytes peer stream", COLLECTIVES) \
  V(recv, "comm dst bytes peer stream", COLLECTIVES) \
  V(all_to_all, "comm src src_bytes dst dst_bytes stream", COLLECTIVES) \
  V(graph_add_conditional, "graph kind predicate first second", CONDITIONAL)
// clang-format on

// Those without a capability bit that return a status, and all that do.
#define BRINGUP_DRIVER_UNGROUPED(V) \
  BRINGUP_DRIVER_REQUIRED(V) BRINGUP_DRIVER_SUBSTITUTED(V) BRINGUP_DRIVER_OPTIONAL(V)
#define BRINGUP_DRIVER_FUNCTIONS(V) BRINGUP_DRIVER_UNGROUPED(V) BRINGUP_DRIVER_GROUPED(V)
