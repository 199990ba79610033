// The nodes of a captured graph: what one replay does, step by step.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/kernel_table.h"
#include "runtime/launch_block.h"
#include "torch/graphs/pool.h"
#include "torch/ops/kernel_op.h"

namespace bringup::torch_ext::graphs {

// What the nodes of one running replay share.
struct Replay {
  ReplayTap tap;
  std::vector<c10::IValue> stack;
};

// A host argument that `update` may write.
using HostValue = c10::IValue;  // int, float, bool, int[] or float[]

class Node {
 public:
  Node(std::string op, std::string scope) : op_(std::move(op)), scope_(std::move(scope)) {}
  virtual ~Node() = default;
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;

  virtual void run(Replay& replay) = 0;
  // The first run, right after the capture: may settle how later ones are done.
  virtual void validate(Replay& replay) { run(replay); }

  // "kernel", "operator" or "constant".
  virtual const char* kind() const = 0;
  // How it keeps its results at fixed addresses, in a word; for people.
  virtual const char* method() const = 0;
  // The operator whose schema names the arguments; null when there is none.
  virtual const c10::FunctionSchema* schema() const { return nullptr; }
  // The value of schema argument `index` now, or none when it is not a host value that can be
  // updated.
  virtual std::optional<HostValue> host_value(size_t /*index*/) const { return std::nullopt; }
  // Writes a value of the same type. Only for an index that host_value() knows.
  virtual void set_host_value(size_t /*index*/, const HostValue& /*value*/) {}

  const std::string& op() const { return op_; }  // "aten::add.Tensor"
  const std::string& scope() const { return scope_; }

 private:
  std::string op_;
  std::string scope_;
};

// A call of a kernel from a launch block with fixed addresses: a plain C call on replay.
class KernelNode final : public Node {
 public:
  KernelNode(std::string op, std::string scope, const c10::OperatorHandle& handle,
             const KernelOp& kernel_op, std::shared_ptr<const runtime::Kernel> kernel,
             runtime::LaunchBlock block, std::vector<at::Tensor> kept);

  void run(Replay& replay) override;
  const char* kind() const override { return "kernel"; }
  const char* method() const override { return "launch block"; }
  const c10::FunctionSchema* schema() const override { return &handle_.schema(); }
  std::optional<HostValue> host_value(size_t index) const override;
  void set_host_value(size_t index, const HostValue& value) override;

 private:
  bringup_kernel_fn run_;
  void** args_;
  int32_t size_;
  const KernelOp* kernel_op_;
  runtime::LaunchBlock block_;
  c10::OperatorHandle handle_;
  std::shared_ptr<const runtime::Kernel> kernel_;
  std::vector<at::Tensor> kept_;  // owns the inputs that predate the capture
};

// A call of any other operator, below autograd.
class OperatorNode final : public Node {
 public:
  struct Output {
    at::Tensor tensor;
    void* address;  // of its storage
    bool fixed;     // an input's memory: nothing to bring there
  };
  struct Call {
    c10::OperatorHandle op;
    c10::DispatchKeySet keys;
    std::vector<c10::IValue> args;
    std::vector<Output> outputs;
    std::vector<Allocation> allocations;
    bool updatable;  // a handler declared arguments of it
  };

  OperatorNode(std::string op, std::string scope, Call call);

  void run(Replay& replay) override;
  void validate(Replay& replay) override;
  const char* kind() const override { return "operator"; }
  const char* method() const override;
  const c10::FunctionSchema* schema() const override { return &call_.op.schema(); }
  std::optional<HostValue> host_value(size_t index) const override;
  void set_host_value(size_t index, const HostValue& value) override;

 private:
  enum class Method : uint8_t { kOut, kAllocations, kCopy };

  void choose_method();
  void settle_outputs(const std::vector<c10::IValue>& results) const;

  Call call_;
  Method method_ = Method::kAllocations;
  std::optional<c10::OperatorHandle> out_op_;
};

// Puts data that came from Python during the capture back to where its readers look.
class ConstantNode final : public Node {
 public:
  // `content` and `target` are byte tensors of one size.
  ConstantNode(std::string scope, at::Tensor content, at::Tensor target)
      : Node("constant", std::move(scope)),
        content_(std::move(content)),
        target_(std::move(target)) {}

  void run(Replay& replay) override;
  const char* kind() const override { return "constant"; }
  const char* method() const override { return "copy"; }

 private:
  at::Tensor content_;
  at::Tensor target_;
};

}  // namespace bringup::torch_ext::graphs
