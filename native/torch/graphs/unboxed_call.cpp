#include "torch/graphs/unboxed_call.h"

#include <ATen/core/jit_type.h>
#include <c10/core/Scalar.h>

#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>

namespace bringup::torch_ext::graphs {
namespace {

// How an argument of a C++ type is recognised in a schema, kept, and passed.
template <class Type>
struct Kept;

template <class Type, c10::TypeKind kKind, bool (c10::IValue::*is_kind)() const>
struct KeptAs {
  using Value = Type;
  static bool takes(const c10::Argument& argument, const c10::IValue& value) {
    return argument.real_type()->kind() == kKind && (value.*is_kind)();
  }
  static Value from(const c10::IValue& value) { return value.to<Value>(); }
  static const Value& pass(const Value& value) { return value; }
};

template <class Type, c10::TypeKind kKind, bool (c10::IValue::*is_kind)() const>
struct KeptAsOptional {
  using Value = std::optional<Type>;
  static bool takes(const c10::Argument& argument, const c10::IValue& value) {
    const auto optional = argument.real_type()->cast<c10::OptionalType>();
    return optional != nullptr && optional->getElementType()->kind() == kKind &&
           (value.isNone() || (value.*is_kind)());
  }
  static Value from(const c10::IValue& value) {
    return value.isNone() ? std::nullopt : std::optional(value.to<Type>());
  }
  static const Value& pass(const Value& value) { return value; }
};

using c10::IValue;
using c10::TypeKind;
template <>
struct Kept<const at::Tensor&> : KeptAs<at::Tensor, TypeKind::TensorType, &IValue::isTensor> {};
template <>
struct Kept<const at::Scalar&> : KeptAs<at::Scalar, TypeKind::NumberType, &IValue::isScalar> {};
template <>
struct Kept<int64_t> : KeptAs<int64_t, TypeKind::IntType, &IValue::isInt> {};
template <>
struct Kept<bool> : KeptAs<bool, TypeKind::BoolType, &IValue::isBool> {};
template <>
struct Kept<std::string_view> : KeptAs<std::string, TypeKind::StringType, &IValue::isString> {};
template <>
struct Kept<std::optional<at::ScalarType>>
    : KeptAsOptional<at::ScalarType, TypeKind::ScalarTypeType, &IValue::isInt> {};
template <>
struct Kept<at::OptionalIntArrayRef>
    : KeptAsOptional<std::vector<int64_t>, TypeKind::ListType, &IValue::isIntList> {
  static at::OptionalIntArrayRef pass(const Value& value) {
    if (!value) return std::nullopt;
    return c10::IntArrayRef(*value);
  }
};

template <class... Args>
class OutCall final : public UnboxedCall {
 public:
  using Signature = at::Tensor&(Args..., at::Tensor&);

  OutCall(const c10::OperatorHandle& op, std::tuple<typename Kept<Args>::Value...> values,
          const at::Tensor& output)
      : op_(op.typed<Signature>()), values_(std::move(values)), output_(output) {}

  void run(c10::DispatchKeySet keys) override {
    std::apply(
        [&](const auto&... values) { op_.redispatch(keys, Kept<Args>::pass(values)..., output_); },
        values_);
  }

  static std::unique_ptr<UnboxedCall> make(const c10::OperatorHandle& op,
                                           c10::ArrayRef<c10::IValue> args,
                                           const at::Tensor& output) {
    return make(op, args, output, std::index_sequence_for<Args...>());
  }

 private:
  template <size_t... I>
  static std::unique_ptr<UnboxedCall> make(const c10::OperatorHandle& op,
                                           c10::ArrayRef<c10::IValue> args,
                                           const at::Tensor& output, std::index_sequence<I...>) {
    const auto& arguments = op.schema().arguments();
    if (args.size() != sizeof...(Args) || !(Kept<Args>::takes(arguments[I], args[I]) && ...)) {
      return nullptr;
    }
    return std::make_unique<OutCall>(op, std::make_tuple(Kept<Args>::from(args[I])...), output);
  }

  c10::TypedOperatorHandle<Signature> op_;
  std::tuple<typename Kept<Args>::Value...> values_;
  at::Tensor output_;
};

template <class... Calls>
std::unique_ptr<UnboxedCall> first_that_takes(const c10::OperatorHandle& op,
                                              c10::ArrayRef<c10::IValue> args,
                                              const at::Tensor& output) {
  std::unique_ptr<UnboxedCall> made;
  static_cast<void>(((made = Calls::make(op, args, output)) || ...));
  return made;
}

}  // namespace

std::unique_ptr<UnboxedCall> UnboxedCall::make(const c10::OperatorHandle& op,
                                               c10::ArrayRef<c10::IValue> args,
                                               const at::Tensor& output) {
  using T = const at::Tensor&;
  using S = const at::Scalar&;
  const auto& schema = op.schema();
  if (schema.arguments().size() != args.size() + 1) return nullptr;
  try {
    return first_that_takes<
        OutCall<T>, OutCall<T, T>, OutCall<T, T, S>, OutCall<T, S>, OutCall<T, S, S>,
        OutCall<T, T, T>, OutCall<T, T, T, S>, OutCall<T, T, T, S, S>, OutCall<T, std::string_view>,
        OutCall<T, int64_t, bool>, OutCall<T, at::OptionalIntArrayRef, bool>,
        OutCall<T, at::OptionalIntArrayRef, bool, std::optional<at::ScalarType>>>(op, args, output);
  } catch (const c10::Error&) {  // it was registered for another C++ signature than its schema has
    return nullptr;
  }
}

}  // namespace bringup::torch_ext::graphs
