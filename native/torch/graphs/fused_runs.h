// Level 2 of a replay: the work of consecutive nodes as one generated function. What it computes is
// described to the writer in Python, which gives functions and where they read and write.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "torch/graphs/node.h"

namespace bringup::torch_ext::graphs {

// Why a function does not do a node's work that was written.
constexpr const char* kOtherArguments =
    "an update gave arguments that the function was not written for";

constexpr const char* kOtherThanLower =
    "BRINGUP_GRAPH_VERIFY: level 2 gave other bits than lower levels. This is a defect of bringup: "
    "please report it, and capture with CapturedGraph(optimize=1)";

class FusedRuns {
 public:
  // Makes turns `first` to `last` of the outermost loop, any parts of which may run at once. Gives
  // 0, or 1 where bits of a result depend on how torch walks over it (NaN, the sign of a zero).
  using Function = int32_t (*)(char* const* addresses, const double* numbers, int64_t first,
                               int64_t last);

  // A number that an argument of an operator gives.
  struct Number {
    size_t node, argument;
    size_t position;  // among the function's
    double most;      // of its type: torch raises for a finite one beyond
  };
  struct Run {
    size_t first, count;  // nodes
    Function function;
    std::vector<char*> addresses;
    std::vector<double> numbers;
    std::vector<Number> updatable;
    int64_t turns, elements;
    std::vector<std::pair<char*, size_t>> written;  // memory
    // Of it, what nodes read before: put back where they have to run after all.
    std::vector<std::pair<char*, size_t>> overwritten;
  };

  // The arguments of every operator when functions were written.
  using Arguments = std::vector<std::vector<c10::IValue>>;

  // `reasons`: for each node why no function does its work; "" where one does. `nodes` outlive it.
  FusedRuns(const std::vector<std::unique_ptr<Node>>& nodes, std::vector<Run> runs,
            std::vector<std::string> reasons, const Arguments& arguments);

  // Once in a replay, before run(). False where other code has registered a kernel for one of the
  // operators since: nodes run from then on.
  bool begin();
  // First of all and behind an update: what its nodes are given now.
  void take_values();
  // Runs what begins at this node and gives the number of nodes, or 0: they have to run.
  // `run_nodes` does their work, for the first run and every so many-th, which are compared.
  size_t run(size_t node, Replay& replay, const std::function<void(size_t)>& run_node);

  // Which level of a replay runs the node where it is 2, and else why not.
  bool runs(size_t node) const;
  std::string why_not(size_t node) const;

 private:
  struct State {
    Run run;
    std::vector<const OperatorNode*> updatable;
    std::vector<c10::IValue> given;   // their arguments when it was written, without tensors
    uint64_t updates = ~uint64_t{0};  // of them that were looked at
    std::atomic<bool> enabled = true;
    int64_t count = 0;
  };

  bool fits(State& state) const;
  // False: what nodes read is as it was, and they have to run.
  static bool run_function(const Run& run, const bringup_ctx* context);
  bool run_compared(State& state, Replay& replay, const std::function<void(size_t)>& run_node);

  const std::vector<std::unique_ptr<Node>>& nodes_;
  std::deque<State> states_;
  std::vector<State*> of_node_;  // that a run begins with or goes through
  std::vector<std::string> reasons_;
  std::unique_ptr<PreparedCall> registered_;
  std::atomic<bool> gave_up_ = false;
};

// Whether a generated function may do the work of this node, as far as that shows here: a call of
// torch's own kernel for the CPU alone. Null: it may; else why not.
const char* why_not_fusable(const Node& node);

}  // namespace bringup::torch_ext::graphs
