// Memory that several processes have: driver.h's IPC under torch's tensors.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <utility>

#include "torch/devices/state.h"

namespace bringup::torch_ext {

// A handle of the driver's allocation that holds the tensor's storage, and how far in it the
// storage begins. The storage keeps its size from now on. Raises where it is not in memory of the
// device's allocator.
std::pair<bringup_ipc_handle, size_t> export_memory(const at::Tensor& tensor);

// Where the allocation of another process is in this one.
void* open_memory(c10::DeviceIndex device, const bringup_ipc_handle& handle);
// For the device's work; its next synchronisation says what failed there.
void wait_to_close(c10::DeviceIndex device);
int32_t close_memory(c10::DeviceIndex device, void* address);

// Bytes of opened memory. When they are not used any more next_ended_memory() gives `number`.
at::Tensor tensor_in_opened(void* address, size_t bytes, c10::DeviceIndex device, uint64_t number);
uint64_t next_ended_memory();  // waits for one

}  // namespace bringup::torch_ext
