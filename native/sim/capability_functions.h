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
void comm_id(bringup_comm_id* id);
void comm_create(int32_t device, const bringup_comm_id* id, int32_t rank, int32_t size,
                 int64_t nanoseconds, bringup_comm* comm);
void comm_destroy(bringup_comm comm);
void comm_abort(bringup_comm comm);
void comm_query(bringup_comm comm);
void all_reduce(bringup_comm comm, const void* src, void* dst, size_t count, uint64_t dtype,
                int32_t reduction, bringup_stream stream);
void reduce_scatter(bringup_comm comm, const void* src, void* dst, size_t count, uint64_t dtype,
                    int32_t reduction, bringup_stream stream);
void all_gather(bringup_comm comm, const void* src, void* dst, size_t bytes, bringup_stream stream);
void broadcast(bringup_comm comm, void* address, size_t bytes, int32_t root, bringup_stream stream);
void send(bringup_comm comm, const void* src, size_t bytes, int32_t peer, bringup_stream stream);
void recv(bringup_comm comm, void* dst, size_t bytes, int32_t peer, bringup_stream stream);
void all_to_all(bringup_comm comm, const void* src, const size_t* src_bytes, void* dst,
                const size_t* dst_bytes, bringup_stream stream);

}  // namespace bringup::sim
