#include "torch/graphs/fused_bindings.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <tuple>

#include "torch/graphs/out_variant.h"
#include "torch/graphs/values.h"
#include "torch/operators/operator_kernel.h"

namespace bringup::torch_ext::graphs {
namespace {

namespace nb = nanobind;

// (address, dtype, sizes, strides, its number where it is one in tensor form).
nb::tuple described(const at::Tensor& tensor) {
  nb::list sizes, strides;
  for (const int64_t size : tensor.sizes()) sizes.append(size);
  for (const int64_t stride : tensor.strides()) strides.append(stride);
  nb::object number = nb::none();
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) {
    if (tensor.scalar_type() == at::kDouble) {
      number = nb::float_(*tensor.const_data_ptr<double>());
    } else if (tensor.scalar_type() == at::kLong) {
      number = nb::int_(*tensor.const_data_ptr<int64_t>());
    }
  }
  return nb::make_tuple(reinterpret_cast<uintptr_t>(tensor.const_data_ptr()),
                        dtype_text(tensor.scalar_type()).substr(sizeof("torch.") - 1),
                        nb::tuple(sizes), nb::tuple(strides), number);
}

// A tensor as above, a number, None, or "" for all else.
nb::object described(const c10::IValue& value) {
  if (value.isTensor() && value.toTensor().defined()) return described(value.toTensor());
  if (value.isNone() || value.isTensor()) return nb::none();
  if (value.isBool()) return nb::bool_(value.toBool());
  if (value.isInt()) return nb::int_(value.toInt());
  if (value.isDouble()) return nb::float_(value.toDouble());
  return nb::str("");
}

struct NodeArguments {
  FusedRuns::Arguments values;
};

bool is_pointwise(const KernelNode& node) {
  const auto* kernel = dynamic_cast<const OperatorKernel*>(&node.record());
  return kernel != nullptr && kernel->kind == OperatorKernelKind::kPointwise;
}

// The bytes that a node reads and those it fills, as (address, bytes, whether it fills them); of a
// tensor with gaps that is written, nothing. None for what is no operator: it may read all there
// is. What torch's own operators do not read of an `out`, others may, or leave parts of it alone.
nb::object memory_of(const Node& node, const std::vector<c10::IValue>& arguments) {
  const auto* operator_node = dynamic_cast<const OperatorNode*>(&node);
  const auto* kernel = dynamic_cast<const KernelNode*>(&node);
  const bool is_seen = node.runs_on_device() && node.captured_call() == nullptr && !node.is_eager();
  if (operator_node == nullptr && !is_seen) return nb::none();
  nb::list found;
  const auto add = [&](const at::Tensor& tensor, bool writes) {
    if (!tensor.defined() || tensor.numel() == 0) return;
    if (!tensor.has_storage() || tensor.layout() != c10::kStrided) {
      found.append(nb::make_tuple(0, UINT64_MAX, false));
    } else if (!writes || tensor.is_non_overlapping_and_dense()) {
      const size_t bytes =
          at::detail::computeStorageNbytes(tensor.sizes(), tensor.strides(), tensor.itemsize());
      found.append(
          nb::make_tuple(reinterpret_cast<uintptr_t>(tensor.const_data_ptr()), bytes, writes));
    }
  };
  if (operator_node == nullptr && kernel == nullptr) {
    node.visit_accesses(add);
    return found;
  }
  visit_arguments(*node.schema(), arguments, add);
  if (kernel != nullptr ? !is_pointwise(*kernel) : !has_kernel_of_torch(operator_node->call().op)) {
    visit_arguments(*node.schema(), arguments,
                    [&](const at::Tensor& tensor, bool) { add(tensor, false); });
  }
  if (kernel != nullptr) {
    for (const at::Tensor& output : kernel->outputs()) add(output, true);
    return found;
  }
  for (const OperatorNode::Output& output : operator_node->call().outputs) {
    add(output.tensor, true);
  }
  return found;
}

nb::list spans_of(const Spans& spans) {
  nb::list found;
  for (const auto& [first, last] : spans) {
    found.append(
        nb::make_tuple(reinterpret_cast<uintptr_t>(first), reinterpret_cast<uintptr_t>(last)));
  }
  return found;
}

// Whether operators that run on the host find the graph's memory where the device has it.
bool has_one_address(const Graph& graph) {
  if (graph.device().is_cpu()) return true;
  const bringup_driver& driver = *active_driver();
  if (driver.host_view == nullptr) return true;
  return std::ranges::all_of(graph.pool().spans(), [&](const auto& span) {
    void* view = nullptr;  // none of the host's own
    const int32_t status = driver.host_view(graph.device().index(), span.first, &view);
    return status != BRINGUP_OK || view == span.first;
  });
}

bool is_straight(const Graph& graph) {
  return std::ranges::none_of(graph.nodes(),
                              [](const auto& node) { return node->target().has_value(); });
}

// Nodes' memory, the graph's own, and what of it has handles. Of a graph that shares its pool
// nothing is its own: another's nodes may read it without a handle. Nor of one with control flow,
// where the nodes behind another one are not all that comes after it.
nb::tuple memory_uses(Graph& graph, const FusedRuns::Arguments& arguments) {
  nb::list nodes;
  const bool one_address = has_one_address(graph);
  for (size_t i = 0; i < graph.nodes().size(); ++i) {
    const Node& node = *graph.nodes()[i];
    const bool known = one_address || node.runs_on_device();
    nodes.append(known ? memory_of(node, arguments[i]) : nb::none());
  }
  Spans held;
  for (const auto& block : graph.pool().live_blocks()) {
    held.emplace_back(block->data, block->data + block->capacity);
  }
  const MemoryPool& pool = graph.pool().memory();
  const bool is_alone = pool.graphs().size() == 1 && !pool.reuses_results();
  const bool is_own = is_alone && is_straight(graph);
  return nb::make_tuple(nodes, spans_of(is_own ? graph.pool().spans() : Spans()), spans_of(held));
}

// Of what the device runs why no generated kernel may do the work, or (operator, arguments,
// results, what planned its kernel, arguments for that), of a copy with None and None.
nb::object device_row(const Node& node, const std::vector<c10::IValue>& given) {
  if (const char* reason = why_no_device_run(node)) return nb::str(reason);
  nb::list arguments, results;
  const auto* kernel = dynamic_cast<const KernelNode*>(&node);
  if (kernel == nullptr) {
    node.visit_accesses([&](const at::Tensor& one, bool) { arguments.append(described(one)); });
    return nb::make_tuple(node.op(), arguments, results, nb::none(), nb::none());
  }
  for (const c10::IValue& value : given) arguments.append(described(value));
  for (const at::Tensor& output : kernel->outputs()) results.append(described(output));
  const auto& record = static_cast<const OperatorKernel&>(kernel->record());
  return nb::make_tuple(node.op(), arguments, results, nb::borrow(record.compile),
                        values_for_python(record, given));
}

// For every node why no generated function may do its work, or (operator, arguments, results,
// whether an update may write arguments), or as device_row() says; what fuse() needs to know of the
// arguments; and who uses which memory.
nb::tuple fusable(Graph& graph) {
  NodeArguments arguments_now;
  {
    const nb::gil_scoped_release no_gil;
    arguments_now.values = graph.arguments();
  }
  nb::list rows;
  const bool straight = is_straight(graph);
  for (size_t i = 0; i < graph.nodes().size(); ++i) {
    const auto& node = graph.nodes()[i];
    if (node->runs_on_device()) {
      rows.append(straight ? device_row(*node, arguments_now.values[i])
                           : nb::object(nb::str("the graph has control flow")));
      continue;
    }
    if (const char* reason = why_not_fusable(*node)) {
      rows.append(nb::str(reason));
      continue;
    }
    const OperatorNode::Call& call = static_cast<const OperatorNode&>(*node).call();
    nb::list arguments, results;
    for (const c10::IValue& value : arguments_now.values[i]) arguments.append(described(value));
    for (const OperatorNode::Output& output : call.outputs) {
      results.append(described(output.tensor));
    }
    rows.append(nb::make_tuple(node->op(), arguments, results, call.updatable));
  }
  const nb::tuple uses = memory_uses(graph, arguments_now.values);
  return nb::make_tuple(rows, std::move(arguments_now), uses);
}

using NumberRow = std::tuple<size_t, size_t, size_t, double>;
using MemoryRow = std::vector<std::pair<uintptr_t, size_t>>;
using RunRow =
    std::tuple<uintptr_t, size_t, size_t, std::vector<uintptr_t>, std::vector<double>,
               std::vector<NumberRow>, std::pair<int64_t, int64_t>, MemoryRow, MemoryRow>;

// Address, sizes, strides, and the node and argument that give a number.
using GivenRow = std::tuple<uintptr_t, std::vector<int64_t>, std::vector<int64_t>,
                            std::optional<std::pair<size_t, size_t>>>;
// Nodes, name, kernel, what it is given, which tensors nodes read, and whose results it writes.
using DeviceRow =
    std::tuple<size_t, size_t, std::string, runtime::KernelId, std::vector<GivenRow>,
               std::vector<std::tuple<size_t, size_t, uintptr_t>>, std::vector<size_t>>;

char* as_memory(uintptr_t address) { return reinterpret_cast<char*>(address); }

FusedRuns::Run as_run(const RunRow& row) {
  const auto& [function, first, count, addresses, numbers, updatable, extent, written, saved] = row;
  FusedRuns::Run run{first,
                     count,
                     reinterpret_cast<FusedRuns::Function>(function),
                     {},
                     numbers,
                     {},
                     extent.first,
                     extent.second,
                     {},
                     {}};
  for (const uintptr_t address : addresses) run.addresses.push_back(as_memory(address));
  for (const auto& [node, argument, position, most] : updatable) {
    run.updatable.push_back({node, argument, position, most});
  }
  for (const auto& [address, bytes] : written) run.written.emplace_back(as_memory(address), bytes);
  for (const auto& [address, bytes] : saved)
    run.overwritten.emplace_back(as_memory(address), bytes);
  return run;
}

DeviceRuns::Run as_device_run(const DeviceRow& row) {
  const auto& [first, count, name, kernel, given, reads, results] = row;
  auto code = runtime::KernelTable::instance().get(kernel);
  DeviceRuns::Run run{first, count, name, std::move(code), {}, {}, results};
  for (const auto& [address, sizes, strides, number] : given) {
    std::optional<DeviceRuns::Place> place;
    if (number) place = {number->first, number->second};
    run.given.push_back({as_memory(address), sizes, strides, place});
  }
  for (const auto& [node, position, address] : reads) {
    run.reads.push_back({{node, position}, as_memory(address)});
  }
  return run;
}

}  // namespace

void bind_fusing(nb::module_& module, nb::class_<Graph>& graph) {
  nb::class_<NodeArguments>(module, "NodeArguments");
  graph.def("fusable", &fusable)
      .def(
          "fuse",
          [](Graph& graph, const std::vector<RunRow>& rows, const std::vector<DeviceRow>& kernels,
             std::vector<std::string> reasons, const NodeArguments& arguments) {
            std::vector<FusedRuns::Run> runs;
            for (const RunRow& row : rows) runs.push_back(as_run(row));
            std::vector<DeviceRuns::Run> device_runs;
            for (const DeviceRow& row : kernels) device_runs.push_back(as_device_run(row));
            auto fused = std::make_shared<FusedRuns>(graph.nodes(), std::move(runs),
                                                     std::move(reasons), arguments.values);
            const nb::gil_scoped_release no_gil;
            graph.fuse(std::move(fused), std::move(device_runs));
          },
          nb::arg("runs"), nb::arg("kernels"), nb::arg("reasons"), nb::arg("arguments"))
      .def(
          "do_not_fuse",
          [](Graph& graph, std::string why) {
            const nb::gil_scoped_release no_gil;
            graph.fuse(nullptr, std::move(why));
          },
          nb::arg("why"));
}

}  // namespace bringup::torch_ext::graphs
