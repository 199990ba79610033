// What a graph asks the program that made it: descriptions, data, facts of single calls.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "engine/graph/argument.h"
#include "engine/graph/tensor_desc.h"

namespace bringup::engine {

class Graph;

// Any thread may call; the engine holds no lock then, an implementation takes its own (the GIL).
class Host {
 public:
  virtual ~Host() = default;
  // What a value of this graph looks like; nothing when that is unknown or it is no tensor.
  virtual std::optional<TensorDesc> describe(const Graph& graph, ValueId value) = 0;
  // The data of a constant that passes may look into; nothing when they may not.
  virtual std::optional<ConstantData> constant(const Graph& graph, NodeId node) = 0;
  // Whether this call of a random operator draws numbers (a dropout of 0 does not).
  virtual bool draws_random(const Graph& graph, NodeId node) = 0;
  // Whether there is an opaque argument of this number.
  virtual bool has_object(const Graph&, uint32_t) { return true; }
  // What a node is called in the graph that is mirrored; kNoString: nothing there stands for it.
  virtual StringId name(const Graph&, NodeId) { return kNoString; }
  // An opaque argument in words.
  virtual std::string text(const Graph& graph, uint32_t object) = 0;
};

}  // namespace bringup::engine
