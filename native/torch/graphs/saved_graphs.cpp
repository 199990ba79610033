#include "torch/graphs/saved_graphs.h"

#include <ATen/native/Resize.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unordered_map.h>
#include <nanobind/stl/vector.h>
#include <torch/csrc/Dtype.h>

#include <algorithm>

#include "runtime/kernel_table.h"
#include "torch/common/tensor_caster.h"
#include "torch/common/torch_private.h"
#include "torch/devices/driver.h"
#include "torch/graphs/control_node.h"
#include "torch/graphs/handler_call.h"
#include "torch/graphs/host_operators.h"
#include "torch/graphs/operator_traits.h"
#include "torch/graphs/values.h"
#include "torch/operators/operator_kernel.h"

namespace nb = nanobind;

namespace bringup::torch_ext::graphs {
namespace {

using Results = std::vector<std::pair<at::Tensor, bool>>;  // and whether it is an argument's memory

const char* const kDraws = "draws random numbers, whose generator is a process's";

// (whether only the device knows it, address, bytes) of a tensor's storage.
nb::tuple place_of(const at::Tensor& tensor) {
  const c10::Storage& storage = tensor.storage();
  const bool isolated = host_address(storage) == nullptr && !storage.device().is_cpu();
  return nb::make_tuple(isolated, reinterpret_cast<uintptr_t>(address_of(storage)),
                        storage.nbytes());
}

at::Tensor bytes_over(at::DataPtr data, size_t bytes) {
  return bytes_of(c10::Storage(c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), bytes, std::move(data), nullptr, false)));
}

nb::tuple operator_of(const c10::OperatorHandle& op) {
  const auto& name = op.operator_name();
  return nb::make_tuple(name.name, name.overload_name, c10::toString(op.schema()));
}

// What makes a node, or why a file cannot have it.
nb::object parts(const Graph& graph, size_t position) {
  const Node& node = *graph.nodes().at(position);
  nb::dict found;
  nb::list arguments;
  nb::list slots;
  nb::list allocations;
  Results outputs;
  for (const c10::IValue& value : graph.values().next_arguments(position)) {
    const size_t number = nb::len(arguments);
    arguments.append(to_python(value));
    if (const c10::IValue* slot = graph.values().inputs().slot(position, number)) {
      slots.append(nb::make_tuple(number, to_python(*slot)));
    }
  }
  found["kind"] = node.kind();
  found["updatable"] = node.updatable();
  found["target"] = node.target();
  found["operator"] = nb::none();
  if (const auto* op = dynamic_cast<const OperatorNode*>(&node)) {
    // Of operators of a device that may draw, some do not: attention without dropout.
    const auto& random = op->call().random;
    if (random && (random->given || random->inside->count > 0 || graph.random().at_run_time())) {
      return nb::str(kDraws);
    }
    found["operator"] = operator_of(op->call().op);
    for (const auto& output : op->call().outputs) outputs.emplace_back(output.tensor, output.fixed);
    for (const Allocation& one : op->call().allocations) {
      const auto address = reinterpret_cast<uintptr_t>(one.address);
      allocations.append(nb::make_tuple(address, one.bytes));
    }
  } else if (const auto* kernel = dynamic_cast<const KernelNode*>(&node)) {
    if (kernel->draws()) return nb::str(kDraws);
    found["operator"] = operator_of(kernel->record().handle);
    for (const at::Tensor& tensor : kernel->outputs()) outputs.emplace_back(tensor, false);
  } else if (const auto* copy = dynamic_cast<const DeviceCopyNode*>(&node)) {
    found["kind"] = "copy";
    outputs.emplace_back(copy->copy(), true);
    arguments.append(copy->source());
  } else if (const auto* constant = dynamic_cast<const ConstantNode*>(&node)) {
    outputs.emplace_back(constant->place(), true);
    arguments.append(constant->content());
  } else if (node.kind() == std::string("event")) {
    return nb::str("is an event, which other code of this process records or waits for");
  } else if (node.is_eager()) {
    return nb::str("is called eagerly, by code of this process");
  } else if (node.captured_call() != nullptr) {
    return nb::str("runs a kernel of another library, whose work the driver captured");
  } else if (const auto* control = dynamic_cast<const ControlNode*>(&node)) {
    if (control->on_device() != nullptr) {  // not as the host sees it
      at::DataPtr data(const_cast<void*>(control->on_device()), graph.device());
      arguments[0] = bytes_over(std::move(data), 1).view(at::kBool);
    }
  } else {
    return nb::str("is a kernel that torch.compile generated in this process");
  }
  found["arguments"] = arguments;
  found["slots"] = slots;
  found["outputs"] = outputs;
  found["allocations"] = allocations;
  return found;
}

// Of nodes, which one of the loaded kernels each runs.
std::unordered_map<size_t, runtime::KernelId> kernels(
    const Graph& graph, const std::vector<runtime::KernelId>& loaded) {
  std::unordered_map<const runtime::Kernel*, runtime::KernelId> numbers;
  for (const auto id : loaded) numbers[runtime::KernelTable::instance().find(id).get()] = id;
  std::unordered_map<size_t, runtime::KernelId> found;
  for (size_t i = 0; i < graph.nodes().size(); ++i) {
    const auto* node = dynamic_cast<const KernelNode*>(graph.nodes()[i].get());
    const auto known = node == nullptr ? numbers.end() : numbers.find(node->kernel());
    if (known != numbers.end()) found.emplace(i, known->second);
  }
  return found;
}

// The memory from before the capture, as bytes, and all that nodes write.
nb::tuple memory(const Graph& graph) {
  nb::list given;
  nb::list written;
  {
    const auto lock = graph.values().lock();
    graph.values().inputs().for_each(
        [&](const c10::Storage& storage) { given.append(bytes_of(storage)); });
  }
  for (const auto& node : graph.nodes()) {
    node->visit_accesses([&](const at::Tensor& tensor, bool writes) {
      if (writes) written.append(tensor);
    });
  }
  return nb::make_tuple(given, written);
}

// Bytes of a memory, as a storage of their own that does not keep it.
at::Tensor part(const at::Tensor& memory, size_t offset, size_t bytes) {
  const size_t all = memory.storage().nbytes();
  TORCH_CHECK_VALUE(offset <= all && bytes <= all - offset, "bytes beyond the memory");
  auto* data = static_cast<char*>(memory.storage().mutable_data()) + offset;
  return bytes_over({data, nullptr, &c10::detail::deleteNothing, memory.device()}, bytes);
}

// A tensor over the storage of `memory`, without a history; raises where it would reach beyond.
at::Tensor view(const at::Tensor& memory, nb::handle dtype, const std::vector<int64_t>& sizes,
                const std::vector<int64_t>& strides, int64_t offset, bool is_conj, bool is_neg) {
  if (!THPDtype_Check(dtype.ptr())) throw nb::type_error("no dtype");
  TORCH_CHECK_VALUE(std::ranges::all_of(sizes, [](int64_t size) { return size >= 0; }),
                    "a negative size");
  const at::ScalarType type = reinterpret_cast<THPDtype*>(dtype.ptr())->scalar_type;
  const auto key = c10::computeDispatchKey(type, at::kStrided, memory.device());
  at::Tensor tensor = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(memory.storage()), c10::DispatchKeySet(key), c10::scalarTypeToTypeMeta(type));
  at::native::setStrided<int64_t>(tensor, sizes, strides, offset);
  if (is_conj) tensor.unsafeGetTensorImpl()->_set_conj(true);
  if (is_neg) tensor.unsafeGetTensorImpl()->_set_neg(true);
  return tensor;
}

// (name, overload, schema).
using Operator = std::tuple<std::string, std::string, std::string>;

c10::OperatorHandle find(const Operator& op) {
  const auto& [name, overload, schema] = op;
  const auto found = c10::Dispatcher::singleton().findSchema({name, overload});
  TORCH_CHECK_VALUE(found, "nothing defines the operator ", name, " here; import what does");
  TORCH_CHECK_VALUE(c10::toString(found->schema()) == schema,
                    "the operator is defined otherwise here, as ", c10::toString(found->schema()));
  return *found;
}

// A node of a file, but for its kind.
struct Row {
  std::string op;
  std::string scope;
  std::vector<c10::IValue> arguments;
  Results outputs;
  std::vector<Allocation> allocations;
  bool updatable;
};

class GraphBuilder {
 public:
  // `device`: that of a driver that the nodes work on, or none for cpu. The graph has memory of its
  // own; `name` says what it is, for messages.
  GraphBuilder(std::shared_ptr<MemoryPool> memory, const std::string& name,
               std::optional<c10::DeviceIndex> device)
      : pool_(Pool::of(std::move(memory), name)), device_(device) {
    const RecordingInterceptor frees_by_address(pool_);
    install_cpu_allocation_interceptor();
  }
  GraphBuilder(const GraphBuilder&) = delete;
  GraphBuilder& operator=(const GraphBuilder&) = delete;

  // The graph's own memory, zeros, as bytes: what is to be a result keeps them.
  at::Tensor allocate(size_t bytes, bool on_device) {
    TORCH_CHECK_VALUE(device_ || !on_device, "memory of a device, and the graph has none");
    const c10::Device device =
        on_device ? c10::Device(c10::kPrivateUse1, *device_) : c10::Device(c10::kCPU);
    c10::Allocator& base = *c10::GetAllocator(device.type());
    at::Tensor memory =
        bytes_over(pool_->allocate(bytes, device, base, Origin::kUninitialised), bytes);
    pool_->find(memory.storage());  // which knows it from here on
    return memory.zero_();
  }

  // A tensor of the device as the host sees it.
  at::Tensor host_view(const at::Tensor& tensor) { return host_side_.view(tensor); }

  // A node uses this tensor from outside, by `user`.
  void use(const at::Tensor& tensor, const std::string& user) {
    inputs_.use(tensor, user);
    watch_->add_tensor(tensor, user);
  }

  // (operator, scope, file, line, function).
  using Name = std::tuple<std::string, std::string, std::string, int, std::string>;

  // A node with what parts() gave, behind the former ones. When it raises, the builder is of no use
  // any more.
  void add(const Name& name, const std::string& kind, const std::optional<Operator>& op,
           const nb::list& arguments, Results outputs, const nb::list& slots,
           const std::vector<std::tuple<at::Tensor, size_t, size_t>>& allocations, bool updatable,
           std::optional<size_t> target) {
    const auto& [title, scope, file, line, function] = name;
    const auto called = op ? std::optional(find(*op)) : std::nullopt;
    const bool is_slot = nb::len(slots) > 0;  // of a node without an operator
    Row row{title, scope, {}, std::move(outputs), {}, called ? updatable : is_slot};
    const auto read = [&](size_t i, const nb::object& value) {
      const c10::TypePtr tensor = c10::TensorType::get();
      return from_python(value, called ? called->schema().arguments().at(i).type() : tensor, true);
    };
    for (const nb::handle value : arguments) {
      row.arguments.push_back(read(row.arguments.size(), nb::borrow(value)));
    }
    for (const nb::handle slot : slots) {
      const auto [argument, value] = nb::cast<std::pair<size_t, nb::object>>(slot);
      TORCH_CHECK_VALUE(argument < row.arguments.size(), "a slot of no argument");
      inputs_.add_slot(nodes_.size(), argument, read(argument, value));
    }
    for (const auto& [memory, offset, bytes] : allocations) {
      const at::Tensor taken = part(memory, offset, bytes);
      row.allocations.push_back({taken.storage().mutable_data(), bytes, taken.device()});
    }
    nodes_.push_back(called ? call(*called, kind == "kernel", std::move(row))
                            : step(kind, std::move(row), target));
    if (!file.empty()) {
      auto code = std::make_shared<SourceLine::Function>(file, function);
      nodes_.back()->set_line({std::move(code), line});
    }
    if (device_) nodes_.back()->set_device(*device_);
  }

  // `written`: tensors whose version counters a replay moves. See Graph for the others.
  std::shared_ptr<Graph> finish(const std::vector<at::Tensor>& written, bool copies_to_host,
                                int level, int64_t verify) {
    for (const auto& node : nodes_) {
      TORCH_CHECK_VALUE(node->target().value_or(0) <= nodes_.size(), "control that leads nowhere");
    }
    pool_->seal();
    watch_->seal();  // it changed nothing
    WrittenVersions versions;
    for (const at::Tensor& tensor : written) versions.add(tensor);
    const auto devices = device_ ? std::vector{*device_} : std::vector<c10::DeviceIndex>();
    auto graph = std::make_shared<Graph>(pool_, std::move(nodes_), std::move(inputs_), devices,
                                         copies_to_host, GraphRandom(), level, verify);
    graph->take_given(watch_, std::move(versions).living());
    return graph;
  }

  // What the graph takes as given.
  const std::shared_ptr<Watch>& watch() const { return watch_; }

 private:
  // An operator that torch calls, or our kernel for it.
  std::unique_ptr<Node> call(const c10::OperatorHandle& op, bool is_kernel, Row row) {
    const auto [known, fresh] = traits_.try_emplace(&op.operator_name());
    if (fresh) known->second = look_up(op);
    const OperatorTraits& traits = known->second;
    TORCH_CHECK_VALUE(row.arguments.size() == op.schema().arguments().size(),
                      "another number of arguments");
    if (is_kernel) return kernel(op, traits, std::move(row));
    const auto keys =
        operator_entry(op).dispatchKeyExtractor().getDispatchKeySetBoxed(&row.arguments);
    const c10::DispatchKeySet below(c10::DispatchKeySet::FULL_AFTER,
                                    c10::DispatchKey::ADInplaceOrView);
    std::vector<OperatorNode::Output> outputs;
    for (auto& [tensor, fixed] : row.outputs) {
      void* address = tensor.storage().mutable_data();
      outputs.push_back({std::move(tensor), address, fixed});
    }
    OperatorNode::Call made{op,
                            traits.schema,
                            (keys & below).remove(c10::DispatchKey::Python),
                            std::move(row.arguments),
                            std::move(outputs),
                            std::move(row.allocations),
                            traits.out,
                            row.updatable,
                            std::nullopt};
    // On a device it has to draw nothing, as in the capture.
    if (device_ && traits.numbers.draws_inside())
      made.random = NodeRandom{traits.numbers, std::nullopt, Draws{}};
    made.from_shapes = true;  // it has its first run in the first replay
    return std::make_unique<OperatorNode>(row.op, row.scope, std::move(made));
  }

  std::unique_ptr<Node> kernel(const c10::OperatorHandle& op, const OperatorTraits& traits,
                               Row row) const {
    const KernelRecord* kernel = find_kernel(op);
    TORCH_CHECK_VALUE(kernel != nullptr && kernel->runs_on(device_ ? c10::kPrivateUse1 : c10::kCPU),
                      row.op, " has no kernel here");
    std::vector<at::Tensor> fresh;
    for (auto& [tensor, fixed] : row.outputs) fresh.push_back(std::move(tensor));
    auto node = std::make_unique<KernelNode>(
        row.op, row.scope,
        KernelNode::Call{traits.schema, *kernel, row.arguments, std::move(fresh), {}});
    node->check_arguments(row.arguments, row.arguments);
    if (device_) node->start_on_device(*device_);
    return node;
  }

  // A node that calls no operator.
  std::unique_ptr<Node> step(const std::string& kind, Row row, std::optional<size_t> target) {
    TORCH_CHECK_VALUE(row.arguments.size() == 1, "another number of arguments");
    at::Tensor read = row.arguments.front().toTensor();
    if (kind == "control") {
      TORCH_CHECK_VALUE(!read.defined() || (read.scalar_type() == at::kBool && read.numel() == 1),
                        "a predicate that is no bool");
      const bool on_device = read.defined() && read.is_privateuseone();
      const void* where = on_device ? read.const_data_ptr() : nullptr;
      if (on_device && driver_facts().host_visible) read = host_side_.view(read);
      auto node =
          std::make_unique<ControlNode>(row.op, row.scope, std::move(read), where, row.updatable);
      node->go_to(target.value());
      return node;
    }
    at::Tensor written = row.outputs.at(0).first;
    if (kind == "constant") {
      TORCH_CHECK_VALUE(read.sizes() == written.sizes(), "a constant of another size");
      return std::make_unique<ConstantNode>(row.scope, std::move(read), std::move(written));
    }
    TORCH_CHECK_VALUE(kind == "copy", "a node of kind '", kind, "'");
    TORCH_CHECK_VALUE(read.device() == written.device() && written.is_privateuseone() &&
                          read.nbytes() == written.nbytes() &&
                          read.is_non_overlapping_and_dense() &&
                          written.is_non_overlapping_and_dense(),
                      "a copy of other bytes than it has");
    return std::make_unique<DeviceCopyNode>(row.op, row.scope, nullptr, std::move(read),
                                            std::move(written));
  }

  std::shared_ptr<Pool> pool_;
  std::optional<c10::DeviceIndex> device_;
  std::vector<std::unique_ptr<Node>> nodes_;
  std::unordered_map<const void*, OperatorTraits> traits_;
  Inputs inputs_;
  HostSide host_side_;
  std::shared_ptr<Watch> watch_ = std::make_shared<Watch>();
};

}  // namespace

void bind_saving(nb::module_& module, nb::class_<Graph>& graph) {
  module.def("place_of", &place_of, nb::arg("tensor"));
  module.def("part", &part, nb::arg("memory"), nb::arg("offset"), nb::arg("bytes"));
  module.def("view", &view, nb::arg("memory"), nb::arg("dtype"), nb::arg("sizes"),
             nb::arg("strides"), nb::arg("offset"), nb::arg("is_conj"), nb::arg("is_neg"));
  graph.def("parts", &parts, nb::arg("node"))
      .def("memory", &memory)
      .def("kernels", &kernels, nb::arg("loaded"))
      .def_prop_ro("shares_host_memory", &Graph::shares_host_memory)
      .def_prop_ro("devices",
                   [](const Graph& one) {
                     const auto devices = one.devices();
                     return std::vector<int>(devices.begin(), devices.end());
                   })
      .def_prop_ro("has_gradients", [](Graph& one) { return !one.gradients().empty(); });
  nb::class_<GraphBuilder>(module, "GraphBuilder")
      .def(nb::init<std::shared_ptr<MemoryPool>, const std::string&,
                    std::optional<c10::DeviceIndex>>(),
           nb::arg("memory"), nb::arg("name"), nb::arg("device").none())
      .def("allocate", &GraphBuilder::allocate, nb::arg("bytes"), nb::arg("on_device"))
      .def("host_view", &GraphBuilder::host_view, nb::arg("tensor"))
      .def("use", &GraphBuilder::use, nb::arg("tensor"), nb::arg("user"))
      .def("add", &GraphBuilder::add, nb::arg("name"), nb::arg("kind"), nb::arg("operator").none(),
           nb::arg("arguments"), nb::arg("outputs"), nb::arg("slots"), nb::arg("allocations"),
           nb::arg("updatable"), nb::arg("target").none())
      .def("finish", &GraphBuilder::finish, nb::arg("written"), nb::arg("copies_to_host"),
           nb::arg("level"), nb::arg("verify"))
      .def_prop_ro("watch", &GraphBuilder::watch);
}

}  // namespace bringup::torch_ext::graphs
