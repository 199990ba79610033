#include "torch/operators/random_call.h"

#include <ATen/ops/ones.h>

#include <bit>

#include "torch/common/values.h"
#include "torch/devices/host_random.h"
#include "torch/devices/state.h"

namespace bringup::torch_ext {
namespace {

constexpr size_t kMostNumbers = 4096;  // choices that are remembered

class OneCall final : public DrawSource {
 public:
  at::Generator next() override { return call_generator({}); }
};

// What the CPU's refusal can depend on: the numbers, and the dtypes that have to hold them.
std::vector<int64_t> key_of_numbers(c10::ArrayRef<c10::IValue> arguments) {
  std::vector<int64_t> key;
  for (const c10::IValue& value : arguments) {
    const int64_t tag = value.isDouble() ? 1 : value.isInt() ? 2 : value.isBool() ? 3 : 0;
    int64_t number = 0;
    if (value.isDouble()) number = std::bit_cast<int64_t>(value.toDouble());
    if (value.isInt()) number = value.toInt();
    if (value.isBool()) number = value.toBool();
    if (value.isTensor() && value.toTensor().defined()) {
      number = static_cast<int64_t>(value.toTensor().scalar_type());
    }
    key.insert(key.end(), {tag, number});
  }
  return key;
}

// Raises what the CPU says of such numbers.
void ask_cpu(const OperatorKernel& kernel, c10::ArrayRef<c10::IValue> arguments) {
  const InterceptorScope no_interceptor{nullptr};  // no memory of a capture's
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  torch::jit::Stack stack;
  for (const c10::IValue& value : arguments) {
    stack.push_back(map_tensors(value, [](const at::Tensor& tensor) {
      return tensor.defined() ? at::ones(std::vector<int64_t>(tensor.dim(), 1),
                                         at::TensorOptions(at::kCPU).dtype(tensor.scalar_type()))
                              : tensor;
    }));
  }
  OneCall source;
  RandomTraits(kernel.handle).give_generator(stack.data(), source);
  const DrawScope scope(source);
  kernel.handle.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &stack);
}

bool cpu_takes(const OperatorKernel& kernel, c10::ArrayRef<c10::IValue> arguments) {
  try {
    ask_cpu(kernel, arguments);
    return true;
  } catch (const c10::Error&) {
    return false;
  }
}

}  // namespace

void add_random(OperatorLaunch& launch) {
  launch.random = launch.block.size();
  constexpr int64_t kNone[2] = {};
  launch.block.add_int_list(kNone);
}

RandomPoint take_random(const OperatorKernel& kernel, c10::ArrayRef<c10::IValue> arguments,
                        c10::DeviceIndex device) {
  if (kernel.training >= 0) {
    const c10::IValue& training = arguments[static_cast<size_t>(kernel.training)];
    if (training.isBool() && !training.toBool()) return {};
  }
  const c10::IValue* given =
      kernel.generator < 0 ? nullptr : &arguments[static_cast<size_t>(kernel.generator)];
  const bool is_given = given != nullptr && given->isGenerator();
  return take_point(is_given ? given->toGenerator() : at::Generator(), {kDriverDevice, device});
}

std::vector<c10::IValue> without_generator(const OperatorKernel& kernel,
                                           c10::ArrayRef<c10::IValue> arguments) {
  std::vector<c10::IValue> others = arguments.vec();
  others[static_cast<size_t>(kernel.generator)] = c10::IValue();
  return others;
}

bool takes_numbers(const OperatorKernel& kernel, c10::ArrayRef<c10::IValue> arguments) {
  const bool asks = kernel.kind == OperatorKernelKind::kPointwise || kernel.in_place;
  if (!asks || !kernel.handle.hasComputedKernelForDispatchKey(c10::DispatchKey::CPU)) return true;
  std::vector<int64_t> key = key_of_numbers(arguments);
  {
    const std::lock_guard lock(kernel.mutex);
    if (kernel.numbers.contains(key)) return true;
  }
  if (!cpu_takes(kernel, arguments)) {
    if (!leaves_to_cpu(kernel)) ask_cpu(kernel, arguments);  // nothing else would say it
    return false;
  }
  const std::lock_guard lock(kernel.mutex);
  if (kernel.numbers.size() >= kMostNumbers) kernel.numbers.clear();
  kernel.numbers.insert(std::move(key));
  return true;
}

}  // namespace bringup::torch_ext
