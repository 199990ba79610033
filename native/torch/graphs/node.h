// The nodes of a captured graph: what one replay does, step by step.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <c10/util/SmallVector.h>

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bringup/driver.h"
#include "runtime/context.h"
#include "runtime/kernel_table.h"
#include "runtime/launch_block.h"
#include "runtime/values_code.h"
#include "torch/graphs/allocation_interceptors.h"
#include "torch/graphs/out_variant.h"
#include "torch/graphs/prepared_call.h"
#include "torch/graphs/random_numbers.h"
#include "torch/graphs/source_lines.h"
#include "torch/graphs/unboxed_call.h"
#include "torch/ops/kernel_record.h"

namespace bringup::torch_ext::graphs {

// What the nodes of one running replay share.
struct Replay {
  ReplayInterceptor interceptor;
  runtime::HostContext* context = nullptr;  // of the thread on which nodes run now
  std::vector<c10::IValue> stack;
  std::shared_ptr<Pool> pool;  // for what a first run learns
  std::vector<ReplayGenerator> generators;
  std::optional<size_t> jump;  // the node that comes next, when it is not the one behind
  // 0: every operator is called as torch's dispatcher calls it. 1: kernels of torch are called with
  // what was prepared once.
  int level = 0;
  // Every so many-th run of a node is compared with level 0; 0: none.
  int64_t verify = 0;
};

// A host argument that `update` may write.
using HostValue = c10::IValue;  // of a SlotType

// A tensor that a node reads or writes; `writes` says which.
using AccessVisitor = std::function<void(const at::Tensor& tensor, bool writes)>;

// One value to write before the next replay.
struct Change {
  size_t node;
  size_t argument;
  HostValue value;
};

using Changes = c10::SmallVector<Change, 4>;

// Of an operator, and kept for as long as a node needs it: the dispatcher's own goes with the
// operator's definition.
using SchemaPtr = std::shared_ptr<const c10::FunctionSchema>;

// A copy of bytes within a device.
struct DeviceCopy {
  void* target;
  const void* source;
  size_t bytes;
};

// What a call with these arguments reads and writes.
void visit_arguments(const c10::FunctionSchema& schema, const std::vector<c10::IValue>& args,
                     const AccessVisitor& visit);

class ForeignNode;
class SavedContent;

class Node {
 public:
  Node(std::string op, std::string scope, SchemaPtr schema)
      : op_(std::move(op)), scope_(std::move(scope)), schema_(std::move(schema)) {}
  virtual ~Node() = default;
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;

  virtual void run(Replay& replay) = 0;
  // The first run, right after the capture: may settle how later ones are done.
  virtual void validate(Replay& replay) { run(replay); }
  // Instead of run(): a node before it has failed.
  virtual void skip() noexcept {}
  // How the driver starts it; null for a node that runs on the host.
  virtual const bringup_launch* device_launch() const { return nullptr; }
  // The same for one with plain arguments.
  virtual const bringup_launch_values_args* device_values() const { return nullptr; }
  // The same for a copy; none for all other nodes.
  virtual std::optional<DeviceCopy> device_copy() const { return std::nullopt; }
  // Its kernel's call, which one launch can make together with others; null: it is made alone.
  virtual const PackedCall* listed_call() const { return nullptr; }
  // The same for a call that starts its work itself, which the driver captures.
  virtual const ForeignNode* captured_call() const { return nullptr; }
  // Whether the launching thread runs it, between two of the driver's graphs: a host entry, or an
  // eager call.
  virtual bool is_between_graphs() const { return false; }
  // Whether it is code that the graph does not hold: it may read and write whatever it can reach.
  virtual bool is_eager() const { return false; }
  // Gives the current stream its work.
  virtual void run_between_graphs() {}
  // Whether that is host code that needs what the stream has until here.
  virtual bool waits_for_stream() const { return false; }
  bool runs_on_device() const {
    return device_launch() != nullptr || device_values() != nullptr || device_copy().has_value() ||
           captured_call() != nullptr || is_between_graphs();
  }

  // On which of the driver's devices it runs, where it runs on one.
  void set_device(c10::DeviceIndex device) { device_index_ = device; }
  c10::DeviceIndex device_index() const { return device_index_; }

  // "kernel", "operator", "eager", "constant", "event" or "control".
  virtual const char* kind() const = 0;
  // How it keeps its results at fixed addresses, in a word; for people.
  virtual const char* method() const = 0;
  // Which level of Replay::level runs it, and why not a higher one.
  virtual int level() const { return 0; }
  virtual const char* why_no_higher() const { return "it is no call of torch's kernels"; }
  // Where it may lead: of a node of control flow.
  virtual std::optional<size_t> target() const { return std::nullopt; }
  // Whether `update` may write host arguments of it.
  virtual bool updatable() const { return false; }
  // The value of schema argument `index` now, or none when it is not a host value that can be
  // updated.
  std::optional<HostValue> host_value(size_t index) const;
  // The values of all schema arguments now; tensors on a device may be their views on the host.
  virtual c10::ArrayRef<c10::IValue> arguments() const { return {}; }
  // Raises what a call with such arguments in the place of `former` would raise. From any thread,
  // beside a run; one update at a time.
  virtual void check_arguments(const std::vector<c10::IValue>& /*arguments*/,
                               const std::vector<c10::IValue>& /*former*/) const {}
  // Writes a value of the argument's type. Only for an index that host_value() knows. A run reads
  // it after the next use_values(), since values may fit only all together.
  virtual void set_host_value(size_t /*index*/, const HostValue& /*value*/) {}
  virtual void use_values() {}

  // What a kernel takes of a device's generator, and where it does from the next run on.
  virtual std::optional<Draws> draws() const { return std::nullopt; }
  virtual void draw_from(RandomPoint /*point*/) {}

  // Every tensor that a run reads or writes; one that is changed in place is visited as both.
  virtual void visit_accesses(const AccessVisitor& visit) const = 0;

  const std::string& op() const { return op_; }  // "aten::add.Tensor"
  const std::string& scope() const { return scope_; }
  // Where it was called.
  void set_line(SourceLine line) { line_ = std::move(line); }
  const SourceLine& line() const { return line_; }
  // "aten::mm in layers.0, called at model.py:12 in forward".
  std::string description() const;
  // What names the arguments; null when there are none.
  const c10::FunctionSchema* schema() const { return schema_.get(); }

 private:
  std::string op_;
  std::string scope_;
  SourceLine line_;
  SchemaPtr schema_;
  c10::DeviceIndex device_index_ = -1;
};

// A call of a kernel of ours from a launch block with fixed addresses: a plain C call on replay, or
// a launch by the driver.
class KernelNode final : public Node {
 public:
  struct Call {
    SchemaPtr schema;
    const KernelRecord& record;
    std::vector<c10::IValue> inputs;  // schema order; they own what predates the capture
    std::vector<at::Tensor> outputs;  // fresh ones
    std::optional<Draws> draws;       // none: it draws no numbers
  };

  KernelNode(std::string op, std::string scope, Call call);

  // Makes it a launch of device code: the driver starts it, `run` does not. A host entry starts
  // its work itself.
  void start_on_device(c10::DeviceIndex device);

  void run(Replay& replay) override;
  const bringup_launch* device_launch() const override {
    return launch_.fn != nullptr ? &launch_ : nullptr;
  }
  const bringup_launch_values_args* device_values() const override {
    return values_launch_.fn != nullptr ? &values_launch_ : nullptr;
  }
  const PackedCall* listed_call() const override {
    return packed_.listed != nullptr ? &packed_ : nullptr;
  }
  bool is_between_graphs() const override {
    return device_ >= 0 && !launched_by_driver(*packed_.kernel);
  }
  void run_between_graphs() override;
  bool updatable() const override { return true; }
  const KernelRecord& record() const { return call_.record; }
  const std::vector<at::Tensor>& outputs() const { return call_.outputs; }
  const runtime::Kernel* kernel() const { return packed_.kernel.get(); }
  // What its kernel gets now.
  const runtime::LaunchBlock& block() const { return packed_.block; }
  std::optional<Draws> draws() const override { return call_.draws; }
  void draw_from(RandomPoint point) override;
  const char* kind() const override { return "kernel"; }
  const char* method() const override { return "launch block"; }
  void visit_accesses(const AccessVisitor& visit) const override;
  c10::ArrayRef<c10::IValue> arguments() const override { return call_.inputs; }
  void check_arguments(const std::vector<c10::IValue>& arguments,
                       const std::vector<c10::IValue>& former) const override;
  void set_host_value(size_t index, const HostValue& value) override {
    call_.inputs[index] = value;
  }
  void use_values() override;

 private:
  void take(runtime::LaunchBlock block);
  void lower_values(bringup_kernel_fn fn);

  bringup_kernel_fn run_ = nullptr;
  Call call_;
  PackedCall packed_;
  RandomPoint point_;           // of call_.draws
  std::vector<void*> args_;     // of the block; stays where it is
  std::vector<uint8_t> kinds_;  // likewise
  bringup_launch launch_{};
  runtime::ValuesLaunch values_;
  c10::DeviceIndex device_ = -1;
  bringup_launch_values_args values_launch_{};  // of values_
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
    // Raise where results are others than when it was captured.
    void check(const std::string& name, size_t number, const at::Tensor& result) const;
    void check_count(const std::string& name, size_t count) const;

    c10::OperatorHandle op;
    SchemaPtr schema;
    c10::DispatchKeySet keys;
    std::vector<c10::IValue> args;
    std::vector<Output> outputs;
    std::vector<Allocation> allocations;
    std::optional<OutVariant> out;     // the form that writes into given tensors
    bool updatable;                    // a handler declared arguments of it
    std::optional<NodeRandom> random;  // none: it draws no numbers, or the CPU's own
    // Recorded on a device: what it allocates on the host is not known yet.
    bool learn = false;
    // Of a branch that the run did not take: it has not run yet.
    bool from_shapes = false;
  };

  // Right behind the call.
  OperatorNode(std::string op, std::string scope, Call call);
  ~OperatorNode() override;

  void run(Replay& replay) override;
  // Compares what is prepared with the call that was captured, from the same memory, else with
  // level 0.
  void validate(Replay& replay) override;
  void visit_accesses(const AccessVisitor& visit) const override;
  bool updatable() const override { return call_.updatable; }
  const char* kind() const override { return "operator"; }
  const char* method() const override;
  int level() const override { return why_unprepared_.load() == nullptr ? 1 : 0; }
  const char* why_no_higher() const override {
    const char* reason = why_unprepared_.load();
    return reason == nullptr ? "" : reason;
  }
  void set_host_value(size_t index, const HostValue& value) override {
    call_.args[index] = value;
    ++updates_;
  }
  // How many values updates have written.
  uint64_t updates() const { return updates_; }
  // Lets go of tensors that an update has taken the place of; the next run prepares anew.
  void use_values() override {
    prepared_.reset();
    has_new_values_ = true;
  }
  c10::ArrayRef<c10::IValue> arguments() const override { return call_.args; }
  const Call& call() const { return call_; }
  void check_arguments(const std::vector<c10::IValue>& arguments,
                       const std::vector<c10::IValue>& former) const override;

 private:
  enum class Method : uint8_t { kOut, kAllocations, kCopy };

  void choose_method();
  void settle(Replay& replay);  // the first run
  bool out_fits(Replay& replay) const;
  // On the stack: what the operator takes; what its out form takes before its results.
  void push_arguments(Replay& replay) const;
  void push_out_arguments(Replay& replay) const;
  void choose_unboxed();
  void prepare();
  void unprepare(const char* reason);
  void run_verified(Replay& replay);
  c10::SmallVector<at::Tensor, 2> results() const;
  void run_unprepared(Replay& replay);
  // Whether the operator allocated just what is recorded.
  bool run_functional(Replay& replay) const;
  // Calls an overload of the operator with what is on the stack.
  void redispatch(const c10::OperatorHandle& op, Replay& replay) const;
  void learn_allocations(Replay& replay);
  void settle_outputs(const std::vector<c10::IValue>& results) const;
  bool is_unread(size_t index, const std::vector<c10::IValue>& arguments) const;

  Call call_;
  uint64_t updates_ = 0;
  mutable std::vector<std::optional<bool>> unread_;  // of arguments, once asked
  Method method_ = Method::kAllocations;
  std::unique_ptr<const SavedContent> captured_;  // of the results, until the first run
  std::unique_ptr<PreparedCall> prepared_;
  // Why it runs at level 0, else null. Read from any thread.
  std::atomic<const char*> why_unprepared_;
  bool has_new_values_ = false;
  int64_t runs_ = 0;                      // where some are verified
  std::unique_ptr<UnboxedCall> unboxed_;  // of the out form, where it can be called so
};

// A copy_ or clone of dense bytes within a device, which the driver makes. No update writes it.
class DeviceCopyNode final : public Node {
 public:
  DeviceCopyNode(std::string op, std::string scope, SchemaPtr schema, at::Tensor source,
                 at::Tensor target)
      : Node(std::move(op), std::move(scope), std::move(schema)),
        source_(std::move(source)),
        target_(std::move(target)) {}

  void run(Replay& replay) override;
  const at::Tensor& source() const { return source_; }
  const at::Tensor& copy() const { return target_; }
  std::optional<DeviceCopy> device_copy() const override;
  void visit_accesses(const AccessVisitor& visit) const override {
    visit(source_, false);
    visit(target_, true);
  }
  const char* kind() const override { return "operator"; }
  const char* method() const override { return "device copy"; }

 private:
  at::Tensor source_;
  at::Tensor target_;
};

// Puts data that came from Python during the capture back to where its readers look.
class ConstantNode final : public Node {
 public:
  // `content` and `target` are byte tensors of one size.
  ConstantNode(std::string scope, at::Tensor content, at::Tensor target)
      : Node("constant", std::move(scope), nullptr),
        content_(std::move(content)),
        target_(std::move(target)) {}

  void run(Replay& replay) override;
  void visit_accesses(const AccessVisitor& visit) const override { visit(target_, true); }
  const at::Tensor& content() const { return content_; }
  const at::Tensor& place() const { return target_; }
  const char* kind() const override { return "constant"; }
  const char* method() const override { return "copy"; }

 private:
  at::Tensor content_;
  at::Tensor target_;
};

}  // namespace bringup::torch_ext::graphs
