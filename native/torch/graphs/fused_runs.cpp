#include "torch/graphs/fused_runs.h"

#include <ATen/TensorIterator.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <optional>
#include <unordered_set>
#include <utility>

#include "torch/graphs/values.h"

namespace bringup::torch_ext::graphs {
namespace {

// Nothing to run: whether the kernels of operators are those that were there.
class Registered final : public PreparedCall {
 public:
  Registered() : PreparedCall(Operators{}) {}

 private:
  bool run_kernel() override { return true; }
};

// The content of memory, to compare or put back.
class Content {
 public:
  explicit Content(const std::vector<std::pair<char*, size_t>>& memory) : memory_(memory) {
    for (const auto& [data, bytes] : memory_) bytes_.insert(bytes_.end(), data, data + bytes);
  }

  void put_back() const {
    each([](char* now, const char* then, size_t bytes) { std::memcpy(now, then, bytes); });
  }
  bool is_there() const {
    bool same = true;
    each([&](const char* now, const char* then, size_t bytes) {
      same = same && std::memcmp(now, then, bytes) == 0;
    });
    return same;
  }

 private:
  template <class Fn>
  void each(Fn&& fn) const {
    const char* then = bytes_.data();
    for (const auto& [data, bytes] : memory_) {
      fn(data, then, bytes);
      then += bytes;
    }
  }

  const std::vector<std::pair<char*, size_t>>& memory_;
  std::vector<char> bytes_;
};

// A value to compare with others in its place: of a tensor, whose layout is the slot's, where it
// is.
c10::IValue kept(const c10::IValue& value) {
  if (!value.isTensor() || !value.toTensor().defined()) return value;
  return reinterpret_cast<int64_t>(value.toTensor().const_data_ptr());
}

const OperatorNode& operator_at(const std::vector<std::unique_ptr<Node>>& nodes, size_t position) {
  const auto* node = dynamic_cast<const OperatorNode*>(nodes.at(position).get());
  TORCH_CHECK(node != nullptr, "node ", position, " is no operator");
  return *node;
}

}  // namespace

const char* why_not_fusable(const Node& node) {
  const auto* call = dynamic_cast<const OperatorNode*>(&node);
  if (call == nullptr) return node.why_no_higher();
  if (call->call().random) return "it draws random numbers";
  // Where a result is given its options, which kernel runs is asked for first.
  if (call->call().keys.remove(c10::DispatchKey::BackendSelect) != kCpuKernel ||
      any_tensor(call->call().args, is_lazy)) {
    return "more than a kernel of the cpu runs";
  }
  if (!has_kernel_of_torch(call->call().op)) return "the operator has another kernel than torch's";
  return nullptr;
}

FusedRuns::FusedRuns(const std::vector<std::unique_ptr<Node>>& nodes, std::vector<Run> runs,
                     std::vector<std::string> reasons, const Arguments& arguments)
    : nodes_(nodes), of_node_(nodes.size()), reasons_(std::move(reasons)) {
  registered_ = std::make_unique<Registered>();
  std::vector<std::pair<c10::OperatorHandle, c10::DispatchKeySet>> watched;
  const auto add = [&](const c10::OperatorHandle& op, c10::DispatchKeySet keys) {
    const std::pair one(op, keys);
    if (std::ranges::find(watched, one) != watched.end()) return;
    watched.push_back(one);
    registered_->watch(op, keys);
  };
  for (Run& run : runs) {
    State& state = states_.emplace_back();
    state.run = std::move(run);
    for (size_t i = state.run.first; i < state.run.first + state.run.count; ++i) {
      const OperatorNode& node = operator_at(nodes_, i);
      const OperatorNode::Call& call = node.call();
      add(call.op, call.keys);
      add(call.op, kCpuKernel);
      if (call.out) add(call.out->op, kCpuKernel);
      of_node_.at(i) = &state;
      if (!call.updatable) continue;
      state.updatable.push_back(&node);
      for (const c10::IValue& value : arguments.at(i)) state.given.push_back(kept(value));
    }
  }
  // What copies and conversions call.
  add(c10::Dispatcher::singleton().findSchemaOrThrow("aten::copy_", ""), kCpuKernel);
}

bool FusedRuns::begin() {
  if (C10_UNLIKELY(gave_up_.load(std::memory_order_relaxed))) return false;
  if (C10_LIKELY(registered_->run())) return true;
  gave_up_ = true;
  return false;
}

void FusedRuns::take_values() {
  for (State& state : states_) {
    uint64_t updates = 0;
    for (const OperatorNode* node : state.updatable) updates += node->updates();
    if (std::exchange(state.updates, updates) != updates) state.enabled = fits(state);
  }
}

// Numbers may be others, as long as torch takes them as they are; all else is as it was.
bool FusedRuns::fits(State& state) const {
  size_t next = 0;
  for (size_t i = state.run.first; i < state.run.first + state.run.count; ++i) {
    const OperatorNode::Call& call = operator_at(nodes_, i).call();
    if (!call.updatable) continue;
    for (size_t k = 0; k < call.args.size(); ++k) {
      const c10::IValue& now = call.args[k];
      const c10::IValue& given = state.given[next++];
      const auto number = std::ranges::find_if(state.run.updatable, [&](const Number& one) {
        return one.node == i && one.argument == k;
      });
      if (number == state.run.updatable.end()) {
        if (!same(kept(now), given)) return false;
        continue;
      }
      if (now.tagKind() != given.tagKind()) return false;
      const double value = now.isInt() ? static_cast<double>(now.toInt()) : now.toDouble();
      const bool exact = !now.isInt() || std::abs(value) <= 9007199254740992.0;  // 2^53
      if (std::isnan(value) || !exact) return false;
      if (std::isfinite(value) && std::abs(value) > number->most) return false;
      state.run.numbers.at(number->position) = value;
    }
  }
  return true;
}

size_t FusedRuns::run(size_t node, Replay& replay, const std::function<void(size_t)>& run_node) {
  State* const state = of_node_[node];
  if (state == nullptr || state->run.first != node || !state->enabled) return 0;
  const int64_t count = state->count++;
  const bool compares = count == 0 || (replay.verify != 0 && count % replay.verify == 0);
  const Run& run = state->run;
  if (C10_UNLIKELY(compares)) {
    if (run_compared(*state, replay, run_node)) return run.count;
    state->count = count;  // nothing was compared
    return 0;
  }
  return run_function(run, replay.context->get()) ? run.count : 0;
}

bool FusedRuns::run_function(const Run& run, const bringup_ctx* context) {
  std::optional<Content> before;
  if (C10_UNLIKELY(!run.overwritten.empty())) before.emplace(run.overwritten);
  struct Parts {
    const Run& run;
    std::atomic<bool> unsure = false;
  } parts{run};
  const auto make = [](int64_t first, int64_t last, void* user) {
    auto& [run, unsure] = *static_cast<Parts*>(user);
    if (run.function(run.addresses.data(), run.numbers.data(), first, last) != 0) unsure = true;
  };
  if (C10_LIKELY(run.elements <= at::internal::GRAIN_SIZE)) {
    make(0, run.turns, &parts);
  } else {
    const int64_t grain = at::internal::GRAIN_SIZE * run.turns / run.elements;
    context->parallel_for(context, run.turns, std::max<int64_t>(grain, 1), make, &parts);
  }
  if (C10_UNLIKELY(parts.unsure) && before) before->put_back();
  return !parts.unsure;
}

// What nodes give stays, which is right in any case. False: they have to run.
bool FusedRuns::run_compared(State& state, Replay& replay,
                             const std::function<void(size_t)>& run_node) {
  const Run& run = state.run;
  const Content before(run.written);
  if (!run_function(run, replay.context->get())) return false;
  const Content fused(run.written);
  before.put_back();
  const int64_t verify = std::exchange(replay.verify, replay.verify != 0 ? 1 : 0);
  for (size_t i = run.first; i < run.first + run.count; ++i) run_node(i);
  replay.verify = verify;
  if (fused.is_there()) return true;
  TORCH_CHECK(verify == 0, kOtherThanLower);
  gave_up_ = true;
  TORCH_WARN_ONCE(
      "a generated function gave other bits than torch in its first replay, and is not used: level "
      "1 goes on. This is a defect of bringup, please report it with torch.__config__.show()");
  return true;
}

bool FusedRuns::runs(size_t node) const {
  return of_node_.at(node) != nullptr && of_node_[node]->enabled && !gave_up_;
}

std::string FusedRuns::why_not(size_t node) const {
  if (of_node_.at(node) == nullptr) return reasons_.at(node);
  if (gave_up_) return "a kernel was replaced, or the function gave other bits";
  return kOtherArguments;
}

}  // namespace bringup::torch_ext::graphs
