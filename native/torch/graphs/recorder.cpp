#include "torch/graphs/recorder.h"

#include <ATen/core/stack.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <utility>

#include "torch/common/written_arguments.h"
#include "torch/devices/driver.h"
#include "torch/graphs/argument_lists.h"
#include "torch/graphs/errors.h"
#include "torch/graphs/foreign_kernels.h"
#include "torch/graphs/outside_capture.h"
#include "torch/graphs/recorder_key.h"
#include "torch/graphs/values.h"

namespace bringup::torch_ext::graphs {
namespace {

thread_local Recorder* t_recorder = nullptr;

// An operator of torch that wrote nothing and gave back memory it was given: a view whose schema
// does not say so (_unsafe_view), or one that had nothing to do. Replaying it would change nothing.
bool only_passed_on(const OperatorTraits& traits, const std::vector<c10::IValue>& args,
                    c10::ArrayRef<c10::IValue> results,
                    const std::vector<Allocation>& allocations) {
  if (!traits.of_torch || traits.mutates || traits.updatable || !allocations.empty()) return false;
  std::vector<const void*> given;
  for_each_tensor(args, [&](const at::Tensor& tensor) {
    if (tensor.has_storage()) given.push_back(tensor.storage().unsafeGetStorageImpl());
  });
  bool any = false;
  bool all = true;
  for (const c10::IValue& result : results) {
    if (!result.isTensor() && !result.isTensorList()) return false;
    for_each_tensor(result, [&](const at::Tensor& tensor) {
      any = true;
      all &= tensor.has_storage() &&
             std::find(given.begin(), given.end(), tensor.storage().unsafeGetStorageImpl()) !=
                 given.end();
    });
  }
  return any && all;
}

// With beta = 0 the operators of the addmm family do not read their first argument.
bool ignores_first(const OperatorTraits& traits, const std::vector<c10::IValue>& args) {
  if (traits.beta < 0) return false;
  const c10::IValue& beta = args[static_cast<size_t>(traits.beta)];
  return beta.isScalar() && beta.toScalar().equal(0);
}

bool shape_depends_on_data(const c10::FunctionSchema& schema,
                           const std::vector<c10::IValue>& args) {
  if (const auto given = schema.argumentIndexWithName("output_size")) {
    return args[static_cast<size_t>(*given)].isNone();
  }
  if (schema.name() != "aten::index") return true;
  return any_tensor(args[1], [](const at::Tensor& index) {
    return index.scalar_type() == at::kBool || index.scalar_type() == at::kByte;
  });
}

const char* const kUninitialisedHelp =
    "It was made by torch.empty or one of its kind, and nothing in the capture filled it";
const char* const kUnseenHelp =
    "It was produced by code that the recorder cannot see (a kernel that torch.compile generated, "
    "a raw "
    "launch, numpy). Compile with backend=\"bringup\" or \"eager\", make the tensor before the "
    "capture, or declare "
    "it with graphs.constant(tensor).";

bool is_constant(const Node& node) { return dynamic_cast<const ConstantNode*>(&node) != nullptr; }

}  // namespace

Recorder::Recorder(std::unordered_set<std::string> updatable,
                   std::unordered_set<std::string> hooked, std::vector<std::string> not_the_user,
                   Handle handle, std::shared_ptr<MemoryPool> memory, const std::string& name)
    : pool_(Pool::of(std::move(memory), name)),
      updatable_(std::move(updatable)),
      hooked_(std::move(hooked)),
      handle_(std::move(handle)),
      lines_(std::move(not_the_user)) {}

Recorder::~Recorder() {
  stop();
  end_use();
}

Recorder* Recorder::current() noexcept { return t_recorder; }

void Recorder::begin() {
  if (t_recorder != nullptr) {
    throw CaptureFailure(
        "a capture cannot start inside another one: leave the first `with` block before");
  }
  try {
    pool_->begin_use();
    uses_pool_ = true;
    if (const auto former = pool_->memory().work()) {
      check_driver(former->wait(), "waiting for a graph of the memory pool");
    }
  } catch (...) {
    end_use();
    throw;
  }
  install_cpu_allocation_interceptor();
  random_.begin();
  t_recorder = this;
  active_ = true;
  interceptor_scope_ = std::make_unique<InterceptorScope>(&interceptor_);
  set_stream_observer(&streams_);
  c10::impl::tls_set_dispatch_key_included(kRecorderKey, true);
}

void Recorder::stop() noexcept {
  if (!active_) return;
  c10::impl::tls_set_dispatch_key_included(kRecorderKey, false);
  set_stream_observer(nullptr);
  random_.stop();
  for (const auto device : devices_) last_streams_.push_back(current_stream(device));
  interceptor_scope_.reset();
  t_recorder = nullptr;
  active_ = false;
}

void Recorder::end_use() noexcept {
  restorer_.end();
  random_.end();
  if (std::exchange(uses_pool_, false)) pool_->end_use();  // who was refused wrote nothing
}

void Recorder::set_paused(bool paused) {
  paused_ = paused;
  set_stream_observer(paused ? nullptr : &streams_);
  interceptor_.set_paused(paused);
}

const OperatorTraits& Recorder::traits_of(const c10::OperatorHandle& op) {
  // The dispatcher never moves or frees an operator's entry while a handle to it exists.
  const auto [entry, fresh] = traits_.try_emplace(&op.operator_name());
  if (fresh) {
    entry->second = look_up(op, updatable_, hooked_);
    const std::string& overload = op.operator_name().overload_name;
    for (const std::string& name :
         {op.operator_name().name,
          op.operator_name().name + "." + (overload.empty() ? "default" : overload)}) {
      if (split_names_.contains(name)) entry->second.splits.push_back(name);
    }
  }
  return entry->second;
}

bool Recorder::handled(const OperatorTraits& traits, const c10::OperatorHandle& op,
                       std::vector<c10::IValue>* stack) {
  if (!traits.hooked || in_handler_) return false;
  in_handler_ = true;
  const auto back = c10::make_scope_exit([this] { in_handler_ = false; });
  runs_other_code_ = true;
  return handle_(op, stack);
}

void Recorder::record_and_run(const OperatorTraits& traits, const c10::OperatorHandle& op,
                              c10::DispatchKeySet keys, std::vector<c10::IValue>* stack) {
  ++seen_;
  const c10::FunctionSchema& schema = *traits.schema;
  const size_t count = schema.arguments().size();
  const KernelRecord* kernel = find_kernel(op);
  runs_other_code_ |= !traits.of_torch && kernel == nullptr;
  for (size_t i = 0; kernel != nullptr && i < count; ++i) {
    if (may_write(schema, schema.arguments()[i])) continue;
    c10::IValue& value = (*stack)[stack->size() - count + i];
    // Still recorded: what a kernel cannot read as it lies is copied by a node of its own.
    value = map_tensors(value, [&](const at::Tensor& t) {
      if (!kernel->runs_on(t.device().type())) return t;
      const at::Tensor computed = t.resolve_conj().resolve_neg();
      return kernel->takes_layout(i, computed) ? computed : computed.contiguous();
    });
  }
  const c10::impl::ExcludeDispatchKeyGuard exclude(kRecorderKey);
  std::vector<c10::IValue> args(stack->end() - static_cast<ptrdiff_t>(count), stack->end());
  take_own_lists(args);
  const bool becomes_node = !traits.no_node();
  if (becomes_node) check_arguments(traits, args);
  if (traits.resizes) check_resize(traits, args);

  if (traits.may_draw) random_.before(args, traits.of_torch);
  std::vector<Allocation> allocations;
  std::optional<std::string> foreign;
  {
    interceptor_.begin_operator(becomes_node ? &allocations : nullptr,
                                traits.uninitialised ? Origin::kUninitialised : Origin::kOperator);
    const auto ended = c10::make_scope_exit([this] { interceptor_.end_operator(); });
    std::optional<ForeignCalls> calls;
    if (traits.made_of_others && becomes_node) calls.emplace();
    if (computes() || !becomes_node || traits.host_data) {
      op.redispatchBoxed(keys, stack);
    } else {
      infer(traits, op, stack);
    }
    ran_ = true;
    if (calls) foreign = calls->found();
  }
  const c10::ArrayRef<c10::IValue> results(stack->data() + stack->size() - schema.returns().size(),
                                           schema.returns().size());
  if (traits.may_draw) random_.after(traits.name);
  const c10::impl::ExcludeDispatchKeyGuard no_modes(kUnseenKeys);
  check_gradient(traits, *stack);
  if (traits.host_data) {
    for_each_tensor(results.front(), [&](const at::Tensor& tensor) {
      if (Block* block = pool_->find(tensor.storage())) block->origin = Origin::kHostData;
    });
  }
  if (!becomes_node) note_without_node(traits);
  if (!becomes_node || (!all_updatable_ && only_passed_on(traits, args, results, allocations))) {
    return note_views(args, results);
  }
  at_.reset();
  auto node = make_node(traits, op, keys, args, results, std::move(allocations), foreign);
  if (node == nullptr) return;
  if (at_) node->set_device(*at_);
  node->set_line(lines_.here());
  mark_written(traits, args, results);
  nodes_.push_back(std::move(node));
}

void Recorder::check_arguments(const OperatorTraits& traits, const std::vector<c10::IValue>& args) {
  const c10::FunctionSchema& schema = *traits.schema;
  if (traits.host_result) {
    for_each_tensor(args, [&](const at::Tensor& tensor) { refuse_host_read(traits.name, tensor); });
  }
  if (traits.dynamic_shape && shape_depends_on_data(schema, args)) {
    throw CaptureFailure(
        traits.name +
        " gives a result whose shape depends on data: a captured graph has fixed shapes. "
        "Use an operator with a fixed shape (torch.where, a mask) or run it before the capture");
  }
  const size_t first_read = ignores_first(traits, args) ? 1 : 0;
  for (size_t i = 0; i < args.size(); ++i) {
    const c10::Argument& argument = schema.arguments()[i];
    for_each_tensor(args[i], [&](const at::Tensor& tensor) {
      check_device(traits, tensor);
      check_layout(traits, tensor, &argument);
      const bool written = call_writes(schema, i, args);
      if (written && !writes(argument)) about_to_write(traits, tensor);
      if (written && writes(argument)) {
        const bool whole = traits.overwrites && tensor.is_non_overlapping_and_dense() &&
                           tensor.nbytes() == tensor.storage().nbytes();
        const bool fresh = whole && pool_->find(tensor.storage()) != nullptr;
        if (!argument.is_out() && !fresh) check_readable(traits, tensor);
        about_to_write(traits, tensor);
      } else if (i >= first_read && !is_received(schema, argument)) {
        check_readable(traits, tensor);
      }
    });
  }
}

void Recorder::check_readable(const OperatorTraits& traits, const at::Tensor& tensor) {
  if (tensor.numel() == 0) return;
  Block* block = pool_->find(tensor.storage());
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) {
    // A number of the code. Autograd may save it for the backward.
    if (block != nullptr && !block->written) block->origin = Origin::kHostData;
    return;
  }
  if (block == nullptr) return watch_->add_tensor(tensor, traits.name);
  if (block->written) return;
  if (block->origin == Origin::kHostData) return add_constant(*block);
  // Operators that fill a tensor in place start from an empty one.
  if (block->origin == Origin::kUninitialised && traits.mutates) return;
  throw CaptureFailure(traits.name + " reads a tensor " + describe(tensor) +
                       (block->origin == Origin::kBranch
                            ? " that only a branch or a loop wrote, which a replay may leave out: "
                              "return it from there"
                            : " that no captured operator wrote. ") +
                       (block->origin == Origin::kBranch          ? ""
                        : block->origin == Origin::kUninitialised ? kUninitialisedHelp
                                                                  : kUnseenHelp));
}

// A replay would not move the content: fresh memory only.
void Recorder::check_resize(const OperatorTraits& traits,
                            const std::vector<c10::IValue>& args) const {
  const at::Tensor& tensor = args[0].toTensor();
  if (!tensor.has_storage() || tensor.storage().nbytes() == 0) return;
  const int64_t elements = args[1].isTensor() ? args[1].toTensor().numel()
                                              : c10::multiply_integers(args[1].toIntVector());
  const auto last = static_cast<size_t>(tensor.storage_offset() + elements);
  if (elements == 0 || last * tensor.element_size() <= tensor.storage().nbytes()) return;
  const bool ours = pool_->find(tensor.storage()) != nullptr;
  throw CaptureFailure(
      traits.name + " makes " + describe(tensor) + (ours ? "" : ", which predates the capture,") +
      " larger: a replay would not bring its content to the new memory. Make it as "
      "large as it will be " +
      (ours ? "when it is made" : "before the capture"));
}

// A view of a tensor from before the capture stands for that tensor.
void Recorder::note_views(const std::vector<c10::IValue>& args,
                          c10::ArrayRef<c10::IValue> results) {
  const auto predates = [&](const at::Tensor& tensor) {
    return tensor.has_storage() && tensor.storage().nbytes() > 0 &&
           pool_->find(tensor.storage()) == nullptr;
  };
  for_each_tensor(args, [&](const at::Tensor& tensor) {
    if (predates(tensor)) watch_->add_tensor(tensor);
  });
  for_each_tensor(results, [&](const at::Tensor& tensor) {
    if (predates(tensor)) {
      watch_->ignore_tensor(tensor);
    } else if (tensor.has_storage()) {
      versions_.add(tensor);
    }
  });
}

void Recorder::check_read_by_address(const OperatorTraits& traits,
                                     const std::vector<c10::IValue>& stack) const {
  if (traits.read_argument < 0) return;
  const size_t first = stack.size() - traits.schema->arguments().size();
  for_each_tensor(stack[first + static_cast<size_t>(traits.read_argument)],
                  [&](const at::Tensor& tensor) {
                    const Block* block = pool_->find(tensor.storage());
                    const bool stays =
                        block != nullptr && (block->written ? is_constant(*nodes_[block->writer])
                                                            : block->origin == Origin::kHostData);
                    if (!stays) refuse_host_read(traits.name, tensor);
                  });
}

void Recorder::about_to_write(const OperatorTraits& traits, const at::Tensor& tensor) {
  if (tensor.storage().nbytes() == 0 || pool_->find(tensor.storage()) != nullptr) return;
  if (foreign_.is_unknown(tensor.storage())) {
    throw CaptureFailure(traits.name + " writes " + describe(tensor) +
                         ", the memory of NumPy, a buffer or a file that came in inside the "
                         "capture: a replay would write the same memory again, and find there what "
                         "the one before has left. Make it before the capture, or clone() it");
  }
  const OutsideCapture outside;
  if (restorer_.remember(tensor.storage())) return;
  throw CaptureFailure(traits.name + " writes " + describe(tensor) +
                       ", and so does a capture in another thread: each would put back what the "
                       "other one has written. Capture one after the other");
}

void Recorder::check_gradient(const OperatorTraits& traits,
                              const std::vector<c10::IValue>& stack) const {
  const bool accepts = accepts_gradients_ && controls_.empty();
  if (accepts || !gradients_wanted_.value_or(c10::GradMode::is_enabled())) return;
  const auto results = torch::jit::last(stack, traits.schema->returns().size());
  for_each_tensor(results, [&](const at::Tensor& tensor) {
    if (!tensor.requires_grad()) return;
    throw CaptureFailure(traits.name + " would record a gradient for its result " +
                         describe(tensor) + ": run it under torch.no_grad()" +
                         (controls_.empty() ? ", or capture the backward too: "
                                              "graphs.capture(graph, gradients=True)"
                                            : "; no backward leads through " +
                                                  controls_.back().name + " in a capture"));
  });
}

void Recorder::mark_written(const at::Tensor& tensor) {
  Block* block = tensor.has_storage() ? pool_->find(tensor.storage()) : nullptr;
  if (block != nullptr) graphs::mark_written(*block, tensor, nodes_.size());
}

void Recorder::mark_written(const OperatorTraits& traits, const std::vector<c10::IValue>& args,
                            c10::ArrayRef<c10::IValue> results) {
  const auto mark = [&](const at::Tensor& tensor) { mark_written(tensor); };
  const auto count = [&](const at::Tensor& tensor) { versions_.add(tensor); };
  for_each_tensor(results, count);
  for (size_t i = 0; i < args.size(); ++i) {
    if (!call_writes(*traits.schema, i, args)) continue;
    for_each_tensor(args[i], mark);
    for_each_tensor(args[i], count);
  }
  for_each_tensor(results, mark);
  if (traits.mutates && restorer_.moved()) {
    throw CaptureFailure(
        traits.name +
        " resized a tensor that predates the capture: give it the right shape before");
  }
}

void Recorder::add_event(std::shared_ptr<NamedEvent> event, EventNode::Action action) {
  if (!controls_.empty()) {
    throw CaptureFailure("an external event inside of " + controls_.back().name +
                         ": who records or waits could not know whether a replay comes there. "
                         "Put it before or behind");
  }
  if (action == EventNode::Action::kWait && !waited_for_.insert(event.get()).second) return;
  auto node = std::make_unique<EventNode>(scope_, std::move(event), action);
  node->set_line(lines_.here());
  nodes_.push_back(std::move(node));
}

void Recorder::use_device(c10::DeviceIndex device) {
  at_ = device;
  if (std::ranges::find(devices_, device) == devices_.end()) devices_.push_back(device);
}

void Recorder::add_constant(Block& block) {
  const OutsideCapture outside;
  const at::Tensor target = bytes_of(alias_storage(block));
  graphs::mark_written(block, target, nodes_.size());
  const bool on_device = target.is_privateuseone();
  if (on_device) use_device(target.device().index());
  at::Tensor place = target;
  const auto failure = failure_of([&] {
    if (on_device) place = host_side_.view(target);
  });
  if (failure) {
    throw CaptureFailure(
        "data of the host (torch.tensor, a Python number) goes to the device here, "
        "and a graph cannot bring it there: " +
        *failure + ". Make the tensor before the capture");
  }
  nodes_.push_back(std::make_unique<ConstantNode>(scope_, target.cpu().clone(), std::move(place)));
}

void Recorder::declare_constant(const at::Tensor& tensor) {
  if (tensor.storage().nbytes() == 0) return;
  if (Block* block = pool_->find(tensor.storage())) add_constant(*block);
}

std::vector<std::pair<uintptr_t, size_t>> Recorder::unwritten() const {
  std::vector<std::pair<uintptr_t, size_t>> found;
  for (const auto& block : pool_->live_blocks()) {
    if (block->written || block->origin == Origin::kHostData) continue;
    found.emplace_back(reinterpret_cast<uintptr_t>(block->data), block->bytes);
  }
  return found;
}

bool Recorder::predates(const at::Tensor& tensor) const {
  return !tensor.has_storage() || pool_->find(tensor.storage()) == nullptr;
}

size_t Recorder::remember(const at::Tensor& tensor, std::string name, size_t most) {
  // What the run itself made has its own rules.
  if (!predates(tensor)) return 0;
  if (!active_ && tensor.has_storage() && !is_subclass(tensor)) foreign_.know(tensor.storage());
  return contents_.remember(tensor, std::move(name), most);
}

void Recorder::put_back() const {
  // Copies that the run queued may still read memory of the host.
  for (const auto device : devices_) {
    c10::impl::VirtualGuardImpl(at::kPrivateUse1).synchronizeDevice(device);
  }
  restorer_.restore();
  random_.restore();
  // The next reader may be in another stream.
  for (const auto device : devices_) synchronize_current_stream(device);
}

void Recorder::abandon() {
  const auto over = c10::make_scope_exit([this] { end_use(); });
  const OutsideCapture outside;
  contents_.restore();
  put_back();
}

}  // namespace bringup::torch_ext::graphs
