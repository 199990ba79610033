#include "torch/graphs/tensor_placement.h"

#include "torch/devices/driver.h"

namespace bringup::torch_ext::graphs {
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
  if (holds(tensor)) return {};
  c10::StorageImpl* storage = tensor.unsafe_storage().unsafeGetStorageImpl();
  // Of a graph's result that another graph has overwritten, data() raises; a reader is
  // told.
  if (storage != storage_.unsafeGetStorageImpl() ||
      storage->_mutable_data_ptr_no_checks().get() != address_) {
    return "has other memory now";
  }
  if (tensor.dtype() != dtype_) return "has another dtype now";
  const auto sizes = tensor.sizes();
  const auto former = c10::IntArrayRef(sizes_and_strides_).slice(0, sizes_and_strides_.size() / 2);
  return sizes != former ? "has another shape now" : "reads its memory in another way now";
}

}  // namespace bringup::torch_ext::graphs
