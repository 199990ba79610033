#include "torch/graphs/watch_bindings.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "torch/common/tensor_caster.h"
#include "torch/graphs/frozen_weights.h"
#include "torch/graphs/recorder.h"
#include "torch/graphs/watch.h"

namespace nb = nanobind;

namespace bringup::torch_ext::graphs {
namespace {

int traverse_watch(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  return nb::inst_ready(self) ? nb::inst_ptr<Watch>(self)->traverse(visit, arg) : 0;
}

int clear_watch(PyObject* self) {
  if (nb::inst_ready(self)) nb::inst_ptr<Watch>(self)->clear();
  return 0;
}

PyType_Slot watch_slots[] = {{Py_tp_traverse, reinterpret_cast<void*>(traverse_watch)},
                             {Py_tp_clear, reinterpret_cast<void*>(clear_watch)},
                             {0, nullptr}};

// `arguments` outlives what it returns.
FrozenWeights::Given among(const nb::list& arguments) {
  return [&arguments](size_t argument) -> const at::Tensor& {
    static const at::Tensor none;
    PyObject* item = PyList_GetItem(arguments.ptr(), static_cast<Py_ssize_t>(argument));
    if (item == nullptr) throw nb::python_error();
    return is_tensor_object(item) ? THPVariable_Unpack(item) : none;
  };
}

std::optional<std::string> change_of(FrozenWeights& weights, const nb::list& arguments) {
  const FrozenWeights::Given given = among(arguments);
  return weights.change(&given);
}

// What was folded from the weights runs now: a capture under way on this thread depends on them.
void join_capture(const std::shared_ptr<FrozenWeights>& weights, const nb::list& arguments) {
  const Recorder* recorder = Recorder::current();
  if (recorder == nullptr || recorder->paused()) return;
  recorder->watch()->add_frozen(weights, among(arguments));
}

}  // namespace

void bind_watch(nb::module_& module) {
  nb::class_<FrozenWeights>(module, "FrozenWeights")
      .def(nb::init<>())
      .def("add", &FrozenWeights::add, nb::arg("name"), nb::arg("weight"), nb::arg("argument"))
      .def("set_constants", &FrozenWeights::set_constants, nb::arg("constants"))
      .def("change", &change_of, nb::arg("arguments"))
      .def("join_capture", &join_capture, nb::arg("arguments"));
  nb::class_<ReadVersions>(module, "ReadVersions")
      .def("name", &ReadVersions::name, nb::arg("tensor"), nb::arg("name"))
      .def("settle", &ReadVersions::settle, nb::arg("without"))
      .def("now", &ReadVersions::now)
      .def("written_since", &ReadVersions::written_since, nb::arg("versions"));
  nb::class_<Watch>(module, "Watch", nb::type_slots(watch_slots))
      .def("add_slot", &Watch::add_slot, nb::arg("dict"), nb::arg("key"), nb::arg("name"),
           nb::arg("compares_memory") = true)
      .def("keep_versions", &Watch::keep_versions)
      .def("add_list", &Watch::add_list, nb::arg("list"), nb::arg("name"))
      .def(
          "name_tensor",
          [](Watch& watch, const at::Tensor& tensor, const std::string& name) {
            watch.name_tensor(tensor.unsafeGetTensorImpl(), name);
          },
          nb::arg("tensor"), nb::arg("name"))
      .def("mirror", &Watch::mirror, nb::arg("owner"), nb::arg("attributes"))
      .def("reads", &Watch::reads, nb::arg("tensor"))
      .def("is_replaced", &Watch::is_replaced, nb::arg("former"), nb::arg("now"))
      .def("change", &Watch::change)
      .def("refresh", &Watch::refresh);
}

}  // namespace bringup::torch_ext::graphs
