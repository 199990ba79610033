#include "torch/graphs/run_bindings.h"

#include <nanobind/stl/vector.h>

#include <algorithm>
#include <array>
#include <string>
#include <utility>
#include <vector>

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
  std::vector<at::Tensor> copies;
  graph.with_given([&] { copies = graph.run(run_locks, std::move(inputs), results, write_slots); });
  return copies;
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

// The addresses from the first to behind the last element of an argument.
struct Span {
  uintptr_t begin = 0, end = 0;
  int64_t argument = 0;
  int64_t offset = 0;  // where the tensor begins in its storage
};

Span span_of(const nb::handle item, size_t argument) {
  if (!is_tensor_object(item.ptr())) return {};
  const at::Tensor& tensor = THPVariable_Unpack(item.ptr());
  if (tensor.layout() != at::kStrided || !tensor.has_storage() || tensor.numel() == 0) return {};
  auto& storage = *tensor.storage().unsafeGetStorageImpl();
  const void* memory = storage._mutable_data_ptr_no_checks().get();  // copies nothing, never throws
  if (memory == nullptr) return {};
  int64_t last = tensor.storage_offset();
  for (int64_t d = 0; d < tensor.dim(); ++d) last += (tensor.size(d) - 1) * tensor.stride(d);
  const auto address = [&](int64_t index) {
    return reinterpret_cast<uintptr_t>(memory) + index * tensor.element_size();
  };
  return {address(tensor.storage_offset()), address(last + 1), static_cast<int64_t>(argument),
          tensor.storage_offset()};
}

// Starts loading what span_of() will read of later arguments: with hundreds of weights that is most
// of its time.
void prefetch(const nb::tuple& arguments, size_t i) {
  constexpr size_t kAhead = 6;
  if (i + 2 * kAhead < arguments.size())
    __builtin_prefetch(nb::handle(arguments[i + 2 * kAhead]).ptr());
  if (i + kAhead >= arguments.size()) return;
  const nb::handle later = arguments[i + kAhead];
  if (!is_tensor_object(later.ptr())) return;
  const auto* lines =
      reinterpret_cast<const char*>(THPVariable_Unpack(later.ptr()).unsafeGetTensorImpl());
  for (size_t offset = 0; offset < sizeof(c10::TensorImpl); offset += 64) {
    __builtin_prefetch(lines + offset);
  }
}

// Which arguments of a call lie within the same addresses where at least one of the two is written:
// (argument, its storage offset, argument, its storage offset) of each pair, the lower argument
// first. `written` has one byte for each argument.
nb::list overlaps(const nb::tuple& arguments, const nb::bytes& written) {
  std::vector<Span> targets;
  uintptr_t lowest = UINTPTR_MAX, highest = 0;
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (written.c_str()[i] == 0) continue;
    const Span span = span_of(arguments[i], i);
    if (span.begin == span.end) continue;
    targets.push_back(span);
    lowest = std::min(lowest, span.begin);
    highest = std::max(highest, span.end);
  }
  std::vector<std::array<int64_t, 4>> found;
  for (size_t i = 0; i < arguments.size(); ++i) {
    prefetch(arguments, i);
    const Span span = span_of(arguments[i], i);
    if (span.begin >= highest || span.end <= lowest) continue;
    for (const Span& target : targets) {
      if (span.begin >= target.end || target.begin >= span.end) continue;
      const bool again = written.c_str()[i] != 0 && target.argument <= span.argument;
      if (again) continue;  // itself, or met from the other side
      const auto& [low, high] = std::minmax(
          span, target, [](const Span& a, const Span& b) { return a.argument < b.argument; });
      found.push_back({low.argument, low.offset, high.argument, high.offset});
    }
  }
  std::sort(found.begin(), found.end());
  nb::list pairs;
  for (const auto& [one, at, other, there] : found) {
    pairs.append(nb::make_tuple(one, at, other, there));
  }
  return pairs;
}

}  // namespace

void refuse_replay_in_capture() {
  if (!is_recording()) return;
  throw CaptureFailure(
      "a graph cannot be traced while another one is captured: trace it before or after");
}

void bind_run(nb::module_& module, nb::class_<Graph>& graph) {
  nb::class_<PoolTurn>(module, "PoolTurn")
      .def(nb::init<std::shared_ptr<MemoryPool>>(), nb::arg("pool"),
           nb::call_guard<nb::gil_scoped_release>());
  module.def("inside_run", &RunLocks::is_inside);
  nb::class_<RunLocks>(module, "RunLocks")
      .def(nb::init<const std::vector<at::Tensor>&>(), nb::arg("tensors"));
  graph.def("run", &run, nb::arg("run_locks"), nb::arg("targets"), nb::arg("given"),
            nb::arg("results"), nb::arg("update").none());
  graph.def("set_run_inputs", &Graph::set_run_inputs, nb::arg("inputs"));
  module.def("copied", &own_copy, nb::arg("tensor"));
  module.def("share_memory", &share_memory, nb::arg("left"), nb::arg("right"));
  module.def("overlaps", &overlaps, nb::arg("arguments"), nb::arg("written"));
  module.def("call_kind", &call_kind, nb::arg("arguments"), nb::arg("stays"));
}

}  // namespace bringup::torch_ext::graphs
