// Tensors that are not strided: sparse_coo works, what else torch has is refused in words.
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/_coalesced_native.h>
#include <ATen/ops/_indices_native.h>
#include <ATen/ops/_nested_tensor_from_tensor_list_native.h>
#include <ATen/ops/_nnz_native.h>
#include <ATen/ops/_sparse_coo_tensor_with_dims_and_tensors_native.h>
#include <ATen/ops/_sparse_coo_tensor_with_dims_native.h>
#include <ATen/ops/_to_copy_native.h>
#include <ATen/ops/_values_native.h>
#include <ATen/ops/ccol_indices_native.h>
#include <ATen/ops/col_indices_native.h>
#include <ATen/ops/copy_native.h>
#include <ATen/ops/copy_sparse_to_sparse_native.h>
#include <ATen/ops/crow_indices_native.h>
#include <ATen/ops/dense_dim_native.h>
#include <ATen/ops/empty_like_native.h>
#include <ATen/ops/empty_native.h>
#include <ATen/ops/indices_native.h>
#include <ATen/ops/is_coalesced_native.h>
#include <ATen/ops/row_indices_native.h>
#include <ATen/ops/sparse_dim_native.h>
#include <ATen/ops/sparse_resize_and_clear_native.h>
#include <ATen/ops/sparse_resize_native.h>
#include <ATen/ops/values_native.h>
#include <ATen/ops/zero_native.h>
#include <torch/library.h>

#include "torch/devices/registration.h"
#include "torch/devices/state.h"

namespace bringup::torch_ext {
namespace {

void refuse_compressed(const c10::OperatorHandle& op, torch::jit::Stack*) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      false, "operator '", op.operator_name(), "': device '", driver_facts().device_name,
      "' has no tensors of compressed sparse layouts (CSR, CSC, BSR, BSC): convert on cpu, with "
      "tensor.to_sparse(), and use the COO tensor on the device, or keep the tensor on cpu");
}

void refuse_quantized(const c10::OperatorHandle& op, torch::jit::Stack*) {
  TORCH_CHECK_NOT_IMPLEMENTED(false, "operator '", op.operator_name(),
                              "' would make or read a quantized tensor on device '",
                              driver_facts().device_name,
                              "', which has none: quantize on cpu, or keep integers and scales");
}

void refuse_nested_tensor(const std::string& name) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      false, "operator '", name, "': device '", driver_facts().device_name,
      "' has no nested tensors of layout torch.strided: make them with layout=torch.jagged");
}

void refuse_nested(const c10::OperatorHandle& op, torch::jit::Stack*) {
  refuse_nested_tensor(c10::toString(op.operator_name()));
}

// Makes one on cpu, of tensors that lie there.
at::Tensor nested_of(at::TensorList list, std::optional<at::ScalarType> dtype,
                     std::optional<at::Layout> layout, std::optional<at::Device> device,
                     std::optional<bool> pin_memory) {
  if (device.has_value() && device->type() == kDriverDevice) {
    refuse_nested_tensor("aten::_nested_tensor_from_tensor_list");
  }
  return at::native::_nested_tensor_from_tensor_list(list, dtype, layout, device, pin_memory);
}

struct Quiet final : c10::WarningHandler {
  void process(const c10::Warning&) override {}
};

// Moves one of the CPU's that stays there.
at::Tensor nested_to(const at::Tensor& self, std::optional<at::ScalarType> dtype,
                     std::optional<at::Layout> layout, std::optional<at::Device> device,
                     std::optional<bool> pin_memory, bool non_blocking,
                     std::optional<at::MemoryFormat> format) {
  if (device.has_value() && device->type() == kDriverDevice) refuse_nested_tensor("aten::_to_copy");
  return at::native::_to_copy_nested(self, dtype, layout, device, pin_memory, non_blocking, format);
}

template <void (*refuse)(const c10::OperatorHandle&, torch::jit::Stack*)>
void refuse_everything(c10::DispatchKey key) {
  auto* library = new torch::Library(torch::Library::IMPL, "_", key, __FILE__, __LINE__);
  library->fallback(torch::CppFunction::makeFromBoxedFunction<refuse>());
}

// What takes a sparse tensor apart or puts one together: torch's own functions, which ask nothing
// of the device but dense tensors.
void register_sparse_structure() {
  static auto* library =
      new KitLibrary("aten", c10::DispatchKey::SparsePrivateUse1, __FILE__, __LINE__);
  namespace native = at::native;
  library->impl("empty.memory_format", &native::empty_sparse_symint);
  library->impl("empty_like", &native::empty_like_sparse_coo);
  library->impl("_sparse_coo_tensor_with_dims", &native::new_with_dims_sparse);
  library->impl("_sparse_coo_tensor_with_dims_and_tensors",
                &native::new_with_dims_and_tensor_sparse_symint);
  library->impl("_indices", &native::_indices_sparse);
  library->impl("_values", &native::_values_sparse);
  library->impl("indices", &native::indices_sparse);
  library->impl("values", &native::values_sparse);
  library->impl("_nnz", &native::_nnz_sparse);
  library->impl("sparse_dim", &native::sparse_dim_sparse);
  library->impl("dense_dim", &native::dense_dim_sparse);
  library->impl("is_coalesced", &native::is_coalesced_sparse);
  library->impl("_coalesced_", &native::_coalesced_sparse_);
  library->impl("sparse_resize_", &native::sparse_resize_);
  library->impl("sparse_resize_and_clear_", &native::sparse_resize_and_clear_);
  library->impl("zero_", &native::zero_sparse_);
  library->impl("copy_", &native::copy_sparse_wrapper_);
  library->impl("copy_sparse_to_sparse_", &native::copy_sparse_);
}

// What reads the parts of a compressed tensor, which is how one is printed and copied back: one can
// be put together on the device though nothing computes with it. An error while torch prints leaves
// torch.func switched off for as long as the traceback lives.
void register_compressed_structure() {
  static auto* library =
      new KitLibrary("aten", c10::DispatchKey::SparseCsrPrivateUse1, __FILE__, __LINE__);
  namespace native = at::native;
  library->impl("_nnz", &native::_nnz_sparse_csr);
  library->impl("sparse_dim", &native::sparse_dim_sparse_csr);
  library->impl("dense_dim", &native::dense_dim_sparse_csr);
  library->impl("values", &native::values_sparse_csr);
  library->impl("crow_indices", &native::crow_indices_sparse_csr);
  library->impl("col_indices", &native::col_indices_sparse_csr);
  library->impl("ccol_indices", &native::ccol_indices_sparse_csr);
  library->impl("row_indices", &native::row_indices_sparse_csr);
}

}  // namespace

void refuse_other_layouts(c10::Layout layout) {
  if (layout == c10::kStrided || layout == c10::kSparse) return;
  TORCH_CHECK_NOT_IMPLEMENTED(false, "device '", driver_facts().device_name,
                              "' has no tensors of layout ", layout,
                              ": use a COO tensor (tensor.to_sparse()), or keep this one on cpu");
}

void register_layouts() {
  register_sparse_structure();
  register_compressed_structure();
  refuse_everything<&refuse_compressed>(c10::DispatchKey::SparseCsrPrivateUse1);
  refuse_everything<&refuse_quantized>(c10::DispatchKey::QuantizedPrivateUse1);
  refuse_everything<&refuse_nested>(c10::DispatchKey::NestedTensorPrivateUse1);
  // The fallback would make a tensor whose device its quantizer does not know, which ends in
  // torch's internal assertions.
  static auto* dense = new KitLibrary("aten", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
  for (const char* name :
       {"quantize_per_tensor", "quantize_per_tensor.tensor_qparams", "quantize_per_tensor.tensors",
        "quantize_per_tensor_dynamic", "quantize_per_channel", "_empty_affine_quantized",
        "_empty_per_channel_affine_quantized", "empty_quantized"}) {
    dense->impl(name, torch::CppFunction::makeFromBoxedFunction<&refuse_quantized>());
  }
  // Refused where they are made: autograd asks for their sizes where it can raise nothing.
  for (const char* name : {"_nested_tensor_from_tensor_list", "_nested_view_from_buffer",
                           "_nested_view_from_buffer_copy", "_nested_from_padded",
                           "_nested_from_padded_and_nested_example", "_nested_tensor_from_mask"}) {
    dense->impl(name, torch::CppFunction::makeFromBoxedFunction<&refuse_nested>());
  }
  static auto* on_cpu =
      new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::CPU, __FILE__, __LINE__);
  on_cpu->impl("_nested_tensor_from_tensor_list", &nested_of);
  Quiet quiet;  // of a kernel of torch's that this one calls
  const c10::WarningUtils::WarningHandlerGuard guard(&quiet);
  static auto* nested = new torch::Library(torch::Library::IMPL, "aten",
                                           c10::DispatchKey::NestedTensorCPU, __FILE__, __LINE__);
  nested->impl("_to_copy", &nested_to);
}

}  // namespace bringup::torch_ext
