#include "torch/graphs/run_bindings.h"

#include <nanobind/stl/vector.h>

#include <string>
#include <utility>

#include "torch/common/tensor_caster.h"
#include "torch/graphs/copies.h"
#include "torch/graphs/errors.h"
#include "torch/graphs/recorder.h"

namespace nb = nanobind;

namespace bringup::torch_ext::graphs {
namespace {

std::vector<at::Tensor> run(Graph& graph, const RunLocks& run_locks,
                            std::vector<at::Tensor> targets, std::vector<at::Tensor> given,
                            const std::vector<at::Tensor>& results, const nb::object& update) {
  refuse_replay_in_capture();
  graph.check_given();
  std::vector<InputCopy> inputs;
  for (size_t i = 0; i < targets.size(); ++i) {
    inputs.push_back({std::move(targets[i]), std::move(given.at(i))});
  }
  std::function<void()> write_slots;
  if (!update.is_none()) {
    write_slots = [&] {
      const nb::gil_scoped_acquire gil;
      update();
    };
  }
  const nb::gil_scoped_release no_gil;
  return graph.run(run_locks, std::move(inputs), results, write_slots);
}

template <class T>
void append(std::string& bytes, const T& value) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

// What the call of a compiled function with these arguments has in common with the calls that one
// capture serves: shape, strides, dtype and device of every tensor, the address of those that stay
// where they are and how their content is read, and every other value with its type, numbers to the
// bit: -0.0 is not 0.0, and nan is nan.
nb::tuple call_kind(const nb::list& arguments, const std::vector<bool>& stays) {
  std::string tensors;
  nb::list others;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const nb::handle item = arguments[i];
    const bool is_tensor = is_tensor_object(item.ptr());
    append(tensors, is_tensor);
    if (!is_tensor) {
      others.append(item.type());
      const bool is_complex = PyComplex_Check(item.ptr());
      const bool has_bits = is_complex || PyFloat_Check(item.ptr());
      if (is_complex) append(tensors, PyComplex_AsCComplex(item.ptr()));
      if (has_bits && !is_complex) append(tensors, PyFloat_AsDouble(item.ptr()));
      others.append(has_bits ? nb::none() : nb::borrow(item));
      continue;
    }
    const at::Tensor& tensor = THPVariable_Unpack(item.ptr());
    append(tensors, tensor.dim());
    tensors.append(reinterpret_cast<const char*>(tensor.sizes().data()), tensor.dim() * 8);
    tensors.append(reinterpret_cast<const char*>(tensor.strides().data()), tensor.dim() * 8);
    append(tensors, tensor.scalar_type());
    append(tensors, tensor.device().type());
    append(tensors, tensor.device().index());
    if (!stays.at(i)) continue;
    append(tensors, tensor.const_data_ptr());
    append(tensors, tensor.is_conj());
    append(tensors, tensor.is_neg());
  }
  return nb::make_tuple(nb::bytes(tensors.data(), tensors.size()), nb::tuple(others));
}

}  // namespace

void refuse_replay_in_capture() {
  if (Recorder::current() == nullptr) return;
  throw CaptureFailure(
      "a graph cannot be replayed while another one is captured: replay it before or after");
}

void bind_run(nb::module_& module, nb::class_<Graph>& graph) {
  nb::class_<RunLocks>(module, "RunLocks")
      .def(nb::init<const std::vector<at::Tensor>&>(), nb::arg("tensors"));
  graph.def("run", &run, nb::arg("run_locks"), nb::arg("targets"), nb::arg("given"),
            nb::arg("results"), nb::arg("update").none());
  graph.def("set_run_inputs", &Graph::set_run_inputs, nb::arg("inputs"));
  module.def("copied", &own_copy, nb::arg("tensor"));
  module.def("share_memory", &share_memory, nb::arg("left"), nb::arg("right"));
  module.def("call_kind", &call_kind, nb::arg("arguments"), nb::arg("stays"));
}

}  // namespace bringup::torch_ext::graphs
