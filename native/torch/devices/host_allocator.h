// Pinned host memory: memory that the driver can copy from and to without the host's help.
#pragma once

#include <ATen/core/CachingHostAllocator.h>

namespace bringup::torch_ext {

at::HostAllocator& host_allocator();

// True when `address` lies in pinned memory.
bool is_pinned_address(const void* address);

}  // namespace bringup::torch_ext
