// What a captured graph does not hold and calls anew in every replay, between two pieces of it.
#pragma once

#include <c10/core/AutogradState.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <string>
#include <utility>
#include <vector>

#include "torch/graphs/node.h"

namespace bringup::torch_ext::graphs {

// What of a thread an operator may ask for: dispatch keys (autocast among them) and autograd's
// modes.
class ThreadModes {
 public:
  // Those of this thread, as a call sees them that the recorder makes.
  ThreadModes();
  // Runs `call` with them, without a cache of cast weights and with torch's own allocators.
  void run(const std::function<void()>& call) const;

 private:
  c10::impl::LocalDispatchKeySet keys_;
  c10::AutogradState autograd_;
};

// Calls an operator and waits for collectives among what it gives.
void call_eagerly(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                  std::vector<c10::IValue>* stack);

// Copies the elements, holes between them too, where both are laid out alike.
void copy_laid_out(const at::Tensor& target, const at::Tensor& source);

// What the thread that replays does itself.
class EagerCall : public Node {
 public:
  using Node::Node;

  // The graph has nodes of a driver's device: it is done between two graphs of the driver. `draws`:
  // whether any node draws random numbers.
  void set_between_graphs(bool draws) {
    is_between_graphs_ = true;
    waits_ |= draws;
  }

  bool is_eager() const override { return true; }
  bool is_between_graphs() const override { return is_between_graphs_; }
  bool waits_for_stream() const override { return waits_; }
  void run(Replay&) override { run_between_graphs(); }
  const char* kind() const override { return "eager"; }

 protected:
  bool waits_ = false;

 private:
  bool is_between_graphs_ = false;
};

// A call of an operator that `split_at` names. Its results are copied to where they were when it
// was captured.
class EagerNode final : public EagerCall {
 public:
  EagerNode(std::string op, std::string scope, OperatorNode::Call call, ThreadModes modes);

  void run_between_graphs() override;
  void visit_accesses(const AccessVisitor& visit) const override;
  bool updatable() const override { return true; }
  c10::ArrayRef<c10::IValue> arguments() const override { return call_.args; }
  void set_host_value(size_t index, const HostValue& value) override { call_.args[index] = value; }
  const char* method() const override { return "copy"; }
  const char* why_no_higher() const override { return "split_at: it runs eagerly"; }

 private:
  void take(const std::vector<c10::IValue>& results) const;

  OperatorNode::Call call_;
  const ThreadModes modes_;
  // Of generators among the arguments, which the graph does not keep.
  std::vector<std::pair<size_t, c10::weak_intrusive_ptr<c10::GeneratorImpl>>> generators_;
};

}  // namespace bringup::torch_ext::graphs
