// What the engine asks its host about operators. A host that cannot answer leaves a provider empty.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/graph/argument.h"

namespace bringup::engine {

class Graph;
struct Call;
struct ConstantData;
struct Operator;
struct TensorDesc;

// Why a value of description `now` cannot stand where one of `old` did: shape, dtype or device.
std::optional<std::string> difference_of(const TensorDesc& old, const TensorDesc& now);

// One kind of question: its name, for the error when it has no answer, and the answer.
template <class Signature>
class Provider;

template <class Result, class... Arguments>
class Provider<Result(Arguments...)> {
 public:
  explicit Provider(const char* name) : name_(name) {}

  Provider& operator=(std::function<Result(Arguments...)> answer) {
    answer_ = std::move(answer);
    return *this;
  }
  explicit operator bool() const { return static_cast<bool>(answer_); }
  // EngineError(kNoProvider) naming the provider when there is none.
  Result operator()(Arguments... arguments) const;

 private:
  const char* name_;
  std::function<Result(Arguments...)> answer_;
};

[[noreturn]] void refuse_missing_provider(const char* name);

template <class Result, class... Arguments>
Result Provider<Result(Arguments...)>::operator()(Arguments... arguments) const {
  if (!answer_) refuse_missing_provider(name_);
  return answer_(std::forward<Arguments>(arguments)...);
}

// A call or constant of a replacement, as it will be in the graph that is rewritten.
struct CopiedNode {
  const Graph& replacement;
  NodeId original;
  const Operator* op;
  const Call& call;
  uint32_t outputs;  // that it has in the replacement
  NodeId before;
  std::span<const NodeId> replaced;
  ValueId stands_for;  // what its only output will stand for; its node is kNoNode where nothing
};

// Answers are given on the thread that asks, which is the one that runs the session.
struct Providers {
  // The overload of a call in `graph`, its arguments filled in (in place). EngineError(kSchema).
  Provider<const Operator*(const Graph& graph, StringId type, ArgumentList& arguments)> schema{
      "schema"};
  // Describes every output of a node anew; EngineError when the operator refuses its inputs.
  Provider<void(Graph& graph, NodeId node)> infer_shape{"shape inference"};
  // Why the target cannot execute the node; nullopt when it can.
  Provider<std::optional<std::string>(const Graph& graph, NodeId node)> supports{"node support"};
  // The outputs of a node whose inputs are all constants.
  Provider<std::vector<ConstantData>(const Graph& graph, NodeId node)> evaluate{"evaluation"};

  // What follows a host need not give.

  // Whether graphs that hooks make stay unchecked until they take their place.
  bool only_rewritten = false;

  // Makes a node from one that is copied: its outputs' forms, and what the host knows about it.
  std::function<NodeId(Graph& graph, const CopiedNode& copied)> copy;
  // Puts what stands in `graph` for an opaque object or a symbolic size of a replacement.
  std::function<void(Graph& graph, const Argument& foreign, NodeId before, ArgumentList& items)>
      carry_over;
  // A new value in front of `before` with the elements of `value` and memory of its own.
  std::function<ValueId(Graph& graph, ValueId value, NodeId before)> copy_of;
  // Hears of a value that stays, because another node reads it, though `now` stands for it.
  std::function<void(Graph& graph, ValueId old, ValueId now)> stays;
  // Completes a constant that a pass made: the host's own payload and description of it.
  std::function<void(Graph& graph, NodeId node, const ConstantData& data)> constant_made;
  // Why `now` cannot stand where `old` did; by default their descriptions are compared.
  std::function<std::optional<std::string>(const Graph& graph, ValueId old, ValueId now)>
      difference;
  // Checks the graph after a pass that changed it, within its transaction.
  std::function<void(Graph& graph)> settle;
};

}  // namespace bringup::engine
