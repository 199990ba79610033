#include "torch/graphs/eager_node.h"

#include <ATen/EmptyTensor.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/stack.h>
#include <ATen/ops/empty_strided.h>
#include <c10/util/ScopeExit.h>
#include <nanobind/nanobind.h>
#include <torch/csrc/Exceptions.h>

#include <torch/csrc/distributed/c10d/Work.hpp>

#include "torch/common/written_arguments.h"
#include "torch/graphs/argument_lists.h"
#include "torch/graphs/errors.h"
#include "torch/graphs/outside_capture.h"
#include "torch/graphs/recorder.h"
#include "torch/graphs/run_locks.h"
#include "torch/graphs/values.h"

namespace bringup::torch_ext::graphs {
namespace {

using c10d::Work;

bool is_work(const c10::IValue& value) {
  static const c10::TypePtr type = c10::getCustomClassType<c10::intrusive_ptr<Work>>();
  return value.isCustomClass() && *value.type() == *type;
}

// In the place of one that was waited for, which a capture would see as a wait of the host.
class FinishedWork final : public Work {
 public:
  FinishedWork() { finish(); }
};

bool is_host_value(const c10::IValue& value) {
  return !value.isNone() && !value.isTensor() && !lists_tensors(value) && !is_work(value);
}

// Elements from the first to the last one, holes too, as they lie.
at::Tensor span_of(const at::Tensor& tensor) {
  at::Tensor span = shallow_copy(tensor);
  c10::TensorImpl* impl = span.unsafeGetTensorImpl();
  const size_t bytes =
      at::detail::computeStorageNbytes(tensor.sizes(), tensor.strides(), tensor.element_size());
  const auto count = static_cast<int64_t>(bytes / tensor.element_size());
  impl->_set_conj(false);
  impl->_set_neg(false);
  impl->set_sizes_and_strides(c10::IntArrayRef(count), c10::IntArrayRef(int64_t{1}),
                              tensor.storage_offset());
  return span;
}

// Names the call in an exception of Python's.
void add_note(PyObject* value, const std::string& note) {
  const nanobind::gil_scoped_acquire gil;
  if (value == nullptr || !PyExceptionInstance_Check(value)) return;
  nanobind::list notes;
  if (PyObject_HasAttrString(value, "__notes__") == 1) {
    notes = nanobind::steal<nanobind::list>(PyObject_GetAttrString(value, "__notes__"));
  }
  notes.append(nanobind::str(note.c_str()));
  if (PyObject_SetAttrString(value, "__notes__", notes.ptr()) != 0) PyErr_Clear();
}

}  // namespace

ThreadModes::ThreadModes()
    : keys_(c10::impl::tls_local_dispatch_key_set()),
      autograd_(c10::AutogradState::get_tls_state()) {
  keys_.included_ = keys_.included_ - kUnseenKeys;
  keys_.excluded_ = keys_.excluded_ | kUnseenKeys;
}

void ThreadModes::run(const std::function<void()>& call) const {
  const c10::impl::ForceDispatchKeyGuard keys(keys_);
  const InterceptorScope no_interceptor{nullptr};
  const auto back = c10::make_scope_exit([autograd = c10::AutogradState::get_tls_state(),
                                          caches = at::autocast::is_autocast_cache_enabled()] {
    c10::AutogradState::set_tls_state(autograd);
    at::autocast::set_autocast_cache_enabled(caches);
  });
  c10::AutogradState::set_tls_state(autograd_);
  at::autocast::set_autocast_cache_enabled(false);  // nothing would clear it
  call();
}

void call_eagerly(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                  std::vector<c10::IValue>* stack) {
  op.redispatchBoxed(keys, stack);
  const auto results = torch::jit::last(*stack, op.schema().returns().size());
  for (const c10::IValue& result : results) {
    if (is_work(result)) result.toCustomClass<Work>()->wait();
  }
  if (op.operator_name().getNamespace() != "_c10d_functional") return;
  const auto wait =
      c10::Dispatcher::singleton().findSchemaOrThrow("_c10d_functional::wait_tensor", "");
  for_each_tensor(results, [&](const at::Tensor& tensor) {
    std::vector<c10::IValue> one{tensor};
    wait.callBoxed(&one);
  });
}

void copy_laid_out(const at::Tensor& target, const at::Tensor& source) {
  const bool alike = target.strides() == source.strides() && target.is_conj() == source.is_conj() &&
                     target.is_neg() == source.is_neg();
  if (target.numel() == 0) return;
  alike ? span_of(target).copy_(span_of(source)) : target.copy_(source);
}

EagerNode::EagerNode(std::string op, std::string scope, OperatorNode::Call call, ThreadModes modes)
    : EagerCall(std::move(op), std::move(scope), call.schema),
      call_(std::move(call)),
      modes_(modes) {
  for (size_t i = 0; i < call_.args.size(); ++i) {
    if (!call_.args[i].isGenerator()) continue;
    generators_.emplace_back(i, call_.args[i].toGenerator().getIntrusivePtr());
    call_.args[i] = c10::IValue();
  }
  const auto on_host = [](const at::Tensor& tensor) { return tensor.is_cpu(); };
  waits_ = any_tensor(call_.args, on_host);
  for (const OperatorNode::Output& output : call_.outputs) waits_ |= output.tensor.is_cpu();
}

void EagerNode::run_between_graphs() {
  const auto inside = RunLocks::inside();
  std::vector<c10::IValue> stack = call_.args;
  take_own_lists(stack);
  for (const auto& [place, generator] : generators_) {
    auto there = generator.lock();
    TORCH_CHECK(there, op(), " drew from a torch.Generator that was freed since: keep it");
    stack[place] = at::Generator(std::move(there));
  }
  const auto note = [this] {
    return "raised by an eager call of a captured graph: " + description();
  };
  try {
    modes_.run([&] { call_eagerly(call_.op, call_.keys, &stack); });
  } catch (const pybind11::error_already_set& error) {
    add_note(error.value().ptr(), note());
    throw;
  } catch (const python_error& error) {
    add_note(error.value, note());
    throw;
  }
  take(stack);
}

// All or none.
void EagerNode::take(const std::vector<c10::IValue>& results) const {
  const OutsideCapture outside;
  size_t next = 0;
  for_each_tensor(results, [&](const at::Tensor& result) {
    call_.check(op(), next, result);
    const OperatorNode::Output& output = call_.outputs[next++];
    TORCH_CHECK(
        !output.fixed || same_elements(result, output.tensor), op(),
        " gives other memory than that of its argument, which it gave when it was captured");
  });
  call_.check_count(op(), next);
  next = 0;
  for_each_tensor(results, [&](const at::Tensor& result) {
    const OperatorNode::Output& output = call_.outputs[next++];
    if (!output.fixed) copy_laid_out(output.tensor, result);
  });
}

void EagerNode::visit_accesses(const AccessVisitor& visit) const {
  visit_arguments(*schema(), call_.args, visit);
  for (const OperatorNode::Output& output : call_.outputs) {
    if (!output.fixed) visit(output.tensor, true);
  }
}

bool Recorder::splits_at(const OperatorTraits& traits, const c10::OperatorHandle& op,
                         std::vector<c10::IValue>* stack) {
  met_.insert(traits.splits.begin(), traits.splits.end());
  return !traits.splits.empty() || (predicate_ && !traits.no_node() && predicate_(op, stack));
}

// What the call gave, in memory of the graph: its own is not.
c10::IValue Recorder::brought_in(const OperatorTraits& traits, const std::vector<c10::IValue>& args,
                                 const c10::IValue& result,
                                 std::unordered_set<const c10::StorageImpl*>& given) const {
  if (is_host_value(result)) {
    throw CaptureFailure(traits.name + " gives a value of the host (" + result.tagKind() +
                         "), which the captured code would keep: a replay brings none. Give a "
                         "tensor, or call it outside of the capture");
  }
  return map_tensors(result, [&](const at::Tensor& tensor) {
    if (is_subclass(tensor) || tensor.is_meta()) {
      throw CaptureFailure(traits.name + ", where the capture is split, gives " + describe(tensor) +
                           " that is no tensor with memory of its own");
    }
    check_layout(traits, tensor);
    if (tensor.requires_grad() && gradients_wanted_.value_or(c10::GradMode::is_enabled())) {
      throw CaptureFailure(traits.name + " would record a gradient for its result " +
                           describe(tensor) + ", and none leads through an eager call: run it " +
                           "under torch.no_grad()");
    }
    const bool is_argument = any_tensor(
        args, [&](const at::Tensor& arg) { return arg.storage().is_alias_of(tensor.storage()); });
    if (is_argument) return tensor;
    if (!given.insert(tensor.storage().unsafeGetStorageImpl()).second) {
      throw CaptureFailure(traits.name + ", where the capture is split, gives results that share " +
                           "memory, which their copies would not");
    }
    at::Tensor own = at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options());
    own.unsafeGetTensorImpl()->_set_conj(tensor.is_conj());
    own.unsafeGetTensorImpl()->_set_neg(tensor.is_neg());
    const InterceptorScope no_interceptor{nullptr};
    copy_laid_out(own, tensor);
    return own;
  });
}

void Recorder::record_eager(const OperatorTraits& known, const c10::OperatorHandle& op,
                            c10::DispatchKeySet keys, std::vector<c10::IValue>* stack) {
  OperatorTraits traits = known;
  traits.dynamic_shape = false;  // that it stays the same is checked
  traits.updatable = true;
  ++seen_;
  const c10::FunctionSchema& schema = *traits.schema;
  const c10::impl::ExcludeDispatchKeyGuard exclude(kRecorderKey);
  const auto taken = torch::jit::last(*stack, schema.arguments().size());
  std::vector<c10::IValue> args(taken.begin(), taken.end());
  take_own_lists(args);
  check_arguments(traits, args);
  random_.before(args, false);
  const ThreadModes modes;
  const size_t first = stack->size() - schema.arguments().size();
  {
    interceptor_.begin_operator(nullptr, Origin::kOperator);
    const auto ended = c10::make_scope_exit([this] { interceptor_.end_operator(); });
    if (computes()) {
      set_paused(true);
      const auto on = c10::make_scope_exit([this] { set_paused(false); });
      call_eagerly(op, keys, stack);
    } else {
      infer(traits, op, stack);
    }
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    const c10::impl::ExcludeDispatchKeyGuard no_modes(kUnseenKeys);
    std::unordered_set<const c10::StorageImpl*> given;
    for (size_t i = first; computes() && i < stack->size(); ++i) {
      c10::IValue& result = (*stack)[i];
      if (is_work(result)) {
        result = c10::intrusive_ptr<Work>(c10::make_intrusive<FinishedWork>());
      } else {
        result = brought_in(traits, args, result, given);
      }
    }
  }
  random_.after(traits.name);
  const c10::impl::ExcludeDispatchKeyGuard no_modes(kUnseenKeys);
  const c10::ArrayRef<c10::IValue> results(stack->data() + first, stack->size() - first);
  at_.reset();
  const bool on_device = runs_on_device(args, results);
  if (on_device) {
    streams_.ran(current_stream(*at_), traits.name);
  }
  auto outputs = outputs_of(traits, args, results, on_device);
  OperatorNode::Call call{op,           traits.schema, keys - c10::python_ks, {}, {}, {},
                          std::nullopt, true,          std::nullopt};
  if (outputs) call.outputs = *std::move(outputs);
  call.args = fixed_arguments(traits, args, call.outputs, false);
  auto node = std::make_unique<EagerNode>(traits.name, scope_, std::move(call), modes);
  if (at_) node->set_device(*at_);
  node->set_line(lines_.here());
  mark_written(traits, args, results);
  nodes_.push_back(std::move(node));
  random_.has_eager_calls();
}

}  // namespace bringup::torch_ext::graphs
