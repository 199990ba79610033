#include "torch/compiler/tensor_metadata.h"

#include <ATen/core/Tensor.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/DynamicTypes.h>

#include "torch/common/tensor_caster.h"

namespace bringup::torch_ext::compiler {
namespace {

namespace nb = nanobind;

nb::object tuple_of(at::IntArrayRef numbers) {
  nb::object tuple = nb::steal(PyTuple_New(static_cast<Py_ssize_t>(numbers.size())));
  if (!tuple.is_valid()) throw nb::python_error();
  for (size_t i = 0; i < numbers.size(); ++i) {
    PyTuple_SET_ITEM(tuple.ptr(), static_cast<Py_ssize_t>(i), PyLong_FromLongLong(numbers[i]));
  }
  return tuple;
}

}  // namespace

nb::object tensor_look(nb::handle object) {
  if (!is_tensor_object(object.ptr())) return nb::none();
  const at::Tensor& tensor = THPVariable_Unpack(object.ptr());
  if (tensor.layout() != at::kStrided) return nb::none();
  if (tensor.unsafeGetTensorImpl()->has_symbolic_sizes_strides()) return nb::none();
  if (tensor.is_neg() || tensor.is_conj() || tensor._is_zerotensor()) return nb::none();
  auto* dtype = reinterpret_cast<PyObject*>(torch::getTHPDtype(tensor.scalar_type()));
  return nb::make_tuple(tuple_of(tensor.sizes()), tuple_of(tensor.strides()),
                        tensor.storage_offset(), nb::borrow(dtype), tensor.requires_grad());
}

}  // namespace bringup::torch_ext::compiler
