#include <ATen/TensorIterator.h>
#include <ATen/ops/_log_softmax_backward_data_native.h>
#include <ATen/ops/_log_softmax_native.h>
#include <ATen/ops/_softmax_backward_data_native.h>
#include <ATen/ops/_softmax_native.h>
#include <ATen/ops/add_native.h>
#include <ATen/ops/addcdiv_native.h>
#include <ATen/ops/addcmul_native.h>
#include <ATen/ops/addmm_native.h>
#include <ATen/ops/amax_native.h>
#include <ATen/ops/amin_native.h>
#include <ATen/ops/argmax_native.h>
#include <ATen/ops/argmin_native.h>
#include <ATen/ops/atan2_native.h>
#include <ATen/ops/baddbmm_native.h>
#include <ATen/ops/bitwise_and_native.h>
#include <ATen/ops/bitwise_not_native.h>
#include <ATen/ops/bitwise_or_native.h>
#include <ATen/ops/bitwise_xor_native.h>
#include <ATen/ops/bmm_native.h>
#include <ATen/ops/ceil_native.h>
#include <ATen/ops/clamp_max_native.h>
#include <ATen/ops/clamp_min_native.h>
#include <ATen/ops/clamp_native.h>
#include <ATen/ops/copysign_native.h>
#include <ATen/ops/cos_native.h>
#include <ATen/ops/cumsum_native.h>
#include <ATen/ops/div_native.h>
#include <ATen/ops/elu_native.h>
#include <ATen/ops/eq_native.h>
#include <ATen/ops/erf_native.h>
#include <ATen/ops/exp2_native.h>
#include <ATen/ops/exp_native.h>
#include <ATen/ops/expm1_native.h>
#include <ATen/ops/floor_native.h>
#include <ATen/ops/fmod_native.h>
#include <ATen/ops/gather_native.h>
#include <ATen/ops/ge_native.h>
#include <ATen/ops/gelu_backward_native.h>
#include <ATen/ops/gelu_native.h>
#include <ATen/ops/gt_native.h>
#include <ATen/ops/hardsigmoid_native.h>
#include <ATen/ops/index_native.h>
#include <ATen/ops/le_native.h>
#include <ATen/ops/leaky_relu_backward_native.h>
#include <ATen/ops/leaky_relu_native.h>
#include <ATen/ops/lerp_native.h>
#include <ATen/ops/log1p_native.h>
#include <ATen/ops/log2_native.h>
#include <ATen/ops/log_native.h>
#include <ATen/ops/lt_native.h>
#include <ATen/ops/maximum_native.h>
#include <ATen/ops/mean_native.h>
#include <ATen/ops/minimum_native.h>
#include <ATen/ops/mish_native.h>
#include <ATen/ops/mm_native.h>
#include <ATen/ops/mse_loss_native.h>
#include <ATen/ops/mul_native.h>
#include <ATen/ops/ne_native.h>
#include <ATen/ops/neg_native.h>
#include <ATen/ops/pow_native.h>
#include <ATen/ops/reciprocal_native.h>
#include <ATen/ops/remainder_native.h>
#include <ATen/ops/round_native.h>
#include <ATen/ops/rsqrt_native.h>
#include <ATen/ops/sigmoid_backward_native.h>
#include <ATen/ops/sigmoid_native.h>
#include <ATen/ops/sign_native.h>
#include <ATen/ops/silu_backward_native.h>
#include <ATen/ops/silu_native.h>
#include <ATen/ops/sin_native.h>
#include <ATen/ops/softplus_backward_native.h>
#include <ATen/ops/softplus_native.h>
#include <ATen/ops/sqrt_native.h>
#include <ATen/ops/sub_native.h>
#include <ATen/ops/sum_native.h>
#include <ATen/ops/tanh_backward_native.h>
#include <ATen/ops/tanh_native.h>
#include <ATen/ops/threshold_backward_native.h>
#include <ATen/ops/tril_native.h>
#include <ATen/ops/triu_native.h>
#include <ATen/ops/trunc_native.h>

#include <algorithm>
#include <array>
#include <string>
#include <tuple>
#include <type_traits>
#include <unordered_map>
#include <utility>

#include "torch/graphs/kept_argument.h"
#include "torch/graphs/moving_call.h"
#include "torch/graphs/prepared_call.h"
#include "torch/graphs/values.h"

namespace bringup::torch_ext::graphs {
namespace {

// Thrown by a meta function's request for a result that is not the given one.
struct DoesNotFit {};

// The kernel with results that are given. `Count`: of results.
template <class Kernel, size_t Count>
class Prepared final : public Kernel {
 public:
  using Outputs = std::array<at::Tensor, Count>;

  explicit Prepared(Outputs outputs) : outputs_(std::move(outputs)) {}

  const Outputs& outputs() const { return outputs_; }

  void set_output_strided(int64_t index, at::IntArrayRef sizes, at::IntArrayRef strides,
                          at::TensorOptions options) override {
    if (outputs_.at(index).strides() != strides) throw DoesNotFit();
    set_output_raw_strided(index, sizes, strides, options);
  }
  void set_output_raw_strided(int64_t index, at::IntArrayRef sizes, at::IntArrayRef strides,
                              at::TensorOptions options) override {
    const at::Tensor& output = outputs_.at(index);
    if (output.sizes() != sizes || output.dtype() != options.dtype()) throw DoesNotFit();
    if constexpr (kIterates) Kernel::set_output_raw_strided(index, sizes, strides, options);
  }
  const at::Tensor& maybe_get_output(int64_t index) override { return outputs_.at(index); }

  // Whether the iterator walks over the memory of all these tensors and of the results, and beside
  // it over nothing but numbers. Where it walks over a converted copy of a tensor, `converted` gets
  // both: each run has to convert anew.
  bool works_in(const std::vector<at::Tensor>& arguments,
                std::vector<std::pair<at::Tensor, at::Tensor>>& converted) const {
    if constexpr (kIterates) {
      std::vector<bool> known(this->ntensors());
      const auto walks = [&](const at::Tensor& tensor, bool as_copy) {
        bool found = false;
        for (int i = 0; i < this->ntensors(); ++i) {
          const auto& operand = this->operand(i);
          if (as_copy == operand.original_tensor_base().defined() &&
              is_same_memory(as_copy ? operand.original_tensor_base() : operand.tensor_base(),
                             tensor)) {
            if (as_copy) converted.emplace_back(tensor, operand.tensor());
            found = known[i] = true;
          }
        }
        return found;
      };
      for (const at::Tensor& output : outputs_) {
        if (!walks(output, false)) return false;
      }
      for (const at::Tensor& tensor : arguments) {
        // What a number is converted to stays as it is.
        if (!walks(tensor, false) && !tensor.unsafeGetTensorImpl()->is_wrapped_number() &&
            !walks(tensor, true)) {
          return false;
        }
      }
      for (int i = 0; i < this->ntensors(); ++i) {
        if (!known[i] && this->tensor_base(i).dim() != 0) return false;
      }
    }
    return true;
  }
  // Some kernels take a number out of their iterator when they run.
  void keep_operands() {
    if constexpr (kIterates) {
      count_ = this->ntensors();
      for (int i = static_cast<int>(Count); i < count_; ++i) {
        if (this->is_scalar(i)) kept_ = this->operands_;
      }
    }
  }
  // Whether all are there, or there again.
  bool has_operands() {
    if constexpr (kIterates) {
      if (C10_UNLIKELY(this->ntensors() != count_)) {
        if (kept_.empty()) return false;
        this->operands_ = kept_;
      }
    }
    return true;
  }

 private:
  static bool is_same_memory(const at::TensorBase& operand, const at::TensorBase& tensor) {
    return operand.is_alias_of(tensor) && operand.dtype() == tensor.dtype() &&
           operand.const_data_ptr() == tensor.const_data_ptr();
  }

  static constexpr bool kIterates = std::is_base_of_v<at::TensorIteratorBase, Kernel>;

  Outputs outputs_;
  int count_ = 0;
  c10::SmallVector<at::OperandInfo, 1> kept_;
};

template <class Kernel, class Arguments, class Parameters>
class StructuredCall;

template <class Kernel, class... Args, class... Params>
class StructuredCall<Kernel, std::tuple<Args...>, std::tuple<Params...>> final
    : public PreparedCall {
 public:
  static Preparation make(const c10::OperatorHandle& out, const Operators& operators,
                          const std::vector<c10::IValue>& args,
                          const std::vector<at::Tensor>& outputs) {
    return make(out, operators, args, outputs, std::index_sequence_for<Args...>());
  }

 private:
  static constexpr size_t kCount = sizeof...(Params) - sizeof...(Args);
  using Outputs = typename Prepared<Kernel, kCount>::Outputs;
  using Values = std::tuple<typename Kept<Args>::Value...>;

  StructuredCall(const Operators& operators, Values values, Outputs outputs)
      : PreparedCall(operators), values_(std::move(values)), prepared_(std::move(outputs)) {}

  template <size_t... I>
  static Preparation make(const c10::OperatorHandle& out, const Operators& operators,
                          const std::vector<c10::IValue>& args,
                          const std::vector<at::Tensor>& outputs, std::index_sequence<I...>) {
    const auto& arguments = out.schema().arguments();
    if (args.size() != sizeof...(Args) || outputs.size() != kCount ||
        !(Kept<Args>::takes(arguments[I], args[I]) && ...)) {
      return {nullptr, kNotPrepared};
    }
    Outputs results;
    std::copy(outputs.begin(), outputs.end(), results.begin());
    std::unique_ptr<StructuredCall> made(
        new StructuredCall(operators, Values(Kept<Args>::from(args[I])...), std::move(results)));
    if (!made->prepare(args)) return {nullptr, kConverts};
    return {std::move(made)};
  }

  bool prepare(const std::vector<c10::IValue>& args) {
    try {
      std::apply([&](const auto&... values) { prepared_.meta(Kept<Args>::pass(values)...); },
                 values_);
    } catch (const DoesNotFit&) {
      return false;
    }
    std::vector<at::Tensor> arguments;
    for (const c10::IValue& value : args) {
      for_each_tensor(value, [&](const at::Tensor& tensor) { arguments.push_back(tensor); });
    }
    prepared_.keep_operands();
    std::vector<std::pair<at::Tensor, at::Tensor>> converted;
    if (!prepared_.works_in(arguments, converted)) return false;
    const auto find = [](const char* name) {
      return c10::Dispatcher::singleton().findSchemaOrThrow(name, "");
    };
    for (const auto& [source, copy] : converted) {
      conversions_.push_back(
          prepare_copy({find("aten::_to_copy"), find("aten::copy_")}, source, copy).call);
    }
    return true;
  }

  bool run_kernel() override {
    if (!prepared_.has_operands()) return false;
    for (const auto& conversion : conversions_) {
      if (!conversion->run()) return false;
    }
    const auto with_outputs = [&](const auto&... outputs) {
      std::apply(
          [&](const auto&... values) { prepared_.impl(Kept<Args>::pass(values)..., outputs...); },
          values_);
    };
    std::apply(with_outputs, prepared_.outputs());
    return true;
  }

  std::vector<std::unique_ptr<PreparedCall>> conversions_;
  Values values_;  // before what refers to it
  Prepared<Kernel, kCount> prepared_;
};

// What its meta function finds out ahead is kept beside the iterator.
class IndexCall final : public PreparedCall {
 public:
  IndexCall(const Operators& operators, at::Tensor self, at::Tensor output)
      : PreparedCall(operators), self_(std::move(self)), prepared_({std::move(output)}) {}

  // False where an index is converted first.
  bool prepare(const c10::List<std::optional<at::Tensor>>& indices) {
    std::vector<at::Tensor> walked{self_};
    for (const std::optional<at::Tensor> index : indices) {
      if (!index || !index->defined()) continue;
      if (index->scalar_type() != at::kLong) return false;
      walked.push_back(*index);
    }
    try {
      const auto ahead = prepared_.meta(self_, at::IOptTensorListRef(indices));
      sizes_ = ahead.sizes;
      strides_ = ahead.strides;
    } catch (const DoesNotFit&) {
      return false;
    }
    prepared_.keep_operands();
    std::vector<std::pair<at::Tensor, at::Tensor>> converted;
    return prepared_.works_in(walked, converted) && converted.empty();
  }

 private:
  bool run_kernel() override {
    if (!prepared_.has_operands()) return false;
    prepared_.impl(self_, sizes_, strides_, prepared_.outputs()[0]);
    return true;
  }

  at::Tensor self_;
  Prepared<at::native::structured_index_out, 1> prepared_;
  at::DimVector sizes_, strides_;
};

template <class Function>
struct ParametersOf;
template <class Owner, class... Params>
struct ParametersOf<void (Owner::*)(Params...)> {
  using Types = std::tuple<Params...>;
};

template <class Kernel>
Preparation prepare(const c10::OperatorHandle& out, const Operators& operators,
                    const std::vector<c10::IValue>& args, const std::vector<at::Tensor>& outputs) {
  using Call = StructuredCall<Kernel, typename ParametersOf<decltype(&Kernel::meta)>::Types,
                              typename ParametersOf<decltype(&Kernel::impl)>::Types>;
  return Call::make(out, operators, args, outputs);
}

using PrepareOut = decltype(&prepare<at::native::structured_mm_out_cpu>);
// Out forms whose CPU kernel is structured, and computes nothing ahead that its `impl` is given.
// Not glu, whose iterator borrows tensors that are gone. What baddbmm's meta function copies into
// the result is a call of its own before each run.
const std::unordered_map<std::string, PrepareOut> kStructured{
    {"aten::add.out", &prepare<at::native::structured_ufunc_add_CPU>},
    {"aten::addcdiv.out", &prepare<at::native::structured_addcdiv_out>},
    {"aten::addcmul.out", &prepare<at::native::structured_addcmul_out>},
    {"aten::addmm.out", &prepare<at::native::structured_addmm_out_cpu>},
    {"aten::amax.out", &prepare<at::native::structured_amax_out>},
    {"aten::amin.out", &prepare<at::native::structured_amin_out>},
    {"aten::argmax.out", &prepare<at::native::structured_argmax_out>},
    {"aten::argmin.out", &prepare<at::native::structured_argmin_out>},
    {"aten::atan2.out", &prepare<at::native::structured_atan2_out>},
    {"aten::baddbmm.out", &prepare<at::native::structured_baddbmm_out_cpu>},
    {"aten::bitwise_and.Tensor_out", &prepare<at::native::structured_bitwise_and_out>},
    {"aten::bitwise_not.out", &prepare<at::native::structured_bitwise_not_out>},
    {"aten::bitwise_or.Tensor_out", &prepare<at::native::structured_bitwise_or_out>},
    {"aten::bitwise_xor.Tensor_out", &prepare<at::native::structured_bitwise_xor_out>},
    {"aten::bmm.out", &prepare<at::native::structured_bmm_out_cpu>},
    {"aten::ceil.out", &prepare<at::native::structured_ceil_out>},
    {"aten::clamp.out", &prepare<at::native::structured_clamp_out>},
    {"aten::clamp.Tensor_out", &prepare<at::native::structured_clamp_Tensor_out>},
    {"aten::clamp_max.out", &prepare<at::native::structured_clamp_max_out>},
    {"aten::clamp_max.Tensor_out", &prepare<at::native::structured_clamp_max_Tensor_out>},
    {"aten::clamp_min.out", &prepare<at::native::structured_clamp_min_out>},
    {"aten::clamp_min.Tensor_out", &prepare<at::native::structured_clamp_min_Tensor_out>},
    {"aten::copysign.out", &prepare<at::native::structured_copysign_out>},
    {"aten::cos.out", &prepare<at::native::structured_cos_out>},
    {"aten::cumsum.out", &prepare<at::native::structured_cumsum_out>},
    {"aten::div.out", &prepare<at::native::structured_div_out>},
    {"aten::div.out_mode", &prepare<at::native::structured_div_out_mode>},
    {"aten::elu.out", &prepare<at::native::structured_elu_out>},
    {"aten::eq.Scalar_out", &prepare<at::native::structured_eq_Scalar_out>},
    {"aten::eq.Tensor_out", &prepare<at::native::structured_eq_Tensor_out>},
    {"aten::erf.out", &prepare<at::native::structured_erf_out>},
    {"aten::exp.out", &prepare<at::native::structured_exp_out>},
    {"aten::exp2.out", &prepare<at::native::structured_exp2_out>},
    {"aten::expm1.out", &prepare<at::native::structured_expm1_out>},
    {"aten::floor.out", &prepare<at::native::structured_floor_out>},
    {"aten::fmod.Tensor_out", &prepare<at::native::structured_fmod_out>},
    {"aten::gather.out", &prepare<at::native::structured_gather_out>},
    {"aten::ge.Scalar_out", &prepare<at::native::structured_ge_Scalar_out>},
    {"aten::ge.Tensor_out", &prepare<at::native::structured_ge_Tensor_out>},
    {"aten::gelu.out", &prepare<at::native::structured_gelu_out_cpu>},
    {"aten::gelu_backward.grad_input", &prepare<at::native::structured_gelu_backward_out_cpu>},
    {"aten::gt.Scalar_out", &prepare<at::native::structured_gt_Scalar_out>},
    {"aten::gt.Tensor_out", &prepare<at::native::structured_gt_Tensor_out>},
    {"aten::hardsigmoid.out", &prepare<at::native::structured_hardsigmoid_out>},
    {"aten::le.Scalar_out", &prepare<at::native::structured_le_Scalar_out>},
    {"aten::le.Tensor_out", &prepare<at::native::structured_le_Tensor_out>},
    {"aten::leaky_relu.out", &prepare<at::native::structured_leaky_relu_out>},
    {"aten::leaky_relu_backward.grad_input",
     &prepare<at::native::structured_leaky_relu_backward_out>},
    {"aten::lerp.Scalar_out", &prepare<at::native::structured_lerp_Scalar>},
    {"aten::lerp.Tensor_out", &prepare<at::native::structured_lerp_Tensor>},
    {"aten::log.out", &prepare<at::native::structured_log_out>},
    {"aten::log1p.out", &prepare<at::native::structured_log1p_out>},
    {"aten::log2.out", &prepare<at::native::structured_log2_out>},
    {"aten::_log_softmax.out", &prepare<at::native::structured_log_softmax_cpu_out>},
    {"aten::_log_softmax_backward_data.out",
     &prepare<at::native::structured_log_softmax_backward_cpu_out>},
    {"aten::lt.Scalar_out", &prepare<at::native::structured_lt_Scalar_out>},
    {"aten::lt.Tensor_out", &prepare<at::native::structured_lt_Tensor_out>},
    {"aten::maximum.out", &prepare<at::native::structured_maximum_out>},
    {"aten::mean.out", &prepare<at::native::structured_mean_out>},
    {"aten::minimum.out", &prepare<at::native::structured_minimum_out>},
    {"aten::mish.out", &prepare<at::native::structured_mish_out>},
    {"aten::mm.out", &prepare<at::native::structured_mm_out_cpu>},
    {"aten::mse_loss.out", &prepare<at::native::structured_mse_loss_out>},
    {"aten::mul.out", &prepare<at::native::structured_mul_out>},
    {"aten::ne.Scalar_out", &prepare<at::native::structured_ne_Scalar_out>},
    {"aten::ne.Tensor_out", &prepare<at::native::structured_ne_Tensor_out>},
    {"aten::neg.out", &prepare<at::native::structured_neg_out>},
    {"aten::pow.Tensor_Scalar_out", &prepare<at::native::structured_pow_Tensor_Scalar_out>},
    {"aten::pow.Tensor_Tensor_out", &prepare<at::native::structured_pow_Tensor_Tensor_out>},
    {"aten::reciprocal.out", &prepare<at::native::structured_reciprocal_out>},
    {"aten::remainder.Tensor_out", &prepare<at::native::structured_remainder_out>},
    {"aten::round.out", &prepare<at::native::structured_round_out>},
    {"aten::rsqrt.out", &prepare<at::native::structured_rsqrt_out>},
    {"aten::sigmoid.out", &prepare<at::native::structured_sigmoid_out>},
    {"aten::sigmoid_backward.grad_input", &prepare<at::native::structured_sigmoid_backward_out>},
    {"aten::sign.out", &prepare<at::native::structured_sign_out>},
    {"aten::silu.out", &prepare<at::native::structured_silu_out>},
    {"aten::silu_backward.grad_input", &prepare<at::native::structured_silu_backward_out>},
    {"aten::sin.out", &prepare<at::native::structured_sin_out>},
    {"aten::_softmax.out", &prepare<at::native::structured_softmax_cpu_out>},
    {"aten::_softmax_backward_data.out", &prepare<at::native::structured_softmax_backward_cpu_out>},
    {"aten::softplus.out", &prepare<at::native::structured_softplus_out>},
    {"aten::softplus_backward.grad_input", &prepare<at::native::structured_softplus_backward_out>},
    {"aten::sqrt.out", &prepare<at::native::structured_sqrt_out>},
    {"aten::sub.out", &prepare<at::native::structured_sub_out>},
    {"aten::sum.IntList_out", &prepare<at::native::structured_sum_out>},
    {"aten::tanh.out", &prepare<at::native::structured_tanh_out>},
    {"aten::tanh_backward.grad_input", &prepare<at::native::structured_tanh_backward_out>},
    {"aten::threshold_backward.grad_input",
     &prepare<at::native::structured_threshold_backward_out>},
    {"aten::tril.out", &prepare<at::native::structured_tril_cpu>},
    {"aten::triu.out", &prepare<at::native::structured_triu_cpu>},
    {"aten::trunc.out", &prepare<at::native::structured_trunc_out>},
};

}  // namespace

Preparation prepare_index(const Operators& operators, const std::vector<c10::IValue>& args,
                          const std::vector<at::Tensor>& outputs) {
  auto made = std::make_unique<IndexCall>(operators, args[0].toTensor(), outputs.at(0));
  if (!made->prepare(args[1].toOptionalTensorList())) return {nullptr, kConverts};
  return {std::move(made)};
}

Preparation prepare_structured(const c10::OperatorHandle& out, const Operators& operators,
                               const std::vector<c10::IValue>& args,
                               const std::vector<at::Tensor>& outputs) {
  const auto found = kStructured.find(full_name(out));
  if (found == kStructured.end()) return {nullptr, kNotPrepared};
  return found->second(out, operators, args, outputs);
}

}  // namespace bringup::torch_ext::graphs
