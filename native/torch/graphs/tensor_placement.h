// Where a tensor lies in memory and how that memory is read: what a captured graph has of it.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>
#include <c10/util/SmallVector.h>

#include <string_view>

namespace bringup::torch_ext::graphs {

// What of `storage` the host can read, or null where only the device can.
const void* host_address(const c10::Storage& storage);

// A tensor's storage, address, sizes, strides and element type at one moment.
class Placement {
 public:
  // How many tensors ahead of the one that is compared prefetch() is called.
  static constexpr size_t kAhead = 6;

  // Of a tensor that has a storage.
  explicit Placement(const at::Tensor& tensor);

  // Whether nothing is different about `tensor`, for comparing hundreds of them in microseconds.
  bool holds(const c10::TensorImpl& tensor) const noexcept {
    c10::StorageImpl* storage = tensor.unsafe_storage().unsafeGetStorageImpl();
    if (storage != storage_.unsafeGetStorageImpl() ||
        storage->_mutable_data_ptr_no_checks().get() != address_ || tensor.dtype() != dtype_ ||
        tensor.storage_offset() != offset_ || lazy_bits(tensor) != lazy_bits_) {
      return false;
    }
    const auto sizes = tensor.sizes();
    const auto strides = tensor.strides();
    const size_t dims = sizes.size();
    bool same = 2 * dims == sizes_and_strides_.size();
    for (size_t i = 0; same && i < dims; ++i) {
      same = sizes[i] == sizes_and_strides_[i] && strides[i] == sizes_and_strides_[dims + i];
    }
    return same;
  }
  // What is different about `tensor` now, "has other memory now"; empty when nothing is.
  std::string_view difference(const c10::TensorImpl& tensor) const noexcept;
  // Starts loading what difference() will read: with hundreds of tensors that is most of its time.
  void prefetch(const c10::TensorImpl* tensor) const noexcept {
    const auto* lines = reinterpret_cast<const char*>(tensor);
    for (size_t offset = 0; offset < sizeof(c10::TensorImpl); offset += 64) {
      __builtin_prefetch(lines + offset);
    }
    __builtin_prefetch(storage_.unsafeGetStorageImpl());
  }

  const c10::Storage& storage() const { return storage_; }

 private:
  // A conjugated or negated tensor reads the same memory as other values.
  static c10::DispatchKeySet lazy_bits(const c10::TensorImpl& tensor) noexcept {
    constexpr c10::DispatchKeySet kLazy({c10::DispatchKey::Conjugate, c10::DispatchKey::Negative});
    return tensor.key_set() & kLazy;
  }

  c10::Storage storage_;  // kept, so that no other storage gets the address
  const void* address_;
  int64_t offset_;
  c10::SmallVector<int64_t, 8> sizes_and_strides_;
  caffe2::TypeMeta dtype_;
  c10::DispatchKeySet lazy_bits_;
};

}  // namespace bringup::torch_ext::graphs
