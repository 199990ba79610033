// The caching allocator of device memory.
#pragma once

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/Storage.h>

#include <vector>

#include "driver/device_memory.h"
#include "torch/devices/state.h"

namespace bringup::torch_ext {

// What torch asks for device memory: asks this thread's allocation interceptor first, then
// allocate_block.
c10::DeviceAllocator& device_allocator();

// Memory of `device` for the current stream of this thread, whatever interceptor is installed. 0
// bytes: a null pointer.
at::DataPtr allocate_block(size_t bytes, c10::DeviceIndex device);

// The same through this thread's interceptor, when there is one.
at::DataPtr allocate_intercepted(size_t bytes, c10::DeviceIndex device);

// Room for `bytes` in a device's storage, whose content moves in stream order. torch's own
// functions for resizing are the host's: they would copy it without waiting for the stream, and
// from memory that the host may not see.
void grow(const c10::Storage& storage, size_t bytes);

// Where the driver's allocation that holds an address begins; null where none of this device does.
const std::byte* segment_of_address(c10::DeviceIndex device, const void* address);

// The device that holds an address; raises when none does.
c10::DeviceIndex device_of_address(const void* address);

// The most bytes that the allocator takes of the driver; what it has stays.
void set_memory_limit(c10::DeviceIndex device, size_t bytes);
// From now on this thread's allocations on the device are from a pool, 0 for the one of all; which
// it was. What is of one that is released is of that one from then on.
uint64_t set_memory_pool(c10::DeviceIndex device, uint64_t pool);
void release_memory_pool(uint64_t pool);

// The segments of a device with their blocks, by address.
std::vector<driver::SegmentSnapshot> device_memory_snapshot(c10::DeviceIndex device);

}  // namespace bringup::torch_ext
