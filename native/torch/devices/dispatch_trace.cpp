// torch's RecordFunction runs the callbacks at every call that enters the dispatcher, from Python,
// C++ and autograd's threads alike, before the first kernel. Redispatches are no such calls.
#include "torch/devices/dispatch_trace.h"

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <ATen/record_function.h>
#include <c10/core/TensorOptions.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "engine/util/forever.h"
#include "torch/common/values.h"

namespace bringup::torch_ext {

void DispatchTracer::add(const std::string& op, const std::string& node, TracedCall call) {
  const std::lock_guard lock(mutex_);
  if (trace_.calls.size() >= limit_) {
    ++trace_.lost;
    return;
  }
  call.op = index_of(op);
  call.node = node.empty() ? 0 : index_of(node);
  trace_.calls.push_back(call);
}

DispatchTrace DispatchTracer::take() {
  const std::lock_guard lock(mutex_);
  limit_ = 0;  // a call that is being observed just now is no part of it
  indices_.clear();
  return std::exchange(trace_, DispatchTrace{});
}

uint32_t DispatchTracer::index_of(const std::string& name) {
  const auto [found, fresh] =
      indices_.try_emplace(name, static_cast<uint32_t>(trace_.names.size()));
  if (fresh) trace_.names.push_back(name);
  return found->second;
}

namespace {

// The running traces and the callback that serves them, which is there while one runs.
struct Traces {
  std::mutex mutex;
  std::vector<std::shared_ptr<DispatchTracer>> running;
  at::CallbackHandle callback = at::INVALID_CALLBACK_HANDLE;
};

Traces& traces() { return forever<Traces>(); }

thread_local uint16_t t_depth = 0;
thread_local std::vector<std::string> t_nodes;

struct Observed : at::ObserverContext {
  explicit Observed(bool is_node) : is_node(is_node) {}
  bool is_node;
};

void add_keys(const c10::IValue& value, c10::DispatchKeySet& keys) {
  for_each_tensor(value, [&](const at::Tensor& tensor) { keys = keys | tensor.key_set(); });
  if (!value.isGenerator()) return;
  const at::Generator generator = value.toGenerator();
  if (generator.defined()) keys = keys | generator.key_set();
}

// As BackendSelect's kernels ask for it.
uint16_t factory_key(const c10::FunctionSchema& schema, c10::ArrayRef<const c10::IValue> inputs) {
  std::optional<c10::ScalarType> dtype;
  std::optional<c10::Layout> layout;
  std::optional<c10::Device> device;
  bool factory = false;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const std::string& name = schema.arguments()[i].name();
    const c10::IValue& value = inputs[i];
    if (name == "device") {
      factory = true;
      if (value.isDevice()) device = value.toDevice();
    } else if (name == "layout" && value.isInt()) {
      layout = value.toLayout();
    } else if (name == "dtype" && value.isInt()) {
      dtype = value.toScalarType();
    }
  }
  if (!factory) return 0;
  try {
    return static_cast<uint16_t>(c10::computeDispatchKey(dtype, layout, device));
  } catch (const c10::Error&) {  // there are no such tensors: the call is about to say so
    return 0;
  }
}

void on_operator(const at::RecordFunction& function, const c10::FunctionSchema& schema) {
  // A boxed call gives the whole stack, of which the arguments are the end.
  const size_t count = schema.arguments().size();
  c10::ArrayRef<const c10::IValue> inputs = function.inputs();
  if (inputs.size() > count) inputs = inputs.slice(inputs.size() - count);
  c10::DispatchKeySet keys;
  for (const c10::IValue& value : inputs) add_keys(value, keys);
  const c10::impl::LocalDispatchKeySet thread = c10::impl::tls_local_dispatch_key_set();
  TracedCall call;
  call.keys = ((keys | thread.included_) - thread.excluded_).raw_repr();
  call.thread = function.threadId();
  call.factory_key = factory_key(schema, inputs);
  call.depth = t_depth;
  const std::string name = c10::toString(schema.operator_name());
  const std::string node = t_nodes.empty() ? "" : t_nodes.back();
  std::vector<std::shared_ptr<DispatchTracer>> running;
  {
    const std::lock_guard lock(traces().mutex);
    running = traces().running;
  }
  for (const auto& tracer : running) tracer->add(name, node, call);
}

std::unique_ptr<at::ObserverContext> on_enter(const at::RecordFunction& function) {
  if (function.scope() == at::RecordScope::BACKWARD_FUNCTION) {
    t_nodes.emplace_back(function.name());
    return std::make_unique<Observed>(true);
  }
  const auto schema = function.operator_schema();
  if (!schema.has_value()) return nullptr;  // a named region, no operator
  on_operator(function, *schema);
  ++t_depth;
  return std::make_unique<Observed>(false);
}

void on_leave(const at::RecordFunction&, at::ObserverContext* context) {
  if (context == nullptr) return;
  if (static_cast<Observed*>(context)->is_node) {
    t_nodes.pop_back();
  } else {
    --t_depth;
  }
}

}  // namespace

std::shared_ptr<DispatchTracer> start_dispatch_trace(size_t limit) {
  auto tracer = std::make_shared<DispatchTracer>(limit);
  const std::lock_guard lock(traces().mutex);
  traces().running.push_back(tracer);
  if (traces().callback == at::INVALID_CALLBACK_HANDLE) {
    traces().callback = at::addGlobalCallback(
        at::RecordFunctionCallback(&on_enter, &on_leave)
            .needsInputs(true)
            .scopes({at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION}));
  }
  return tracer;
}

DispatchTrace stop_dispatch_trace(const std::shared_ptr<DispatchTracer>& tracer) {
  {
    const std::lock_guard lock(traces().mutex);
    auto& running = traces().running;
    running.erase(std::remove(running.begin(), running.end(), tracer), running.end());
    if (running.empty() && traces().callback != at::INVALID_CALLBACK_HANDLE) {
      at::removeCallback(std::exchange(traces().callback, at::INVALID_CALLBACK_HANDLE));
    }
  }
  return tracer->take();
}

}  // namespace bringup::torch_ext
