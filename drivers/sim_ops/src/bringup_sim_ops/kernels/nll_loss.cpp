// nll_loss of log-probabilities [rows, classes], [classes] or [batch, classes, height, width], and
// its gradient. T: self, I: target.
#include "rows.h"

namespace {

using namespace sim_ops;

constexpr int64_t kNone = 0, kMean = 1, kSum = 2;

struct Call {
  const DLTensor& self;
  const I* target;
  const T* weight;
  int64_t reduction, ignored;

  int64_t classes() const { return self.shape[self.ndim == 1 ? 0 : 1]; }
  // Targets of one image; one after the other in memory.
  int64_t places() const { return self.ndim == 4 ? self.shape[2] * self.shape[3] : 1; }
  int64_t rows() const { return self.ndim == 1 ? 1 : self.shape[0] * places(); }
  // Where row r has the number of class c.
  int64_t at(int64_t r, int64_t c) const {
    return (r / places() * classes() + c) * places() + r % places();
  }
  T weight_of(int64_t c) const { return weight != nullptr ? weight[c] : T(1); }
};

// What would read beside the tensors, or null. `targets` and `weight` as the kernel got them.
const char* refusal(const Call& call, const void* targets, const void* weight) {
  if (call.reduction < kNone || call.reduction > kSum) return "reduction is none of 0, 1, 2";
  if (!has_or_is_none(targets, call.rows())) return "there is not one target for each row";
  if (call.self.ndim == 4) {
    const DLTensor& target = bringup::tensor(targets);
    if (target.ndim != 3 || target.shape[1] != call.self.shape[2])
      return "the targets are no images of the size of the input";
  }
  return has_or_is_none(weight, call.classes()) ? nullptr
                                                : "there is not one weight for each class";
}

int32_t out_of_range(const bringup_ctx* ctx) {
  return bringup::fail(ctx, "a target is not the number of a class");
}

Call call_of(const DLTensor& self, void** args) {
  return {self, elements<I>(args[0]), args[1] != nullptr ? elements<T>(args[1]) : nullptr,
          bringup::scalar<int64_t>(args[2]), bringup::scalar<int64_t>(args[3])};
}

}  // namespace

// self, target, weight?, reduction, ignore_index, output, total_weight
BRINGUP_EXPORT int32_t nll_loss(void** args, int32_t, const bringup_ctx* ctx) {
  const Call call = call_of(bringup::tensor(args[0]), args + 1);
  if (const char* reason = refusal(call, args[1], args[2])) return bringup::fail(ctx, reason);
  const T* self = elements<T>(args[0]);
  const DLTensor& out = bringup::tensor(args[5]);
  T* const output = results<T>(args[5]);
  const bool each = call.reduction == kNone && call.self.ndim != 1;
  double loss = 0, weights = 0;
  for (int64_t r = 0; r < call.rows(); ++r) {
    const int64_t c = call.target[r];
    if (c == call.ignored) {
      if (each) output[place(out, r)] = 0;
      continue;
    }
    if (c < 0 || c >= call.classes()) return out_of_range(ctx);
    const T term = -self[call.at(r, c)] * call.weight_of(c);
    if (each) output[place(out, r)] = term;
    loss += term;
    weights += call.weight_of(c);
  }
  *results<T>(args[6]) = each ? T(0) : static_cast<T>(weights);
  if (!each) *output = static_cast<T>(call.reduction == kMean ? loss / weights : loss);
  return 0;
}

// grad_output, self, target, weight?, reduction, ignore_index, total_weight, grad_input
BRINGUP_EXPORT int32_t nll_loss_backward(void** args, int32_t, const bringup_ctx* ctx) {
  const Call call = call_of(bringup::tensor(args[1]), args + 2);
  if (const char* reason = refusal(call, args[2], args[3])) return bringup::fail(ctx, reason);
  const T* grad = elements<T>(args[0]);
  const DLTensor& out = bringup::tensor(args[7]);
  T* const grad_input = results<T>(args[7]);
  const bool each = call.reduction == kNone && call.self.ndim != 1;
  const bool fits = has_or_is_none(args[0], each ? call.rows() : 1) && has_or_is_none(args[6], 1);
  if (!fits) return bringup::fail(ctx, "grad_output or total_weight is not of the loss's shape");
  const T total = *elements<T>(args[6]);
  for (int64_t i = 0; i < call.rows() * call.classes(); ++i) grad_input[place(out, i)] = 0;
  for (int64_t r = 0; r < call.rows(); ++r) {
    const int64_t c = call.target[r];
    if (c == call.ignored) continue;
    if (c < 0 || c >= call.classes()) return out_of_range(ctx);
    const T scale = call.reduction == kMean ? T(1) / total : T(1);
    grad_input[place(out, call.at(r, c))] = -call.weight_of(c) * (each ? grad[r] : *grad) * scale;
  }
  return 0;
}
