// What other host arguments would do to the results of a captured operator: found out before an
// update writes them, by a trial on copies or by the operator's fake.
#include <ATen/EmptyTensor.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/SymNodeImpl.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <unordered_map>

#include "torch/devices/generator.h"
#include "torch/devices/host_random.h"
#include "torch/graphs/node.h"
#include "torch/graphs/outside_capture.h"
#include "torch/graphs/values.h"

namespace bringup::torch_ext::graphs {
namespace {

using c10::IValue;
using Arguments = std::vector<IValue>;

constexpr size_t kMostCopied = size_t{1} << 20;  // bytes of arguments, and of results, for a trial

// A number whose value nothing may ask for: every other question raises, too.
class UnreadNumber final : public c10::SymNodeImpl {
 public:
  bool is_int() override { return true; }
  bool is_float() override { return false; }
  bool is_bool() override { return false; }
  std::string str() override { return "a number that is not read"; }
};

// The value with unread numbers in its place; none for what is no int or list of them.
std::optional<IValue> unread(const IValue& value) {
  const c10::SymInt number(c10::SymNode(c10::make_intrusive<UnreadNumber>()));
  if (value.isInt()) return IValue(number);
  if (!value.isIntList()) return std::nullopt;
  c10::impl::GenericList list(c10::SymIntType::get());
  for (size_t i = 0; i < value.toListRef().size(); ++i) list.push_back(IValue(number));
  return IValue(std::move(list));
}

// Whether they differ in their numbers alone.
bool is_alike(const IValue& left, const IValue& right) {
  const bool lists = left.isIntList() && right.isIntList();
  return lists ? left.toListRef().size() == right.toListRef().size()
               : left.isInt() && right.isInt();
}

bool is_of_torch(const std::string& name) {
  return name.starts_with("aten::") || name.starts_with("prims::");
}

// Arithmetic that raises for no moderate number, and whose result depends on it in its elements
// alone.
bool is_arithmetic(const c10::OperatorHandle& op) {
  constexpr std::string_view kNames[] = {
      "aten::add",      "aten::sub",        "aten::rsub",       "aten::mul",  "aten::div",
      "aten::addcmul",  "aten::addcdiv",    "aten::addmm",      "aten::lerp", "aten::baddbmm",
      "aten::softplus", "aten::leaky_relu", "aten::hardshrink", "aten::clamp"};
  const std::string& name = op.operator_name().name;
  return std::find(std::begin(kNames), std::end(kNames), name) != std::end(kNames);
}

// Numbers of one kind, in range of every floating type; no integer zero, by which one may divide.
bool are_moderate(const IValue& value, const IValue& former) {
  constexpr double kMost = 65504;  // the largest float16
  const auto is_moderate = [](const IValue& number) {
    if (!number.isInt() && !number.isDouble()) return false;
    const double size =
        std::abs(number.isInt() ? static_cast<double>(number.toInt()) : number.toDouble());
    return size <= kMost && (size != 0 || number.isDouble());
  };
  return value.isInt() == former.isInt() && is_moderate(value) && is_moderate(former);
}

void check_results(const std::string& op, const OperatorNode::Call& call,
                   const std::vector<IValue>& results) {
  size_t next = 0;
  for_each_tensor(results, [&](const at::Tensor& tensor) { call.check(op, next++, tensor); });
  call.check_count(op, next);
}

// As the fake sees the arguments: no memory, no device, no generator.
Arguments fakes_of(const c10::FunctionSchema& schema, Arguments arguments) {
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (schema.arguments()[i].type()->str().starts_with("Device")) {
      arguments[i] = c10::Device(c10::kMeta);
    }
    arguments[i] = map_tensors(arguments[i], [](const at::Tensor& tensor) {
      return at::Tensor(
          at::detail::empty_strided_meta(tensor.sizes(), tensor.strides(), tensor.scalar_type()));
    });
  }
  return arguments;
}

Arguments run_fake(const OperatorNode::Call& call, const Arguments& arguments) {
  Arguments stack = fakes_of(*call.schema, arguments);
  const auto keys = call.keys.remove_backend(c10::BackendComponent::CPUBit) |
                    c10::DispatchKeySet(c10::DispatchKey::Meta);
  call.op.redispatchBoxed(keys, &stack);
  return stack;
}

// The arguments over memory of their own.
Arguments copies_of(const Arguments& arguments) {
  std::unordered_map<const c10::StorageImpl*, c10::Storage> copies;
  const auto copy = [&](const at::Tensor& tensor) {
    c10::Storage& own = copies[tensor.storage().unsafeGetStorageImpl()];
    if (!own) {
      own = c10::Storage(c10::Storage::use_byte_size_t(), tensor.storage().nbytes(),
                         c10::GetCPUAllocator(), /*resizable=*/true);
      const size_t bytes = own.nbytes();
      if (bytes > 0) std::memcpy(own.mutable_data(), tensor.storage().data(), bytes);
    }
    return shallow_copy(tensor, own);
  };
  Arguments made;
  for (const IValue& argument : arguments) made.push_back(map_tensors(argument, copy));
  return made;
}

void run_trial(const std::string& op, const OperatorNode::Call& call, const Arguments& arguments) {
  Arguments stack = copies_of(arguments);
  std::vector<const void*> given;
  for_each_tensor(stack, [&](const at::Tensor& t) { given.push_back(t.storage().data()); });
  const int generator = RandomTraits(call.op).generator();
  if (generator >= 0) stack[static_cast<size_t>(generator)] = call_generator({});
  call.op.redispatchBoxed(call.keys, &stack);
  check_results(op, call, stack);
  size_t next = 0;
  for_each_tensor(stack, [&](const at::Tensor& tensor) {
    const bool is_argument = std::ranges::find(given, tensor.storage().data()) != given.end();
    TORCH_CHECK(is_argument || !call.outputs[next].fixed, op,
                " would no longer give the memory of an argument, as it did when it was captured");
    ++next;
  });
}

// What a call raises; null where it raises nothing.
template <class Call>
std::exception_ptr error_of(Call&& call) {
  try {
    call();
  } catch (const std::exception&) {
    return std::current_exception();
  }
  return nullptr;
}

size_t bytes_of_all(const Arguments& values) {
  size_t bytes = 0;
  for_each_tensor(values, [&](const at::Tensor& tensor) { bytes += tensor.storage().nbytes(); });
  return bytes;
}

// Of what the operator would give, as far as its fake knows.
size_t bytes_given(const OperatorNode::Call& call, const Arguments& arguments) {
  size_t bytes = 0;
  error_of([&] { bytes = bytes_of_all(run_fake(call, arguments)); });
  return bytes;
}

}  // namespace

// Whether the fake gives the same results whatever value the argument has.
bool OperatorNode::is_unread(size_t index, const Arguments& arguments) const {
  if (unread_.empty()) unread_.resize(arguments.size());
  if (!unread_[index]) {
    Arguments others = arguments;
    const auto value = unread(others[index]);
    if (value) others[index] = *value;
    unread_[index] =
        value && !error_of([&] { check_results(op(), call_, run_fake(call_, others)); });
  }
  return *unread_[index];
}

// An operator of torch is tried on copies of its arguments, where these are small or a text is
// another one, which few fakes look at. Others may do more than they give: their fake is asked, and
// believed where it knows the call as it was.
void OperatorNode::check_arguments(const Arguments& arguments, const Arguments& former) const {
  const bool of_torch = is_of_torch(op());
  const bool has_fake = of_torch || call_.op.hasKernelForDispatchKey(c10::DispatchKey::Meta);
  if (!has_fake) return;
  const OutsideCapture outside;
  const bool floating = std::ranges::all_of(call_.outputs, [](const Output& output) {
    return output.tensor.is_floating_point() && output.tensor.element_size() > 1;
  });
  bool any = false;
  bool text = false;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const IValue& value = arguments[i];
    if (value.isTensor() || value.isTensorList() || same(value, former[i])) continue;
    if (of_torch ? floating && are_moderate(value, former[i]) && is_arithmetic(call_.op)
                 : is_alike(value, former[i]) && is_unread(i, former)) {
      continue;
    }
    any = true;
    text |= value.isString() || former[i].isString();
  }
  if (!any) return;
  const bool is_small =
      bytes_of_all(arguments) <= kMostCopied && bytes_given(call_, arguments) <= kMostCopied;
  const bool can_try = of_torch && !RandomTraits(call_.op).draws_inside() && (text || is_small);
  const auto error_with = [&](const Arguments& values) {
    return error_of([&] {
      if (can_try) return run_trial(op(), call_, values);
      check_results(op(), call_, run_fake(call_, values));
    });
  };
  const auto error = error_with(arguments);
  if (error && !error_with(former)) std::rethrow_exception(error);
}

}  // namespace bringup::torch_ext::graphs
