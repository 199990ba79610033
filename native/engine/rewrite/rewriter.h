// Putting a replacement where matched nodes were.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/analysis/alias_analysis.h"
#include "engine/graph/graph.h"
#include "engine/graph/providers.h"

namespace bringup::engine {

// Where a replacement goes.
struct Site {
  // What the replacement's inputs stand for, in order; kNoNode: nothing, which is read as None.
  std::span<const ValueId> inputs;
  std::span<const ValueId> outputs;  // what its outputs replace, in order
  std::span<const NodeId> nodes;     // what is taken out, in graph order; not empty
  NodeId before = kNoNode;           // the new nodes stand in front of it
};

// Copies `replacement` in front of `site.before`, lets its outputs stand for the site's, and takes
// out the site's nodes where nothing else reads them. An output of the replacement may be one of
// its inputs; a replacement may have no node at all. New nodes take over the attributes of what
// they replace, and their description comes from the providers. Returns the new nodes in order.
//
// EngineError (inside of a transaction, which the caller rolls back) when the numbers of inputs or
// outputs do not fit, an output differs in shape, dtype or device from what it replaces, the
// replacement writes what it did not make, or the replaced nodes contradict each other in an
// attribute.
std::vector<NodeId> replace(Graph& graph, const Graph& replacement, const Site& site,
                            AliasAnalysis& aliases, const Providers& providers);

// A part of a graph, given by the values that enter and leave it.
class Boundary {
 public:
  explicit Boundary(const Graph& graph) : graph_(graph) {}

  // Input `index` enters at these places: node, and number among all that it reads. EngineError
  // when it is taken, a place does not exist, or the places read different values.
  struct Place {
    NodeId node;
    uint32_t position;
  };
  void add_input(uint32_t index, std::span<const Place> places);
  // Input `index` is this value, wherever it enters. EngineError when the index is taken.
  void add_input_value(uint32_t index, ValueId value);
  // Output `index` is this value. EngineError when the index or the value is taken.
  void add_output(uint32_t index, ValueId value);

  // A boundary that can be replaced: what a Site is made of.
  struct Part {
    std::vector<ValueId> inputs;
    std::vector<ValueId> outputs;
    std::vector<NodeId> nodes;  // in graph order
    NodeId before = kNoNode;
    std::vector<NodeId> hoist;  // these must move in front of `before` first

    Site site() const { return {inputs, outputs, nodes, before}; }
  };
  // EngineError that says why when an index is missing, an inner value is used outside, a value
  // that is no input enters, or replacing the part would make a cycle or cross a write.
  Part resolve(const AliasAnalysis& aliases) const;

 private:
  std::vector<NodeId> inner_nodes() const;

  const Graph& graph_;
  std::vector<std::optional<ValueId>> inputs_;
  std::vector<std::optional<ValueId>> outputs_;
};

// Moves what the part needs earlier, and replaces it.
std::vector<NodeId> replace(Graph& graph, const Graph& replacement, const Boundary::Part& part,
                            AliasAnalysis& aliases, const Providers& providers);

}  // namespace bringup::engine
