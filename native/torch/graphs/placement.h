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
  c10::Storage storage_;  // kept, so that no other storage gets the address
  const void* address_;
  int64_t offset_;
  c10::SmallVector<int64_t, 8> sizes_and_strides_;
  caffe2::TypeMeta dtype_;
  c10::DispatchKeySet lazy_bits_;
};

}  // namespace bringup::torch_ext::graphs
