// Calls of torch's kernels for the CPU that are prepared once: a TensorIterator, sizes and strides
// stay, and a run is the kernel alone.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <c10/util/SmallVector.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "torch/graphs/out_variant.h"

namespace bringup::torch_ext::graphs {

// Whose kernels do a call's work: what other code registers for one of them has to run.
using Operators = c10::SmallVector<c10::OperatorHandle, 2>;

// One call, with the same memory and numbers in every run.
class PreparedCall {
 public:
  explicit PreparedCall(const Operators& operators);
  virtual ~PreparedCall() = default;
  PreparedCall(const PreparedCall&) = delete;
  PreparedCall& operator=(const PreparedCall&) = delete;

  // False, and nothing ran: other code has registered a kernel for the operator since, or the
  // kernel cannot run on what was prepared.
  bool run() { return is_current() && run_kernel(); }
  // Other code's kernel for these keys has to run, too.
  void watch(const c10::OperatorHandle& op, c10::DispatchKeySet keys);

 protected:
  virtual bool run_kernel() = 0;

 private:
  struct Registered {
    const c10::impl::OperatorEntry* entry;
    c10::DispatchKeySet keys;
    c10::KernelFunction kernel;
  };

  bool is_current() const;

  c10::SmallVector<Registered, 2> registered_;
};

// "aten::add.Tensor". torch's own text of it goes through a stream, at ten times the cost.
inline std::string full_name(const c10::OperatorHandle& op) {
  const auto& [name, overload] = op.operator_name();
  return overload.empty() ? name : name + "." + overload;
}

// How to run a call, or why it cannot be prepared.
struct Preparation {
  std::unique_ptr<PreparedCall> call;
  const char* reason = "";
};

constexpr const char* kNotPrepared = "the operator has no prepared form";
constexpr const char* kOtherBits = "prepared it gave other bits than torch's dispatcher";
constexpr const char* kConverts = "an argument is converted, or a result is not written in place";

// `out`: what find_out_variant() says of `op`; `runs`: which of the two runs unprepared. `args`,
// `outputs`: at the addresses of every run.
Preparation prepare_call(const c10::OperatorHandle& op, const c10::OperatorHandle& runs,
                         const std::optional<OutVariant>& out, const std::vector<c10::IValue>& args,
                         const std::vector<at::Tensor>& outputs);

// By `out`, an operator's out form, if its kernel is structured.
Preparation prepare_structured(const c10::OperatorHandle& out, const Operators& operators,
                               const std::vector<c10::IValue>& args,
                               const std::vector<at::Tensor>& outputs);

// `aten::index.Tensor`.
Preparation prepare_index(const Operators& operators, const std::vector<c10::IValue>& args,
                          const std::vector<at::Tensor>& outputs);

}  // namespace bringup::torch_ext::graphs
