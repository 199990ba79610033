#include "torch/graphs/values.h"

#include <ATen/core/TensorBody.h>
#include <c10/core/TensorOptions.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/DynamicTypes.h>

#include <sstream>

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
