#include "torch/graphs/table_call.h"

#include <ATen/Context.h>
#include <ATen/ops/arange.h>

#include <array>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <utility>

namespace bringup::torch_ext::graphs {
namespace {

constexpr int64_t kValues = 1 << 16;
constexpr int64_t kMostElements = 4096;  // of more, oneDNN's vectors are faster

using Table = std::array<uint16_t, kValues>;

#if defined(__x86_64__)
// What decides about rounding and denormal numbers: all but the flags.
uint32_t float_mode() { return __builtin_ia32_stmxcsr() & ~0x3fu; }
#else
uint32_t float_mode() { return 0; }
#endif

bool has_onednn_for_bfloat16() {
  static const bool has = [] {
    const auto op =
        c10::Dispatcher::singleton().findSchema({"mkldnn::_is_mkldnn_bf16_supported", ""});
    if (!op) return false;
    std::vector<c10::IValue> stack;
    op->callBoxed(&stack);
    return stack.at(0).toBool();
  }();
  return has;
}

// Kept for the process: a graph more needs no table more.
const Table& table_of(const std::string& approximate, uint32_t mode) {
  static std::mutex mutex;
  static std::map<std::pair<std::string, uint32_t>, Table> tables;
  const std::lock_guard lock(mutex);
  const auto known = tables.find({approximate, mode});
  if (known != tables.end()) return known->second;
  const at::Tensor values = at::arange(kValues, at::kInt).to(at::kShort).view(at::kBFloat16);
  std::vector<c10::IValue> stack{values, approximate};
  c10::Dispatcher::singleton().findSchemaOrThrow("aten::gelu", "").callBoxed(&stack);
  const at::Tensor results = stack.at(0).toTensor();
  Table& table = tables[{approximate, mode}];
  std::memcpy(table.data(), results.const_data_ptr(), sizeof(Table));
  return table;
}

bool is_nan(uint16_t bits) { return (bits & 0x7fff) > 0x7f80; }

// Which NaN it is depends on an element's place: then all are torch's.
class LookUp final : public PreparedCall {
 public:
  LookUp(const Operators& operators, at::Tensor source, at::Tensor target, const Table& table,
         std::unique_ptr<PreparedCall> kernel)
      : PreparedCall(operators),
        source_(std::move(source)),
        target_(std::move(target)),
        mode_(float_mode()),
        table_(table),
        kernel_(std::move(kernel)) {}

 private:
  bool run_kernel() override {
    if (float_mode() != mode_ || !at::globalContext().userEnabledMkldnn()) return kernel_->run();
    const auto* const from = static_cast<const uint16_t*>(source_.const_data_ptr());
    auto* const to = static_cast<uint16_t*>(target_.mutable_data_ptr());
    const int64_t count = source_.numel();
    bool any_nan = false;
    for (int64_t i = 0; i < count; ++i) {
      to[i] = table_[from[i]];
      any_nan |= is_nan(to[i]);
    }
    return !any_nan || kernel_->run();
  }

  at::Tensor source_, target_;
  uint32_t mode_;
  const Table& table_;
  std::unique_ptr<PreparedCall> kernel_;
};

// Whether torch leaves this gelu to oneDNN, which finds its kernel anew in every call.
bool is_faster(const std::vector<c10::IValue>& args, const std::vector<at::Tensor>& outputs) {
  const at::Tensor self = args[0].toTensor(), out = outputs.at(0);
  return self.scalar_type() == at::kBFloat16 && out.dtype() == self.dtype() && self.numel() > 1 &&
         self.numel() <= kMostElements && self.is_contiguous() && out.is_contiguous() &&
         at::globalContext().userEnabledMkldnn() && has_onednn_for_bfloat16();
}

}  // namespace

Preparation prepare_look_up(const Operators& operators, const std::vector<c10::IValue>& args,
                            const std::vector<at::Tensor>& outputs, Preparation kernel) {
  if (kernel.call == nullptr || !is_faster(args, outputs)) return kernel;
  const Table& table = table_of(args[1].toStringRef(), float_mode());
  return {std::make_unique<LookUp>(operators, args[0].toTensor(), outputs[0], table,
                                   std::move(kernel.call))};
}

}  // namespace bringup::torch_ext::graphs
