// The functions of the group COLLECTIVES.
#pragma once

#include "bringup/driver.h"

namespace bringup::sim {

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
