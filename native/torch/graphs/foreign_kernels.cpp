#include "torch/graphs/foreign_kernels.h"

#include <utility>

#include "torch/common/out_form.h"
#include "torch/devices/driver.h"
#include "torch/devices/fallback.h"
#include "torch/devices/registration.h"
#include "torch/graphs/values.h"

namespace bringup::torch_ext::graphs {
namespace {

thread_local ForeignCalls* t_foreign_calls = nullptr;

}  // namespace

std::optional<std::string> foreign_device_kernel(const c10::OperatorHandle& op) {
  if (active_driver() == nullptr) return std::nullopt;
  if (op.operator_name().getNamespace() == "c10d") return "the driver's own collectives";
  if (auto told = foreign_kernel(op)) return told;
  if (!hands_to_out_form(op)) return std::nullopt;
  const auto out = find_out_form(op);
  if (!out.has_value()) return std::nullopt;
  return foreign_kernel(*out);
}

ForeignCalls::ForeignCalls()
    : former_(std::exchange(t_foreign_calls, this)),
      handle_(at::addThreadLocalCallback(
          at::RecordFunctionCallback(&see).needsInputs(true).scopes({at::RecordScope::FUNCTION}))) {
}

ForeignCalls::~ForeignCalls() {
  at::removeCallback(handle_);
  t_foreign_calls = former_;
}

std::unique_ptr<at::ObserverContext> ForeignCalls::see(const at::RecordFunction& call) {
  ForeignCalls* const watch = t_foreign_calls;
  const auto name = call.operator_name();
  const auto on_device = [](const at::Tensor& tensor) { return tensor.is_privateuseone(); };
  if (watch == nullptr || watch->found_.has_value() || !name ||
      !any_tensor(call.inputs(), on_device)) {
    return nullptr;
  }
  const auto op = c10::Dispatcher::singleton().findSchema(*name);
  if (!op.has_value()) return nullptr;
  if (const auto told = foreign_device_kernel(*op)) {
    watch->found_ = c10::toString(*name) + ", " + *told;
  }
  return nullptr;
}

}  // namespace bringup::torch_ext::graphs
