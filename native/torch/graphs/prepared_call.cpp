#include "torch/graphs/prepared_call.h"

#include <ATen/TensorIterator.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <unordered_map>
#include <utility>

#include "torch/common/out_form.h"
#include "torch/common/torch_private.h"
#include "torch/graphs/values.h"

namespace bringup::torch_ext::graphs {
namespace {

using Arguments = std::vector<c10::IValue>;
using Outputs = std::vector<at::Tensor>;

// A loop over elements whose bits it only moves, as torch does.
class MovingCall final : public PreparedCall {
 public:
  using Loop = void (*)(char** data, const int64_t* strides, int64_t count);

  MovingCall(c10::ArrayRef<c10::OperatorHandle> kernels, at::TensorIterator iterator, Loop loop)
      : PreparedCall(kernels), iterator_(std::move(iterator)), loop_(loop) {}

 private:
  bool run_kernel() override {
    const auto rows = [this](char** data, const int64_t* strides, int64_t count, int64_t outer) {
      std::array<char*, 4> row{};
      std::copy_n(data, iterator_.ntensors(), row.begin());
      for (int64_t i = 0; i < outer; ++i) {
        loop_(row.data(), strides, count);
        for (int k = 0; k < iterator_.ntensors(); ++k) row[k] += strides[iterator_.ntensors() + k];
      }
    };
    iterator_.for_each(rows, at::internal::GRAIN_SIZE);
    return true;
  }

  at::TensorIterator iterator_;  // it owns its tensors
  const Loop loop_;
};

// An element of `kBytes`.
template <size_t kBytes>
struct Bits {
  alignas(kBytes) char bytes[kBytes];
};

template <size_t kBytes>
void copy_row(char** data, const int64_t* strides, int64_t count) {
  if (strides[0] == kBytes && strides[1] == kBytes) {
    std::memcpy(data[0], data[1], count * kBytes);
    return;
  }
  for (int64_t i = 0; i < count; ++i) {
    std::memcpy(data[0] + i * strides[0], data[1] + i * strides[1], kBytes);
  }
}

template <size_t kBytes>
void choose_row(char** data, const int64_t* strides, int64_t count) {
  using Element = Bits<kBytes>;
  if (strides[0] == kBytes && strides[1] == 1 && strides[2] == kBytes && strides[3] == kBytes) {
    auto* const out = reinterpret_cast<Element*>(data[0]);
    const auto* const condition = reinterpret_cast<const bool*>(data[1]);
    const auto* const yes = reinterpret_cast<const Element*>(data[2]);
    const auto* const no = reinterpret_cast<const Element*>(data[3]);
    for (int64_t i = 0; i < count; ++i) out[i] = condition[i] ? yes[i] : no[i];
    return;
  }
  for (int64_t i = 0; i < count; ++i) {
    const bool first = *reinterpret_cast<const bool*>(data[1] + i * strides[1]);
    const char* const from = first ? data[2] + i * strides[2] : data[3] + i * strides[3];
    std::memcpy(data[0] + i * strides[0], from, kBytes);
  }
}

// The loop for elements of this size; null where none is.
MovingCall::Loop by_size(size_t bytes, std::array<MovingCall::Loop, 5> loops) {
  for (size_t i = 0; i < loops.size(); ++i) {
    if (bytes == size_t{1} << i) return loops[i];
  }
  return nullptr;
}

at::TensorIteratorConfig iterator_into(const at::Tensor& output) {
  at::TensorIteratorConfig config;
  config.check_all_same_dtype(false).resize_outputs(false).add_output(output);
  return config;
}

Preparation prepare_where(const c10::OperatorHandle& op, const Arguments& args,
                          const Outputs& outputs) {
  const at::Tensor condition = args[0].toTensor(), yes = args[1].toTensor(),
                   no = args[2].toTensor(), out = outputs.at(0);
  const auto loop = by_size(
      out.itemsize(), {choose_row<1>, choose_row<2>, choose_row<4>, choose_row<8>, choose_row<16>});
  if (condition.scalar_type() != at::kBool || yes.dtype() != out.dtype() ||
      no.dtype() != out.dtype() || loop == nullptr) {
    return {nullptr, kConverts};
  }
  auto iterator = iterator_into(out)
                      .add_const_input(condition)
                      .add_const_input(yes)
                      .add_const_input(no)
                      .build();
  return {std::make_unique<MovingCall>(op, std::move(iterator), loop)};
}

// copy_, and what copies into a fresh result.
Preparation prepare_copy(const c10::OperatorHandle& op, const at::Tensor& source,
                         const at::Tensor& target) {
  const auto loop = by_size(target.itemsize(),
                            {copy_row<1>, copy_row<2>, copy_row<4>, copy_row<8>, copy_row<16>});
  if (source.dtype() != target.dtype() || loop == nullptr) return {nullptr, kConverts};
  auto iterator = iterator_into(target).add_const_input(source).build();
  const c10::OperatorHandle kernels[] = {
      op, c10::Dispatcher::singleton().findSchemaOrThrow("aten::copy_", "")};
  return {std::make_unique<MovingCall>(kernels, std::move(iterator), loop)};
}

using Prepare = Preparation (*)(const c10::OperatorHandle&, const Arguments&, const Outputs&);
const std::unordered_map<std::string, Prepare> kPrepared{
    {"aten::relu_",
     [](const auto& op, const Arguments& args, const Outputs& outputs) {
       const auto out = c10::Dispatcher::singleton().findSchemaOrThrow("aten::clamp_min", "out");
       return prepare_structured(out, op, {args[0], at::Scalar(0)}, outputs);
     }},
    {"aten::where.self", &prepare_where},
    {"aten::copy_",
     [](const auto& op, const Arguments& args, const Outputs&) {
       return prepare_copy(op, args[1].toTensor(), args[0].toTensor());
     }},
    {"aten::clone",
     [](const auto& op, const Arguments& args, const Outputs& outputs) {
       return prepare_copy(op, args[0].toTensor(), outputs.at(0));
     }},
    {"aten::_to_copy",
     [](const auto& op, const Arguments& args, const Outputs& outputs) {
       return prepare_copy(op, args[0].toTensor(), outputs.at(0));
     }},
};

}  // namespace

PreparedCall::PreparedCall(c10::ArrayRef<c10::OperatorHandle> kernels) {
  for (const c10::OperatorHandle& op : kernels) {
    const auto& entry = operator_entry(op);
    registered_.push_back({&entry, entry.lookup(kCpuKernel)});
  }
}

bool PreparedCall::is_current() const {
  return std::all_of(registered_.begin(), registered_.end(), [](const Registered& one) {
    return one.entry->lookup(kCpuKernel)._equalsBoxedAndUnboxed(one.kernel);
  });
}

Preparation prepare_call(const c10::OperatorHandle& op, const c10::OperatorHandle& runs,
                         const std::optional<OutVariant>& out, const std::vector<c10::IValue>& args,
                         const std::vector<at::Tensor>& outputs) {
  const std::string name = c10::toString(op.operator_name());
  if (const auto found = kPrepared.find(name); found != kPrepared.end()) {
    if (!has_kernel_of_torch(op)) return {nullptr, kNotPrepared};
    return found->second(runs, args, outputs);
  }
  if (out) {
    std::vector<c10::IValue> all = args;
    all.insert(all.end(), out->more.begin(), out->more.end());
    return prepare_structured(out->op, runs, all, outputs);
  }
  if (!op.schema().is_mutable() || !has_kernel_of_torch(op)) return {nullptr, kNotPrepared};
  const auto in_place = find_out_form(op);
  if (!in_place || !has_kernel_of_torch(*in_place)) return {nullptr, kNotPrepared};
  return prepare_structured(*in_place, op, args, outputs);
}

}  // namespace bringup::torch_ext::graphs
