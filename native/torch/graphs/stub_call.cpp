// A stub's members depend on what torch was built with, which differs by processor: this is what
// its builds for x86 define.
#if defined(__x86_64__)
#define HAVE_AVX2_CPU_DEFINITION
#define HAVE_AVX512_CPU_DEFINITION
#endif

#include "torch/graphs/stub_call.h"

#include <ATen/TensorIterator.h>
#include <ATen/native/ReduceOps.h>
#include <ATen/native/ReduceOpsUtils.h>
#include <ATen/native/layer_norm.h>
#include <ATen/native/transformers/attention.h>

#include <algorithm>
#include <optional>
#include <utility>

namespace bringup::torch_ext::graphs {

#if defined(__x86_64__)
namespace {

// `Kernel` has all that a run needs.
template <class Kernel>
class StubCall final : public PreparedCall {
 public:
  StubCall(const Operators& operators, Kernel kernel)
      : PreparedCall(operators), kernel_(std::move(kernel)) {}

 private:
  bool run_kernel() override {
    kernel_();
    return true;
  }

  Kernel kernel_;
};

template <class Kernel>
Preparation stub_call(const Operators& operators, Kernel kernel) {
  return {std::make_unique<StubCall<Kernel>>(operators, std::move(kernel))};
}

at::Tensor tensor_or_none(const c10::IValue& value) {
  return value.isNone() ? at::Tensor() : value.toTensor();
}

bool is_dense(const at::Tensor& tensor) { return !tensor.defined() || tensor.is_contiguous(); }

}  // namespace

Preparation prepare_sum(const Operators& operators, const at::Tensor& self,
                        const std::vector<int64_t>& dims, bool keep, const at::Tensor& out) {
  if (self.dtype() != out.dtype() || self.numel() == 0) return {nullptr, kConverts};
  auto sums = at::meta::make_reduction_from_out_ty(self, out, dims, keep, out.scalar_type());
  return stub_call(operators,
                   [sums = std::move(sums)]() mutable { at::native::sum_stub(at::kCPU, sums); });
}

Preparation prepare_layer_norm(const Operators& operators, const std::vector<c10::IValue>& args,
                               const std::vector<at::Tensor>& outputs) {
  const at::Tensor x = args[0].toTensor();
  const std::vector<int64_t> shape = args[1].toIntVector();
  const at::Tensor weight = tensor_or_none(args[2]), bias = tensor_or_none(args[3]);
  const auto [rows, columns] = at::native::_check_layer_norm_inputs(x, shape, weight, bias);
  if (rows == 0 || !is_dense(x) || !is_dense(weight) || !is_dense(bias) || outputs.size() != 3 ||
      !std::ranges::all_of(outputs, is_dense)) {
    return {nullptr, kConverts};
  }
  const double eps = args[4].toDouble();
  return stub_call(operators, [=, given = outputs, rows = rows, columns = columns]() mutable {
    at::native::LayerNormKernel(at::kCPU, x, weight, bias, rows, columns, eps, &given[0], &given[1],
                                &given[2]);
  });
}

Preparation prepare_attention(const Operators& operators, const std::vector<c10::IValue>& args,
                              const std::vector<at::Tensor>& outputs) {
  const at::Tensor query = args[0].toTensor(), key = args[1].toTensor(), value = args[2].toTensor();
  // The kernel's results have the heads behind the rows.
  const at::Tensor out = outputs.at(0).transpose(1, 2), sums = outputs.at(1).transpose(1, 2);
  const double dropout = args[3].toDouble();
  if (dropout != 0 || query.numel() == 0 || !is_dense(out) || !is_dense(sums)) {
    return {nullptr, kNotPrepared};
  }
  const bool causal = args[4].toBool();
  const auto mask = args[5].toOptional<at::Tensor>();
  const auto scale = args[6].toOptional<double>();
  return stub_call(operators, [=] {
    at::native::flash_attention_kernel(at::kCPU, out, sums, query, key, value, dropout, causal,
                                       mask, scale);
  });
}

#else

Preparation prepare_sum(const Operators&, const at::Tensor&, const std::vector<int64_t>&, bool,
                        const at::Tensor&) {
  return {nullptr, kNotPrepared};
}

Preparation prepare_layer_norm(const Operators&, const std::vector<c10::IValue>&,
                               const std::vector<at::Tensor>&) {
  return {nullptr, kNotPrepared};
}

Preparation prepare_attention(const Operators&, const std::vector<c10::IValue>&,
                              const std::vector<at::Tensor>&) {
  return {nullptr, kNotPrepared};
}

#endif

}  // namespace bringup::torch_ext::graphs
