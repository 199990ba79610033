// Pinned host memory: memory that the driver can copy from and to without the host's help.
#pragma once

#include <ATen/core/CachingHostAllocator.h>
#include <c10/core/Storage.h>

namespace bringup::torch_ext {

at::HostAllocator& host_allocator();

// True when `address` lies in pinned or registered memory.
bool is_pinned_address(const void* address);

// A copy of pinned or registered memory at `address`, of `storage`, was left to `stream`: the
// memory is not reused, and not unregistered, before it is over. False where the pinned cache knows
// the memory neither by this owner nor by where it begins: then the copy has to be waited for.
[[nodiscard]] bool record_host_use(void* address, const at::Storage& storage,
                                   const c10::Stream& stream);

// Makes host memory as good as pinned for copies. Raises when the driver cannot, or when a part of
// the range is pinned or registered already.
void register_host_memory(void* address, size_t bytes);
// Waits for the copies that use the range that begins here. Raises when there is none.
void unregister_host_memory(void* address);

// Memory of the pinned cache, which has been touched before; null where the driver has no more.
at::DataPtr pinned_or_nothing(size_t bytes);

// From so many bytes on host copies of device memory lie there: fresh memory of this size costs
// more in page faults than the copy itself.
constexpr size_t kStagedBytes = size_t{64} << 10;

}  // namespace bringup::torch_ext
