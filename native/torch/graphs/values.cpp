#include "torch/graphs/values.h"

#include <ATen/core/TensorBody.h>
#include <c10/core/TensorOptions.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/DynamicTypes.h>

#include <algorithm>
#include <sstream>
#include <utility>

#include "torch/graphs/tensor_placement.h"

namespace bringup::torch_ext::graphs {

std::string describe_shape(const at::Tensor& tensor) {
  std::ostringstream text;
  text << torch::getTHPDtype(tensor.scalar_type())->name;
  if (tensor.is_nested()) return text.str() + " (nested)";  // its sizes are not numbers
  text << '[';
  for (int64_t d = 0; d < tensor.dim(); ++d) text << (d > 0 ? ", " : "") << tensor.size(d);
  text << ']';
  return text.str();
}

std::string describe(const at::Tensor& tensor) {
  std::string text = describe_shape(tensor);
  if (!tensor.is_cpu()) text += " on " + tensor.device().str();
  return text;
}

const void* address_of(const c10::Storage& storage) {
  const void* host = host_address(storage);
  return host != nullptr ? host : storage.data();
}

const void* address_of(const at::Tensor& tensor) {
  const auto offset = tensor.storage_offset() * static_cast<int64_t>(tensor.itemsize());
  return static_cast<const char*>(address_of(tensor.storage())) + offset;
}

bool same_elements(const at::Tensor& left, const at::Tensor& right) {
  if (left.is_same(right)) return true;
  if (!left.has_storage() || !right.has_storage()) return false;
  return address_of(left) == address_of(right) && left.dtype() == right.dtype() &&
         left.sizes() == right.sizes() && left.strides() == right.strides() &&
         left.is_conj() == right.is_conj() && left.is_neg() == right.is_neg();
}

bool shares_bytes(const at::Tensor& left, const at::Tensor& right) {
  const auto base = [](const at::Tensor& tensor) {
    return reinterpret_cast<uintptr_t>(address_of(tensor.storage()));
  };
  return overlap(left, base(left), right, base(right));
}

std::string layout_difference(const at::Tensor& wanted, const at::Tensor& given) {
  if (is_subclass(given)) return "it is of a tensor subclass, whose operators are Python's";
  if (given.layout() != at::kStrided || given.is_nested() || !given.has_storage()) {
    return "it is not strided";
  }
  if (given.dtype() != wanted.dtype() || given.sizes() != wanted.sizes() ||
      given.device() != wanted.device()) {
    return "it is " + describe(given) + ", not " + describe(wanted);
  }
  if (given.strides() != wanted.strides()) {
    return "its strides are " + c10::str(given.strides()) + ", not " + c10::str(wanted.strides());
  }
  if (given.is_conj() != wanted.is_conj() || given.is_neg() != wanted.is_neg()) {
    return "its conjugation or negation is not computed yet: call resolve_conj().resolve_neg()";
  }
  return {};
}

bool same_tensors(const c10::IValue& left, const c10::IValue& right) {
  const auto lefts = left.toListRef();
  const auto rights = right.toListRef();
  return std::ranges::equal(lefts, rights, [](const c10::IValue& a, const c10::IValue& b) {
    return same_elements(a.toTensor(), b.toTensor());
  });
}

at::Tensor layout_of(const at::Tensor& tensor) {
  at::DataPtr none(nullptr, tensor.device());
  return shallow_copy(
      tensor, c10::Storage(c10::make_intrusive<c10::StorageImpl>(
                  c10::StorageImpl::use_byte_size_t(), 0, std::move(none), nullptr, false)));
}

at::Tensor shallow_copy(const at::Tensor& tensor) {
  at::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  const c10::VariableVersion version = impl->is_inference()
                                           ? c10::VariableVersion(c10::VariableVersion::DISABLED)
                                           : c10::VariableVersion(0);
  return at::Tensor(impl->shallow_copy_and_detach(version, /*allow_tensor_metadata_change=*/true));
}

at::Tensor shallow_copy(const at::Tensor& tensor, c10::Storage storage) {
  at::Tensor copy = shallow_copy(tensor);
  copy.unsafeGetTensorImpl()->set_storage_keep_dtype(std::move(storage));
  return copy;
}

at::Tensor bytes_of(const c10::Storage& storage) {
  const auto key = c10::computeDispatchKey(at::kByte, at::kStrided, storage.device());
  at::Tensor bytes = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(storage), c10::DispatchKeySet(key), caffe2::TypeMeta::Make<uint8_t>());
  bytes.unsafeGetTensorImpl()->set_sizes_contiguous({static_cast<int64_t>(storage.nbytes())});
  return bytes;
}

}  // namespace bringup::torch_ext::graphs
