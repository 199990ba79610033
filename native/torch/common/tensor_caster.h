// nanobind <-> at::Tensor: the one hand-written tensor caster. None is not a tensor.
#pragma once

#include <nanobind/nanobind.h>
#include <torch/csrc/autograd/python_variable.h>

namespace bringup::torch_ext {

// THPVariable_Check without a metaclass's __instancecheck__, which makes it slow for a Parameter.
inline bool is_tensor_object(PyObject* object) {
  return PyType_IsSubtype(Py_TYPE(object), reinterpret_cast<PyTypeObject*>(THPVariableClass)) != 0;
}

}  // namespace bringup::torch_ext

namespace nanobind::detail {

template <>
struct type_caster<at::Tensor> {
  NB_TYPE_CASTER(at::Tensor, const_name("torch.Tensor"))

  bool from_python(handle src, uint8_t, cleanup_list*) noexcept {
    if (!THPVariable_Check(src.ptr())) return false;
    value = THPVariable_Unpack(src.ptr());
    return true;
  }
  static handle from_cpp(const at::Tensor& tensor, rv_policy, cleanup_list*) noexcept {
    return THPVariable_Wrap(tensor);
  }
};

}  // namespace nanobind::detail
