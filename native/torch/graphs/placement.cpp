#include "torch/graphs/placement.h"

#include <algorithm>

#include "torch/devices/driver.h"

namespace bringup::torch_ext::graphs {
namespace {

// A conjugated or negated tensor reads the same memory as other values.
c10::DispatchKeySet lazy_bits(const c10::TensorImpl& tensor) {
  constexpr c10::DispatchKeySet kLazy({c10::DispatchKey::Conjugate, c10::DispatchKey::Negative});
  return tensor.key_set() & kLazy;
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
  const c10::StorageImpl* storage = tensor.unsafe_storage().unsafeGetStorageImpl();
  if (storage != storage_.unsafeGetStorageImpl() || storage->data() != address_) {
    return "has other memory now";
  }
  if (tensor.dtype() != dtype_) return "has another dtype now";
  const auto dims = sizes_and_strides_.size() / 2;
  const auto sizes = sizes_and_strides_.begin();
  const auto strides = sizes + static_cast<ptrdiff_t>(dims);
  if (static_cast<size_t>(tensor.dim()) != dims ||
      !std::equal(tensor.sizes().begin(), tensor.sizes().end(), sizes)) {
    return "has another shape now";
  }
  if (tensor.storage_offset() != offset_ || lazy_bits(tensor) != lazy_bits_ ||
      !std::equal(tensor.strides().begin(), tensor.strides().end(), strides)) {
    return "reads its memory in another way now";
  }
  return {};
}

}  // namespace bringup::torch_ext::graphs
