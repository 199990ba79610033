// The gradients of parameters that a captured graph reads, makes or takes away: `.grad` may be set
// to None or to another tensor between replays, and is afterwards what the captured code leaves.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "torch/graphs/node.h"
#include "torch/graphs/tensor_placement.h"

namespace bringup::torch_ext::graphs {

// Every function needs the GIL.
class Gradients {
 public:
  // What the captured code does with the gradient that a parameter has before it.
  enum class Former {
    kIgnores,  // nothing, nor does it make another one
    kNeeds,    // it reads it, and depends on there being one
    kAddsTo,   // a backward comes first and adds to it: none is as good as zeros
    kDrops,    // another one, or None, takes its place before anything reads it
    kIsNone,   // there is none
  };
  // The parameter is not kept alive. `before` and `after`: its gradient before the captured code
  // and after it, undefined for None. `writes`: whether it is written in place. `needs_flag`:
  // whether it counts that the parameter requires a gradient.
  void add(const at::Tensor& parameter, std::string name, at::Tensor before, at::Tensor after,
           Former former, bool writes, bool needs_flag);

  bool empty() const { return rows_.empty(); }

  // A row whose gradient is not where the graph has it, and what it is.
  using Moved = std::vector<std::pair<size_t, at::Tensor>>;
  using Known = std::function<bool(const at::Tensor&)>;
  // Fills `moved`; returns what the graph cannot do with, in words. `known`: whether the graph
  // works in the tensor's memory.
  std::optional<std::string> change(const Known& known, Moved& moved);
  // Before a replay: brings these gradients to where the graph reads them.
  void bring(const Moved& moved) const;
  // After it: every parameter has the gradient that the captured code leaves it.
  void leave(const Moved& moved) const;

 private:
  struct Row {
    c10::weak_intrusive_ptr<c10::TensorImpl> parameter;
    std::string name;
    at::Tensor before;  // where the graph reads it; undefined when it does not
    at::Tensor after;
    std::optional<Placement> placement;  // of `before`, or else of `after`
    Former former;
    bool writes;
    bool needs_flag;
    bool requires_grad;
  };

  // What of a row is looked at first: a gradient where the graph has it and leaves it.
  struct Steady {
    const c10::TensorImpl* parameter;
    const c10::TensorImpl* gradient;  // null where it is never so
    bool ignores_gradient, needs_flag, requires_grad;
    bool compares_memory;  // of `after`, which nothing else watches

    bool holds() const noexcept;
    void prefetch() const noexcept;
  };
  static Steady steady_of(const Row& row);
  static std::string difference(Row& row, const at::Tensor& now, const Known& known);
  std::optional<std::string> overlap(const Moved& moved) const;

  std::vector<Row> rows_;
  std::vector<Steady> steady_;  // of each row
};

// Of each tensor: the first node that reads its memory, but for setting it to zero, and whether any
// node writes there.
std::vector<std::pair<std::optional<size_t>, bool>> uses_of(
    const std::vector<at::Tensor>& tensors, const std::vector<std::unique_ptr<Node>>& nodes);

}  // namespace bringup::torch_ext::graphs
