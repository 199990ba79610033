#include "torch/graphs/unboxed_call.h"

#include <tuple>
#include <utility>

#include "torch/graphs/kept_argument.h"

namespace bringup::torch_ext::graphs {
namespace {

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
