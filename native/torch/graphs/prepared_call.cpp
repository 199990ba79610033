#include "torch/graphs/prepared_call.h"

#include <ATen/ScalarOps.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/sum.h>

#include <algorithm>
#include <string>
#include <unordered_map>
#include <utility>

#include "torch/common/out_form.h"
#include "torch/common/torch_private.h"
#include "torch/graphs/moving_call.h"
#include "torch/graphs/stub_call.h"
#include "torch/graphs/table_call.h"
#include "torch/graphs/values.h"

namespace bringup::torch_ext::graphs {
namespace {

using Arguments = std::vector<c10::IValue>;
using Outputs = std::vector<at::Tensor>;

// Calls one behind the other, into fresh results: what the first ones have written does not matter
// where a later one does not run.
class CallsInOrder final : public PreparedCall {
 public:
  CallsInOrder(const Operators& operators, std::vector<std::unique_ptr<PreparedCall>> calls)
      : PreparedCall(operators), calls_(std::move(calls)) {}

 private:
  bool run_kernel() override {
    return std::ranges::all_of(calls_, [](const auto& call) { return call->run(); });
  }

  std::vector<std::unique_ptr<PreparedCall>> calls_;
};

template <class... Preparations>
Preparation in_order(const Operators& operators, Preparations... parts) {
  const char* reason = "";
  const bool all = ((reason = parts.reason, parts.call != nullptr) && ...);
  if (!all) return {nullptr, reason};
  std::vector<std::unique_ptr<PreparedCall>> calls;
  (calls.push_back(std::move(parts.call)), ...);
  return {std::make_unique<CallsInOrder>(operators, std::move(calls))};
}

// One that an operator calls; raises where its kernel is not torch's.
c10::OperatorHandle called(const std::string& name, const char* overload) {
  const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(name.c_str(), overload);
  TORCH_CHECK(has_kernel_of_torch(op), name, " has a kernel of other code");
  return op;
}

c10::OperatorHandle out_form(const char* name, const char* overload = "out") {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, overload);
}

at::Tensor as_tensor(const c10::IValue& number) {
  return at::native::wrapped_scalar_tensor(number.toScalar());
}

// "aten::add_.Scalar": torch makes a tensor of the number.
Preparation prepare_with_number(const c10::OperatorHandle& op, const Arguments& args,
                                const Outputs& outputs) {
  std::string name = op.operator_name().name;
  const Operators operators{op, called(name, "Tensor")};
  if (name.ends_with('_')) name.pop_back();
  Arguments with_tensor = args;
  with_tensor[1] = as_tensor(args[1]);
  return prepare_structured(out_form(name.c_str()), operators, with_tensor, outputs);
}

Preparation prepare_reversed_sub(const c10::OperatorHandle& op, const Arguments& args,
                                 const Outputs& outputs) {
  const c10::IValue other = args[1].isTensor() ? args[1] : as_tensor(args[1]);
  return prepare_structured(out_form("aten::sub"), {op, called("aten::sub", "Tensor")},
                            {other, args[0], args[2]}, outputs);
}

Preparation prepare_baddbmm(const c10::OperatorHandle& op, const Arguments& args,
                            const Outputs& outputs) {
  Preparation product = prepare_structured(out_form("aten::baddbmm"), {op}, args, outputs);
  const at::Tensor self = args[0].toTensor(), out = outputs.at(0);
  if (self.const_data_ptr() == out.const_data_ptr()) return product;
  return in_order({op}, prepare_copy({op, called("aten::copy_", "")}, self, out),
                  std::move(product));
}

Preparation sum_of(const Operators& operators, const at::Tensor& self, const c10::IValue& dim,
                   bool keep, const at::Tensor& out) {
  const auto dims = dim.isNone() ? std::vector<int64_t>() : dim.toIntVector();
  Preparation made = prepare_sum(operators, self, dims, keep, out);
  if (made.call != nullptr) return made;
  return prepare_structured(out_form("aten::sum", "IntList_out"), operators,
                            {self, dim, keep, static_cast<int64_t>(out.scalar_type())}, {out});
}

// torch's kernel is a call of sum and one of div_, of half types in float.
Preparation prepare_mean(const c10::OperatorHandle& op, const Arguments& args,
                         const Outputs& outputs) {
  const bool has_dim = args.size() == 4;
  const at::Tensor self = args[0].toTensor(), out = outputs.at(0);
  const c10::IValue dim = has_dim ? args[1] : c10::IValue(std::vector<int64_t>());
  const bool keep = has_dim && args[2].toBool();
  if (self.dtype() != out.dtype() || !self.is_floating_point() || out.numel() == 0) {
    return {nullptr, kConverts};
  }
  const bool half = self.itemsize() == 2;
  const at::Tensor source = half ? self.to(at::kFloat) : self;
  const std::vector<int64_t> dims = dim.isNone() ? std::vector<int64_t>() : dim.toIntVector();
  const at::Tensor total = half ? at::sum(source, dims, keep, at::kFloat) : out;
  const auto sum = [&] {
    return sum_of({called("aten::sum", "IntList_out"), called("aten::sum", "dim_IntList")}, source,
                  dim, keep, total);
  };
  const auto divide = [&] {
    return prepare_structured(out_form("aten::div"),
                              {called("aten::div_", "Scalar"), called("aten::div_", "Tensor")},
                              {total, as_tensor(at::Scalar(self.numel() / out.numel()))}, {total});
  };
  if (!half) return in_order({op}, sum(), divide());
  const Operators copies{called("aten::_to_copy", ""), called("aten::copy_", "")};
  return in_order({op}, prepare_copy(copies, self, source), sum(), divide(),
                  prepare_copy(copies, total, out));
}

bool is_dense(const at::Tensor& tensor) { return tensor.is_contiguous(); }

// Whether a product reads a matrix where it lies.
bool is_row_or_column_major(const at::Tensor& matrix) {
  const auto fits = [&](int64_t along, int64_t across) {
    return matrix.stride(along) == 1 &&
           matrix.stride(across) >= std::max<int64_t>(matrix.size(along), 1);
  };
  return fits(0, 1) || fits(1, 0);
}

// Which tensors the kernel reads where they lie: it clones others in every call.
struct Operands {
  size_t first;  // argument
  bool (*are_read)(const at::Tensor&);
};
const std::unordered_map<std::string, Operands> kCloned{
    {"aten::_softmax", {0, &is_dense}},
    {"aten::_log_softmax", {0, &is_dense}},
    {"aten::mm", {0, &is_row_or_column_major}},
    {"aten::addmm", {1, &is_row_or_column_major}},
};

// Gives such arguments places of their own; calls that copy them there.
std::vector<std::unique_ptr<PreparedCall>> prepare_clones(const std::string& name,
                                                          Arguments& args) {
  std::vector<std::unique_ptr<PreparedCall>> calls;
  const auto found = kCloned.find(name);
  if (found == kCloned.end()) return calls;
  for (size_t i = found->second.first; i < args.size(); ++i) {
    if (!args[i].isTensor() || found->second.are_read(args[i].toTensor())) continue;
    const at::Tensor self = args[i].toTensor();
    // A single element is read as the kernel reads its own clone: that decides the sign of a NaN.
    args[i] = self.numel() == 1 ? at::empty_strided({1, 1}, {2, 1}, self.options())
                                : at::empty(self.sizes(), self.options());
    const Operators copies{called("aten::clone", ""), called("aten::copy_", "")};
    calls.push_back(prepare_copy(copies, self, args[i].toTensor()).call);
  }
  return calls;
}

// What an operator without tensors gives is the same in every run.
Preparation prepare_constant(const c10::OperatorHandle& op, const Arguments& args,
                             const Outputs& outputs) {
  constexpr int64_t kMost = 1024;
  if (outputs.at(0).numel() > kMost) return {nullptr, kNotPrepared};
  Arguments stack = args;
  op.callBoxed(&stack);
  const at::Tensor constant = stack.at(0).toTensor();
  if (constant.sizes() != outputs[0].sizes() || constant.dtype() != outputs[0].dtype()) {
    return {nullptr, kConverts};
  }
  return prepare_copy({op, called("aten::fill_", "Scalar"), called("aten::zero_", ""),
                       called("aten::arange", "start_out")},
                      constant, outputs[0]);
}

// A number as an element of `like`. torch converts it for a single one otherwise than for several.
at::Tensor as_element(const c10::IValue& number, const at::Tensor& like) {
  const at::Tensor elements = at::empty({std::min<int64_t>(like.numel(), 2)}, like.options());
  return elements.fill_(number.toScalar()).select(0, 0);
}

Preparation prepare_fill(const c10::OperatorHandle& op, const Arguments& args,
                         const Outputs& outputs) {
  const at::Tensor& target = outputs.at(0);
  if (target.numel() == 0) return {nullptr, kNotPrepared};
  const c10::IValue number = args.size() > 1 ? args[1] : c10::IValue(at::Scalar(0));
  return prepare_copy({op, called("aten::fill_", "Scalar")}, as_element(number, target), target);
}

Preparation prepare_masked_fill(const c10::OperatorHandle& op, const Arguments& args,
                                const Outputs& outputs) {
  const at::Tensor& target = outputs.at(0);
  if (target.numel() == 0) return {nullptr, kNotPrepared};
  return prepare_where({op, called("aten::masked_fill_", "Scalar")}, args[1].toTensor(),
                       as_element(args[2], target), args[0].toTensor(), target);
}

using Prepare = Preparation (*)(const c10::OperatorHandle&, const Arguments&, const Outputs&);

Preparation copy_of_first(const c10::OperatorHandle& op, const Arguments& args,
                          const Outputs& outputs) {
  if (args[0].toTensor().sizes() != outputs.at(0).sizes()) return {nullptr, kConverts};
  return prepare_copy({op, called("aten::copy_", "")}, args[0].toTensor(), outputs.at(0));
}

Preparation prepare_embedding(const c10::OperatorHandle& op, const Arguments& args,
                              const Outputs& outputs) {
  const at::Tensor weight = args[0].toTensor(), index = args[1].toTensor();
  const at::Tensor rows = outputs.at(0).view({index.numel(), weight.size(1)});
  return prepare_indexed({op, called("aten::index_select", "")}, weight, 0, index, rows, true);
}

const std::unordered_map<std::string, Prepare> kPrepared{
    {"aten::relu_",
     [](const auto& op, const Arguments& args, const Outputs& outputs) {
       return prepare_structured(out_form("aten::clamp_min"), {op}, {args[0], at::Scalar(0)},
                                 outputs);
     }},
    {"aten::where.self",
     [](const auto& op, const Arguments& args, const Outputs& outputs) {
       return prepare_where({op}, args[0].toTensor(), args[1].toTensor(), args[2].toTensor(),
                            outputs.at(0));
     }},
    {"aten::copy_",
     [](const auto& op, const Arguments& args, const Outputs&) {
       return prepare_copy({op}, args[1].toTensor(), args[0].toTensor());
     }},
    {"aten::clone", &copy_of_first},
    {"aten::_to_copy", &copy_of_first},
    {"aten::cat",
     [](const auto& op, const Arguments& args, const Outputs& outputs) {
       return prepare_cat({op}, args[0].toTensorVector(), args[1].toInt(), outputs.at(0));
     }},
    {"aten::index_select",
     [](const auto& op, const Arguments& args, const Outputs& outputs) {
       return prepare_indexed({op}, args[0].toTensor(), args[1].toInt(), args[2].toTensor(),
                              outputs.at(0), true);
     }},
    {"aten::index_copy_",
     [](const auto& op, const Arguments& args, const Outputs&) {
       return prepare_indexed({op}, args[0].toTensor(), args[1].toInt(), args[2].toTensor(),
                              args[3].toTensor(), false);
     }},
    {"aten::index.Tensor",
     [](const auto& op, const Arguments& args, const Outputs& outputs) {
       return prepare_index({op}, args, outputs);
     }},
    {"aten::embedding", &prepare_embedding},
    {"aten::native_layer_norm",
     [](const auto& op, const Arguments& args, const Outputs& outputs) {
       return prepare_layer_norm({op}, args, outputs);
     }},
    {"aten::_scaled_dot_product_flash_attention_for_cpu",
     [](const auto& op, const Arguments& args, const Outputs& outputs) {
       return prepare_attention({op}, args, outputs);
     }},
    {"aten::gelu",
     [](const auto& op, const Arguments& args, const Outputs& outputs) {
       return prepare_look_up({op}, args, outputs,
                              prepare_structured(out_form("aten::gelu"), {op}, args, outputs));
     }},
    {"aten::sum.dim_IntList",
     [](const auto& op, const Arguments& args, const Outputs& outputs) {
       return sum_of({op}, args[0].toTensor(), args[1], args[2].toBool(), outputs.at(0));
     }},
    {"aten::mean", &prepare_mean},
    {"aten::mean.dim", &prepare_mean},
    {"aten::scalar_tensor", &prepare_constant},
    {"aten::full", &prepare_constant},
    {"aten::zeros", &prepare_constant},
    {"aten::ones", &prepare_constant},
    {"aten::arange", &prepare_constant},
    {"aten::arange.start", &prepare_constant},
    {"aten::arange.start_step", &prepare_constant},
    {"aten::zero_", &prepare_fill},
    {"aten::fill_.Scalar", &prepare_fill},
    {"aten::masked_fill.Scalar", &prepare_masked_fill},
    {"aten::masked_fill_.Scalar", &prepare_masked_fill},
    {"aten::baddbmm", &prepare_baddbmm},
    {"aten::baddbmm_", &prepare_baddbmm},
    {"aten::rsub.Scalar", &prepare_reversed_sub},
    {"aten::rsub.Tensor", &prepare_reversed_sub},
    {"aten::add.Scalar", &prepare_with_number},
    {"aten::add_.Scalar", &prepare_with_number},
    {"aten::sub.Scalar", &prepare_with_number},
    {"aten::sub_.Scalar", &prepare_with_number},
    {"aten::mul.Scalar", &prepare_with_number},
    {"aten::mul_.Scalar", &prepare_with_number},
    {"aten::div.Scalar", &prepare_with_number},
    {"aten::div_.Scalar", &prepare_with_number},
};

}  // namespace

PreparedCall::PreparedCall(const Operators& operators) {
  for (const c10::OperatorHandle& op : operators) watch(op, kCpuKernel);
}

void PreparedCall::watch(const c10::OperatorHandle& op, c10::DispatchKeySet keys) {
  const auto& entry = operator_entry(op);
  registered_.push_back({&entry, keys, entry.lookup(keys)});
}

bool PreparedCall::is_current() const {
  return std::all_of(registered_.begin(), registered_.end(), [](const Registered& one) {
    return one.entry->lookup(one.keys)._equalsBoxedAndUnboxed(one.kernel);
  });
}

Preparation prepare_call(const c10::OperatorHandle& op, const c10::OperatorHandle& runs,
                         const std::optional<OutVariant>& out, const std::vector<c10::IValue>& args,
                         const std::vector<at::Tensor>& outputs) {
  const std::string name = full_name(op);
  if (const auto found = kPrepared.find(name); found != kPrepared.end()) {
    if (!has_kernel_of_torch(op)) return {nullptr, kNotPrepared};
    return found->second(runs, args, outputs);
  }
  if (out) {
    std::vector<c10::IValue> all;
    all.reserve(args.size() + out->more.size());
    all.insert(all.end(), args.begin(), args.end());
    all.insert(all.end(), out->more.begin(), out->more.end());
    auto calls = prepare_clones(name, all);
    Preparation made = prepare_structured(out->op, {runs}, all, outputs);
    if (calls.empty() || made.call == nullptr) return made;
    calls.push_back(std::move(made.call));
    return {std::make_unique<CallsInOrder>(Operators{runs}, std::move(calls))};
  }
  if (!op.schema().is_mutable() || !has_kernel_of_torch(op)) return {nullptr, kNotPrepared};
  const auto in_place = find_out_form(op);
  if (!in_place || !has_kernel_of_torch(*in_place)) return {nullptr, kNotPrepared};
  return prepare_structured(*in_place, {op}, args, outputs);
}

}  // namespace bringup::torch_ext::graphs
