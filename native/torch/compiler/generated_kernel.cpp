#include "torch/compiler/generated_kernel.h"

#include <ATen/ops/empty_strided.h>
#include <c10/util/SmallVector.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "torch/common/errors.h"
#include "torch/common/tensor_caster.h"
#include "torch/graphs/errors.h"
#include "torch/graphs/generated_node.h"

namespace nb = nanobind;

namespace bringup::torch_ext::compiler {
namespace {

constexpr const char* kCapsule = "bringup.generated_kernel";

// Lives as long as the process: what is launched refers to it.
struct GeneratedKernel {
  LastingKernel lasting;
  std::string name;
  // "r", "w" and "b" the address of a tensor that is read, written, both; "d" and "l" a host
  // tensor's number, "i" an integer.
  std::string parameters;
  std::vector<std::string> faults;
  int64_t threads;
  int64_t elements;
  int64_t most_blocks;
};

bringup_value address_value(const void* address) {
  bringup_value made{BRINGUP_VALUE_ADDRESS, sizeof(void*), {}};
  made.value.address = const_cast<void*>(address);
  return made;
}

bringup_value integer_value(int64_t integer) {
  bringup_value made{BRINGUP_VALUE_INT, sizeof integer, {}};
  made.value.integer = integer;
  return made;
}

bringup_value number_value(double number) {
  bringup_value made{BRINGUP_VALUE_FLOAT, sizeof number, {}};
  made.value.number = number;
  return made;
}

const at::Tensor& tensor_of(const GeneratedKernel& kernel, PyObject* object) {
  TORCH_CHECK(THPVariable_Check(object), kernel.name, ": expected a tensor, got ",
              Py_TYPE(object)->tp_name);
  return THPVariable_Unpack(object);
}

// Appends one argument; the launch's device becomes that of the first tensor there.
void add(const GeneratedKernel& kernel, char kind, PyObject* object, PlainLaunch& launch,
         bool is_recorded, std::vector<graphs::LaunchTensor>& tensors) {
  auto& values = launch.values;
  switch (kind) {
    case 'r':
    case 'w':
    case 'b': {
      const at::Tensor& tensor = tensor_of(kernel, object);
      TORCH_CHECK(tensor.is_privateuseone(), kernel.name,
                  ": expected a tensor of the device, got one on ", tensor.device());
      if (launch.device < 0) launch.device = tensor.device().index();
      values.push_back(address_value(tensor.const_data_ptr()));
      if (is_recorded) tensors.push_back({tensor, kind != 'w', kind != 'r'});
      return;
    }
    case 'd':
      values.push_back(number_value(tensor_of(kernel, object).item().toDouble()));
      return;
    case 'l':
      values.push_back(integer_value(tensor_of(kernel, object).item().toLong()));
      return;
    default: {
      const int64_t integer = PyLong_AsLongLong(object);
      if (integer == -1 && PyErr_Occurred() != nullptr) raise_current_python_error();
      values.push_back(integer_value(integer));
    }
  }
}

// work, then as kernel.parameters says.
PyObject* call(PyObject* self, PyObject* const* args, Py_ssize_t count) {
  try {
    const auto& kernel = *static_cast<const GeneratedKernel*>(PyCapsule_GetPointer(self, kCapsule));
    TORCH_CHECK(static_cast<size_t>(count) == kernel.parameters.size() + 1, kernel.name,
                ": expected ", kernel.parameters.size() + 1, " arguments, got ", count);
    const int64_t work = PyLong_AsLongLong(args[0]);
    if (work == -1 && PyErr_Occurred() != nullptr) return nullptr;
    PlainLaunch launch{kernel.lasting, -1, kernel.threads, 0, {}};
    const bool is_recorded = graphs::is_recording();
    std::vector<graphs::LaunchTensor> tensors;
    for (size_t i = 0; i < kernel.parameters.size(); ++i) {
      add(kernel, kernel.parameters[i], args[i + 1], launch, is_recorded, tensors);
    }
    TORCH_CHECK(launch.device >= 0, kernel.name,
                ": none of its arguments is a tensor of the device");
    if (work > 0) {
      launch.blocks = std::clamp<int64_t>((work + kernel.elements - 1) / kernel.elements, 1,
                                          kernel.most_blocks);
      if (!kernel.faults.empty()) {
        launch.values.push_back(
            address_value(fault_word_of(kernel.lasting, kernel.faults, launch.device)));
      }
      if (is_recorded) {
        graphs::launch_recorded(std::move(launch), std::move(tensors));
      } else {
        launch_plain_values(launch);
      }
    }
    Py_RETURN_NONE;
  } catch (const graphs::CaptureFailure& failure) {
    graphs::set_python_error(failure);
  } catch (...) {
    set_python_error_from_current_exception();
  }
  return nullptr;
}

// Sizes, strides, dtype and the number of the device: what the code around kernels asks for most,
// without the parser of torch's function.
PyObject* empty(PyObject*, PyObject* const* args, Py_ssize_t count) {
  try {
    TORCH_CHECK(count == 4 && THPDtype_Check(args[2]), "expected sizes, strides, dtype and device");
    const auto integers = [](PyObject* tuple) {
      TORCH_CHECK(PyTuple_Check(tuple), "expected a tuple, got ", Py_TYPE(tuple)->tp_name);
      c10::SmallVector<int64_t, 6> found;
      for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tuple); ++i) {
        found.push_back(PyLong_AsLongLong(PyTuple_GET_ITEM(tuple, i)));
      }
      return found;
    };
    const auto sizes = integers(args[0]), strides = integers(args[1]);
    const c10::Device device(c10::kPrivateUse1, static_cast<int>(PyLong_AsLong(args[3])));
    if (PyErr_Occurred() != nullptr) return nullptr;
    const auto dtype = reinterpret_cast<THPDtype*>(args[2])->scalar_type;
    return THPVariable_Wrap(at::empty_strided(sizes, strides, at::device(device).dtype(dtype)));
  } catch (...) {
    set_python_error_from_current_exception();
    return nullptr;
  }
}

PyMethodDef empty_definition{"empty_strided",
                             reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(&empty)),
                             METH_FASTCALL, "Makes a tensor: (sizes, strides, dtype, device)."};

PyMethodDef definition{"generated_kernel",
                       reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(&call)), METH_FASTCALL,
                       "Starts a generated kernel: (work, *arguments)."};

nb::object make(uint64_t id, std::string name, std::string parameters,
                std::vector<std::string> faults, int64_t threads, int64_t elements,
                int64_t most_blocks) {
  auto made = std::make_unique<GeneratedKernel>();
  made->lasting.kernel = runtime::KernelTable::instance().get(id);
  made->name = std::move(name);
  made->lasting.name = made->name.c_str();
  made->parameters = std::move(parameters);
  made->faults = std::move(faults);
  made->threads = threads;
  made->elements = elements;
  made->most_blocks = most_blocks;
  const nb::object capsule = nb::steal(PyCapsule_New(made.release(), kCapsule, nullptr));
  if (!capsule.is_valid()) throw nb::python_error();
  return nb::steal(PyCFunction_New(&definition, capsule.ptr()));
}

}  // namespace

void bind_generated_kernels(nb::module_& module) {
  module.def("generated_kernel", &make, nb::kw_only(), nb::arg("kernel"), nb::arg("name"),
             nb::arg("parameters"), nb::arg("faults"), nb::arg("threads"), nb::arg("elements"),
             nb::arg("most_blocks"));
  module.attr("empty_strided") = nb::steal(PyCFunction_New(&empty_definition, nullptr));
}

}  // namespace bringup::torch_ext::compiler
