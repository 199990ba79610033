#include "torch/graphs/allocation_interceptors.h"

#include <c10/core/impl/LocalDispatchKeySet.h>

#include "torch/graphs/recorder_key.h"

namespace bringup::torch_ext::graphs {

RecordingInterceptor::RecordingInterceptor(std::shared_ptr<Pool> pool) : pool_(std::move(pool)) {
  // A replay only borrows addresses: there may be a living tensor in one by now.
  add_raw_release([](void* address) noexcept {
    const bool borrowed = dynamic_cast<ReplayInterceptor*>(current_interceptor()) != nullptr;
    return MemoryPool::release_raw(address, borrowed);
  });
}

at::DataPtr RecordingInterceptor::allocate(size_t bytes, c10::Device device, c10::Allocator& base) {
  if (paused_) return base.allocate(bytes);
  Origin origin = origin_;
  if (!in_operator_) {
    // torch excludes these two while it turns Python data into a tensor.
    const bool is_host_data = c10::impl::tls_is_dispatch_key_excluded(kRecorderKey) &&
                              c10::impl::tls_is_dispatch_key_excluded(c10::DispatchKey::Python);
    origin = is_host_data ? Origin::kHostData : Origin::kUnseen;
  }
  at::DataPtr data = pool_->allocate(bytes, device, base, origin);
  if (list_ != nullptr) list_->push_back({data.get(), bytes, data.device()});
  return data;
}

at::DataPtr ReplayInterceptor::allocate(size_t bytes, c10::Device device, c10::Allocator& base) {
  if (next_ == end_) {
    missed_ = true;
    return base.allocate(bytes);
  }
  const Allocation& recorded = *next_++;
  if (C10_UNLIKELY(recorded.bytes != bytes || recorded.device.type() != device.type())) {
    missed_ = true;
    return base.allocate(bytes);
  }
  if (pool_ != nullptr && !device.is_cpu()) {
    return memory_of(pool_, recorded.address, recorded.device);
  }
  return {recorded.address, recorded.address, &c10::detail::deleteNothing, recorded.device};
}

}  // namespace bringup::torch_ext::graphs
