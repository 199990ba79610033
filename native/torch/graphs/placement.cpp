#include "torch/graphs/placement.h"

#include "torch/devices/driver.h"

namespace bringup::torch_ext::graphs {
namespace {

// A conjugated or negated tensor reads the same memory as other values.
c10::DispatchKeySet lazy_bits(const c10::TensorImpl& tensor) {
  constexpr c10::DispatchKeySet kLazy({c10::DispatchKey::Conjugate, c10::DispatchKey::Negative});
  return tensor.key_set() & kLazy;
}

// A loop: there are a few numbers, and memcmp costs a call.
bool differ(const int64_t* left, const int64_t* right, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    if (left[i] != right[i]) return true;
  }
  return false;
}

}  // namespace

const void* host_address(const c10::Storage& storage) {
  const void* address = storage.data();
  const c10::Device device = storage.device();
  if (address == nullptr || device.is_cpu()) return address;
  if (device.type() != c10::kPrivateUse1 || active_driver() == nullptr) return nullptr;
  const bringup_driver& driver = *active_driver();
  void* host = nullptr;
  const bool seen =
      driver.host_view != nullptr && driver.host_view(device.index(), address, &host) == BRINGUP_OK;
  return seen ? host : nullptr;
}

Placement::Placement(const at::Tensor& tensor)
    : storage_(tensor.storage()),
      address_(storage_.data()),
      offset_(tensor.storage_offset()),
      dtype_(tensor.dtype()),
      lazy_bits_(lazy_bits(*tensor.unsafeGetTensorImpl())) {
  sizes_and_strides_.append(tensor.sizes().begin(), tensor.sizes().end());
  sizes_and_strides_.append(tensor.strides().begin(), tensor.strides().end());
}

std::string_view Placement::difference(const c10::TensorImpl& tensor) const noexcept {
  c10::StorageImpl* storage = tensor.unsafe_storage().unsafeGetStorageImpl();
  // Of a graph's result that another graph has overwritten, data() raises; whoever reads it is
  // told.
  if (storage != storage_.unsafeGetStorageImpl() ||
      storage->_mutable_data_ptr_no_checks().get() != address_) {
    return "has other memory now";
  }
  if (tensor.dtype() != dtype_) return "has another dtype now";
  const size_t dims = sizes_and_strides_.size() / 2;
  const int64_t* sizes = sizes_and_strides_.data();
  const auto now = tensor.sizes();
  if (now.size() != dims || differ(now.data(), sizes, dims)) return "has another shape now";
  if (tensor.storage_offset() != offset_ || lazy_bits(tensor) != lazy_bits_ ||
      differ(tensor.strides().data(), sizes + dims, dims)) {
    return "reads its memory in another way now";
  }
  return {};
}

}  // namespace bringup::torch_ext::graphs
