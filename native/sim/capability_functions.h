// The simulator's functions behind capability bits; driver.h says what they do. Failures are
// thrown.
#pragma once

#include "bringup/driver.h"

namespace bringup::sim {

void init();
void shutdown();
int32_t error_detail(bringup_error_detail* detail);
int32_t stream_wait_for(int32_t device, bringup_stream stream, int64_t nanoseconds);
int32_t event_wait_for(bringup_event event, int64_t nanoseconds);
void device_reset(int32_t device);
void host_register(void* address, size_t bytes);
void host_unregister(void* address);
void pointer_info(const void* address, bringup_pointer_info* info);
void launch_values(int32_t device, bringup_stream stream, const bringup_launch_values_args* launch);
void graph_add_values(bringup_graph graph, const bringup_launch_values_args* launch);
void graph_update_values(bringup_graph graph, int32_t kernel,
                         const bringup_launch_values_args* launch);
void native_handle(int32_t device, bringup_stream stream, int32_t kind, void** handle);
void stream_capture_begin(int32_t device, bringup_stream stream);
void stream_capture_end(int32_t device, bringup_stream stream, bringup_graph graph);
void stream_capture_abort(int32_t device, bringup_stream stream);
void stream_capture_query(int32_t device, bringup_stream stream, int32_t* state);
void ipc_export(int32_t device, void* address, bringup_ipc_handle* handle);
void ipc_open(int32_t device, const bringup_ipc_handle* handle, void** address);
void ipc_close(int32_t device, void* address);
void graph_add_conditional(bringup_graph graph, int32_t kind, const void* predicate,
                           bringup_graph* first, bringup_graph* second);

}  // namespace bringup::sim
