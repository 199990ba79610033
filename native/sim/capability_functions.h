// The simulator's functions behind capability bits; driver.h says what they do.
#pragma once

#include "bringup/driver.h"

namespace bringup::sim {

int32_t init();
int32_t shutdown();
int32_t error_detail(bringup_error_detail* detail);
int32_t stream_wait_for(int32_t device, bringup_stream stream, int64_t nanoseconds);
int32_t event_wait_for(bringup_event event, int64_t nanoseconds);
int32_t device_reset(int32_t device);
int32_t host_register(void* address, size_t bytes);
int32_t host_unregister(void* address);
int32_t pointer_info(const void* address, bringup_pointer_info* info);
int32_t launch_values(int32_t device, bringup_stream stream,
                      const bringup_launch_values_args* launch);
int32_t graph_add_values(bringup_graph graph, const bringup_launch_values_args* launch);
int32_t graph_update_values(bringup_graph graph, int32_t kernel,
                            const bringup_launch_values_args* launch);

}  // namespace bringup::sim
