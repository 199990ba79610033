// Every function of a driver's table, listed once: what reads, checks, traces or wraps a table
// goes through these lists, so that none forgets a function.
#pragma once

// Without one of these there is no device.
#define BRINGUP_DRIVER_REQUIRED(V) \
  V(device_count)                  \
  V(device_props)                  \
  V(mem_alloc)                     \
  V(mem_free)                      \
  V(copy_async)                    \
  V(stream_create)                 \
  V(stream_synchronize)            \
  V(event_create)                  \
  V(event_destroy)                 \
  V(event_record)                  \
  V(event_wait)                    \
  V(event_query)

// Where a driver has none of these the checked table has one made of the required functions.
#define BRINGUP_DRIVER_SUBSTITUTED(V) \
  V(device_synchronize)               \
  V(mem_info)                         \
  V(fill_async)                       \
  V(stream_destroy)                   \
  V(stream_query)                     \
  V(event_synchronize)                \
  V(event_elapsed)

// last_error, the one optional function that returns no status, is not listed here.
#define BRINGUP_DRIVER_OPTIONAL(V) \
  V(host_alloc)                    \
  V(host_free)                     \
  V(host_view)                     \
  V(host_func)                     \
  V(module_load)                   \
  V(module_unload)                 \
  V(get_function)                  \
  V(launch)                        \
  V(graph_create)                  \
  V(graph_destroy)                 \
  V(graph_add_kernel)              \
  V(graph_add_copy)                \
  V(graph_add_host_func)           \
  V(graph_launch)                  \
  V(graph_update_kernel)

// Functions behind a capability bit: V(BRINGUP_HAS_<group>, function).
#define BRINGUP_DRIVER_GROUPED(V)         \
  V(LIFECYCLE, init)                      \
  V(LIFECYCLE, shutdown)                  \
  V(ERROR_DETAIL, error_detail)           \
  V(TIMED_WAITS, stream_wait_for)         \
  V(TIMED_WAITS, event_wait_for)          \
  V(RESET, device_reset)                  \
  V(HOST_MEMORY, host_register)           \
  V(HOST_MEMORY, host_unregister)         \
  V(POINTERS, pointer_info)               \
  V(COPY_2D, copy_2d_async)               \
  V(WIDE_FILL, fill_wide_async)           \
  V(MODULE_DATA, module_load_data)        \
  V(LAUNCH_VALUES, launch_values)         \
  V(LAUNCH_VALUES, graph_add_values)      \
  V(LAUNCH_VALUES, graph_update_values)   \
  V(PROFILER, profiler_start)             \
  V(PROFILER, profiler_stop)              \
  V(PROFILER, profiler_read)              \
  V(NATIVE, native_handle)                \
  V(STREAM_CAPTURE, stream_capture_begin) \
  V(STREAM_CAPTURE, stream_capture_end)   \
  V(STREAM_CAPTURE, stream_capture_abort) \
  V(STREAM_CAPTURE, stream_capture_query) \
  V(IPC, ipc_export)                      \
  V(IPC, ipc_open)                        \
  V(IPC, ipc_close)                       \
  V(COLLECTIVES, comm_id)                 \
  V(COLLECTIVES, comm_create)             \
  V(COLLECTIVES, comm_destroy)            \
  V(COLLECTIVES, comm_abort)              \
  V(COLLECTIVES, comm_query)              \
  V(COLLECTIVES, all_reduce)              \
  V(COLLECTIVES, reduce_scatter)          \
  V(COLLECTIVES, all_gather)              \
  V(COLLECTIVES, broadcast)               \
  V(COLLECTIVES, send)                    \
  V(COLLECTIVES, recv)                    \
  V(COLLECTIVES, all_to_all)              \
  V(CONDITIONAL, graph_add_conditional)

#define BRINGUP_DRIVER_GROUPS(V) \
  V(LIFECYCLE)                   \
  V(ERROR_DETAIL)                \
  V(TIMED_WAITS)                 \
  V(RESET)                       \
  V(HOST_MEMORY)                 \
  V(POINTERS)                    \
  V(COPY_2D)                     \
  V(WIDE_FILL)                   \
  V(MODULE_DATA)                 \
  V(LAUNCH_VALUES)               \
  V(PROFILER)                    \
  V(NATIVE)                      \
  V(STREAM_CAPTURE)              \
  V(IPC)                         \
  V(COLLECTIVES)                 \
  V(CONDITIONAL)

#define BRINGUP_DRIVER_SECOND(group, function, V) V(function)

// All that return a status: V(function).
#define BRINGUP_DRIVER_UNGROUPED(V) \
  BRINGUP_DRIVER_REQUIRED(V)        \
  BRINGUP_DRIVER_SUBSTITUTED(V)     \
  BRINGUP_DRIVER_OPTIONAL(V)
