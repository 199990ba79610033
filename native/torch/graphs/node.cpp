#include "torch/graphs/node.h"

#include <c10/util/Exception.h>

#include <algorithm>

#include "torch/common/kernel_call.h"
#include "torch/common/torch_private.h"
#include "torch/common/written_arguments.h"
#include "torch/devices/driver.h"
#include "torch/graphs/argument_lists.h"
#include "torch/graphs/copies.h"
#include "torch/graphs/errors.h"
#include "torch/graphs/saved_content.h"
#include "torch/graphs/slot_type.h"
#include "torch/graphs/values.h"

namespace bringup::torch_ext::graphs {
namespace {

constexpr auto kSample = SavedContent::Part::kSample;
const char* const kNotOptimized = "the graph was captured with optimize=0";

bool is_laid_out_as(const at::Tensor& left, const at::Tensor& right) {
  return left.strides() == right.strides() && left.storage_offset() == right.storage_offset() &&
         left.is_conj() == right.is_conj() && left.is_neg() == right.is_neg();
}

// Code in Python, or other boxed code, may keep what it gets and allocates beyond the graph.
bool may_keep(const OperatorNode::Call& call) {
  using enum c10::DispatchKey;
  return !is_unboxed(call.op, call.keys) &&
         (call.op.hasKernelForAnyDispatchKey(call.keys) ||
          call.op.hasKernelForDispatchKey(CompositeExplicitAutograd) ||
          call.op.hasKernelForDispatchKey(CompositeImplicitAutograd));
}

}  // namespace

void visit_arguments(const c10::FunctionSchema& schema, const std::vector<c10::IValue>& args,
                     const AccessVisitor& visit) {
  for (size_t i = 0; i < args.size(); ++i) {
    const c10::Argument& argument = schema.arguments()[i];
    const bool written = call_writes(schema, i, args);
    for_each_tensor(args[i], [&](const at::Tensor& tensor) {
      if (!argument.is_out()) visit(tensor, false);
      if (written) visit(tensor, true);
    });
  }
}

std::string Node::description() const {
  const std::string line = line_.text();
  return op_ + (scope_.empty() ? "" : " in " + scope_) +
         (line.empty() ? "" : ", called at " + line);
}

std::optional<HostValue> Node::host_value(size_t index) const {
  if (index >= arguments().size()) return std::nullopt;
  const auto type = SlotType::of(schema_->arguments()[index]);
  if (!type || type->is_tensor()) return std::nullopt;
  return arguments()[index];
}

KernelNode::KernelNode(std::string op, std::string scope, Call call)
    : Node(std::move(op), std::move(scope), call.schema), call_(std::move(call)) {
  auto packed = call_.record.pack(call_.inputs, call_.outputs);
  TORCH_CHECK(packed.has_value(), this->op(), ": its kernel would not run alone; capture it again");
  packed_ = std::move(*packed);
  if (packed_.random < 0) call_.draws.reset();
  run_ = packed_.kernel->run;
  take(std::move(packed_.block));
}

void KernelNode::start_on_device(c10::DeviceIndex device) {
  const auto& kernel = packed_.kernel;
  device_ = device;
  if (!launched_by_driver(*kernel)) return;
  if (kernel->values != nullptr) check_takes_values(*kernel, op().c_str());
  const bringup_kernel_fn fn = device_function(kernel, device);
  if (kernel->values != nullptr) return lower_values(fn);
  launch_.struct_size = sizeof(launch_);
  launch_.nargs = packed_.block.size();
  launch_.args = args_.data();
  launch_.kinds = kinds_.data();
  launch_.fn = fn;
  launch_.grid = packed_.grid.blocks;
  launch_.work_items = packed_.grid.work_items;
  launch_.name = op().c_str();
}

// Cannot fail for an update, which was checked.
void KernelNode::lower_values(bringup_kernel_fn fn) {
  const runtime::HostContext context({12 /* kDLExtDev */, device_});
  values_.fault = fault_word_of(packed_.kernel->values->rules(), op().c_str(), device_);
  const char* reason = packed_.kernel->values->lower(args_.data(), context.get(), values_);
  TORCH_CHECK(reason == nullptr, op(), ": ", reason);
  check_device_has(values_, op().c_str(), device_);
  values_launch_ = values_.arguments(fn, op().c_str());
}

void KernelNode::run_between_graphs() {
  call_host_entry(*packed_.kernel, packed_.block.args(), packed_.block.size(), device_,
                  op().c_str());
}

void KernelNode::run(Replay& replay) {
  call_kernel(run_, args_.data(), static_cast<int32_t>(args_.size()), replay.context->get(), op());
  replay.context->end_call();
}

void KernelNode::visit_accesses(const AccessVisitor& visit) const {
  visit_arguments(*schema(), call_.inputs, visit);
  for (const at::Tensor& output : call_.outputs) visit(output, true);
}

void KernelNode::check_arguments(const std::vector<c10::IValue>& arguments,
                                 const std::vector<c10::IValue>&) const {
  call_.record.check_captured(arguments, call_.outputs, packed_);
}

// Nothing of the graph is under way.
void KernelNode::draw_from(RandomPoint point) {
  point_ = point;
  put_random(args_.data(), packed_.random, point_);
  if (values_launch_.fn != nullptr) lower_values(values_launch_.fn);
}

void KernelNode::use_values() {
  take(call_.record.pack_again(call_.inputs, call_.outputs, packed_));
  if (values_launch_.fn != nullptr) lower_values(values_launch_.fn);
}

// A driver reads arguments where they were when it got the launch.
void KernelNode::take(runtime::LaunchBlock block) {
  packed_.block = std::move(block);
  if (call_.draws) put_random(packed_.block.args(), packed_.random, point_);
  args_.assign(packed_.block.args(), packed_.block.args() + packed_.block.size());
  kinds_.assign(packed_.block.kinds(), packed_.block.kinds() + packed_.block.size());
}

OperatorNode::OperatorNode(std::string op, std::string scope, Call call)
    : Node(std::move(op), std::move(scope), call.schema), call_(std::move(call)) {
  choose_method();
  why_unprepared_ = call_.from_shapes ? "it has not run yet" : kNotOptimized;
  if (!call_.random && !call_.learn && !call_.from_shapes) {
    captured_ = std::make_unique<SavedContent>(results(), kSample);
  }
}

OperatorNode::~OperatorNode() = default;

void OperatorNode::choose_method() {
  // Another value could mean another shape: the functional form shows it.
  if (!call_.out || call_.updatable) return;
  if (call_.outputs.size() != schema()->returns().size()) return;
  // Nothing between autograd and the kernel, such as a lazy conjugation.
  if (call_.keys != kCpuKernel) return;
  // A result in the midst of a larger storage was something else before: its `.out` resizes.
  const bool fit =
      std::all_of(call_.outputs.begin(), call_.outputs.end(), [](const Output& output) {
        return !output.fixed && output.tensor.nbytes() == output.tensor.storage().nbytes();
      });
  if (fit) method_ = Method::kOut;
}

// Tries the `.out` kernel once. Some resize what they are given to what they need in between, which
// fixed memory does not allow.
bool OperatorNode::out_fits(Replay& replay) const {
  auto& stack = replay.stack;
  push_out_arguments(replay);
  std::vector<at::Tensor> trial;
  for (const Output& output : call_.outputs) {
    stack.emplace_back(trial.emplace_back(shallow_copy(output.tensor)));
  }
  const auto failure = failure_of([&] { redispatch(call_.out->op, replay); });
  stack.clear();
  if (failure) return false;
  for (size_t i = 0; i < trial.size(); ++i) {
    const at::Tensor& output = call_.outputs[i].tensor;
    if (trial[i].sizes() != output.sizes() || trial[i].strides() != output.strides()) return false;
  }
  return true;
}

void OperatorNode::redispatch(const c10::OperatorHandle& op, Replay& replay) const {
  auto& stack = replay.stack;
  if (C10_LIKELY(!call_.random)) return op.redispatchBoxed(call_.keys, &stack);
  call_.random->run(stack.data(), replay.generators,
                    [&] { op.redispatchBoxed(call_.keys, &stack); });
}

void OperatorNode::push_arguments(Replay& replay) const {
  replay.stack.assign(call_.args.begin(), call_.args.end());
  take_own_lists(replay.stack);
  if (!call_.updatable || !may_keep(call_)) return;
  // What an update gave goes in the order of streams, whatever the code does with it.
  for (c10::IValue& value : replay.stack) {
    value = map_tensors(value, [](const at::Tensor& tensor) {
      return is_borrowed(tensor.storage()) ? own_copy(tensor) : tensor;
    });
  }
}

void OperatorNode::push_out_arguments(Replay& replay) const {
  push_arguments(replay);
  replay.stack.insert(replay.stack.end(), call_.out->more.begin(), call_.out->more.end());
}

void OperatorNode::choose_unboxed() {
  if (method_ != Method::kOut || call_.random || call_.outputs.size() != 1) return;
  std::vector<c10::IValue> args = call_.args;
  args.insert(args.end(), call_.out->more.begin(), call_.out->more.end());
  unboxed_ = UnboxedCall::make(call_.out->op, args, call_.outputs.front().tensor);
}

void OperatorNode::unprepare(const char* reason) {
  prepared_.reset();
  why_unprepared_ = reason;
}

void OperatorNode::prepare() {
  if (call_.random) return unprepare("it draws random numbers");
  // Of an operator that makes tensors, an argument says which backend it runs on.
  const bool selects = call_.keys.has(c10::DispatchKey::BackendSelect);
  const auto others = call_.keys.remove(c10::DispatchKey::BackendSelect);
  if ((others != kCpuKernel && !(selects && others.empty())) || any_tensor(call_.args, is_lazy)) {
    return unprepare("more than a kernel of the cpu runs");
  }
  const c10::OperatorHandle& runs = method_ == Method::kOut ? call_.out->op : call_.op;
  Preparation made;
  const auto failure = failure_of([&] {
    made = prepare_call(call_.op, runs, call_.out, call_.args,
                        c10::ArrayRef<at::Tensor>(results()).vec());
  });
  if (failure) return unprepare("torch does not prepare it");
  prepared_ = std::move(made.call);
  if (prepared_ != nullptr && selects) prepared_->watch(call_.op, call_.keys);
  why_unprepared_ = prepared_ == nullptr ? made.reason : nullptr;
}

c10::SmallVector<at::Tensor, 2> OperatorNode::results() const {
  c10::SmallVector<at::Tensor, 2> tensors;
  for (const Output& output : call_.outputs) tensors.push_back(output.tensor);
  return tensors;
}

void OperatorNode::run(Replay& replay) {
  if (C10_UNLIKELY(has_new_values_)) {
    has_new_values_ = false;
    if (replay.level > 0) prepare();
  }
  if (prepared_ != nullptr) {
    if (replay.verify != 0 && ++runs_ % replay.verify == 0) return run_verified(replay);
    if (C10_LIKELY(prepared_->run())) return;
    run_unprepared(replay);  // raises where an index is out of range
    unprepare("its kernel was replaced, or cannot run again on what was prepared");
    return choose_unboxed();
  }
  run_unprepared(replay);
}

void OperatorNode::run_verified(Replay& replay) {
  const SavedContent before(results(), SavedContent::Part::kAll);
  if (!prepared_->run()) return run_unprepared(replay);
  const SavedContent prepared(results(), SavedContent::Part::kAll);
  before.put_back();
  run_unprepared(replay);
  TORCH_CHECK(
      prepared.is_there(),
      "BRINGUP_GRAPH_VERIFY: level 1 gave other bits than level 0. Either other code wrote what "
      "it reads, or this is a defect of bringup: please report it, and "
      "capture with CapturedGraph(optimize=0)");
}

void OperatorNode::run_unprepared(Replay& replay) {
  if (unboxed_ != nullptr) return unboxed_->run(call_.keys);
  if (method_ != Method::kOut) return static_cast<void>(run_functional(replay));
  push_out_arguments(replay);
  for (const Output& output : call_.outputs) replay.stack.emplace_back(output.tensor);
  redispatch(call_.out->op, replay);
  replay.stack.clear();
}

bool OperatorNode::run_functional(Replay& replay) const {
  auto& stack = replay.stack;
  push_arguments(replay);
  // Without a list every request goes to the allocator below.
  if (method_ == Method::kAllocations && !may_keep(call_)) {
    replay.interceptor.begin_operator(call_.allocations);
  }
  redispatch(call_.op, replay);
  const bool exact = replay.interceptor.exact();
  replay.interceptor.end_operator();
  settle_outputs(stack);
  stack.clear();
  return exact;
}

void OperatorNode::validate(Replay& replay) {
  const auto captured = std::exchange(captured_, nullptr);
  unprepare(kNotOptimized);
  if (replay.level > 0) prepare();
  if (prepared_ == nullptr) return settle(replay);
  std::vector<at::Tensor> in_place;
  for (const Output& output : call_.outputs) {
    if (output.fixed) in_place.push_back(output.tensor);
  }
  const SavedContent before(in_place, SavedContent::Part::kAll);
  const SavedContent present(captured ? c10::SmallVector<at::Tensor, 2>() : results(), kSample);
  (captured ? *captured : present).spoil();  // what it does not write
  before.put_back();
  const auto failure = failure_of([&] { TORCH_CHECK(prepared_->run()); });
  if (!failure && captured && captured->is_there()) return;
  const SavedContent prepared(results(), SavedContent::Part::kAll);
  before.put_back();
  const Method method = method_;
  settle(replay);
  if (failure || method_ != method || !prepared.is_there()) unprepare(kOtherBits);
}

void OperatorNode::settle(Replay& replay) {
  if (method_ == Method::kOut) {
    if (out_fits(replay)) return choose_unboxed();
    method_ = Method::kAllocations;
  }
  if (call_.learn) return learn_allocations(replay);
  if (!run_functional(replay)) method_ = Method::kCopy;
}

// Runs with memory of the pool and remembers the order of requests. The request that became a
// result is answered with the result's fixed address from then on; the others keep the pool's.
void OperatorNode::learn_allocations(Replay& replay) {
  auto& stack = replay.stack;
  push_arguments(replay);
  RecordingInterceptor interceptor(replay.pool);
  {
    const InterceptorScope scope(&interceptor);
    interceptor.begin_operator(&call_.allocations, Origin::kOperator);
    redispatch(call_.op, replay);
  }
  size_t next = 0;
  for_each_tensor(stack, [&](const at::Tensor& tensor) {
    if (next >= call_.outputs.size()) return;
    const Output& output = call_.outputs[next++];
    if (output.fixed) return;
    const auto request = std::find_if(call_.allocations.rbegin(), call_.allocations.rend(),
                                      [&](const Allocation& allocation) {
                                        return allocation.address == tensor.storage().data();
                                      });
    if (request == call_.allocations.rend() || tensor.strides() != output.tensor.strides() ||
        tensor.storage_offset() != output.tensor.storage_offset() ||
        tensor.dtype() != output.tensor.dtype()) {
      method_ = Method::kCopy;
    } else {
      request->address = output.address;
    }
  });
  settle_outputs(stack);
  stack.clear();
}

void OperatorNode::Call::check(const std::string& name, size_t number,
                               const at::Tensor& result) const {
  TORCH_CHECK(number < outputs.size(), name, " gives more tensors than when it was captured");
  const at::Tensor& captured = outputs[number].tensor;
  TORCH_CHECK(captured.sizes() == result.sizes() && captured.dtype() == result.dtype(), name,
              " gives ", describe_shape(result), " and, when it was captured, ",
              describe_shape(captured),
              ": a captured graph has fixed shapes and dtypes, capture again");
}

void OperatorNode::Call::check_count(const std::string& name, size_t count) const {
  TORCH_CHECK(count == outputs.size(), name, " gives ", count,
              " tensors and, when it was captured, ", outputs.size(),
              ": a captured graph has a fixed number of results, capture again");
}

void OperatorNode::settle_outputs(const std::vector<c10::IValue>& results) const {
  size_t next = 0;
  for_each_tensor(results, [&](const at::Tensor& tensor) {
    call_.check(op(), next, tensor);
    const Output& output = call_.outputs[next++];
    if (output.fixed) return;
    const bool in_place = tensor.storage().data() == output.address;
    if (!in_place) {
      output.tensor.copy_(tensor);
    } else if (!is_laid_out_as(tensor, output.tensor)) {  // another value, other strides
      output.tensor.copy_(tensor.clone());
    }
  });
  call_.check_count(op(), next);
}

const char* OperatorNode::method() const {
  switch (method_) {
    case Method::kOut:
      return "out";
    case Method::kAllocations:
      return "allocations";
    case Method::kCopy:
      break;
  }
  return "copy";
}

void OperatorNode::visit_accesses(const AccessVisitor& visit) const {
  visit_arguments(*schema(), call_.args, visit);
  for (const Output& output : call_.outputs) {
    if (!output.fixed) visit(output.tensor, true);
  }
}

void DeviceCopyNode::run(Replay&) { target_.copy_(source_); }

std::optional<DeviceCopy> DeviceCopyNode::device_copy() const {
  return DeviceCopy{target_.mutable_data_ptr(), source_.const_data_ptr(), target_.nbytes()};
}

void ConstantNode::run(Replay&) { target_.copy_(content_); }

}  // namespace bringup::torch_ext::graphs
