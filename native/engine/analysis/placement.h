// Whether nodes can be taken out of a graph, and where what replaces them may stand.
#pragma once

#include <algorithm>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "engine/analysis/alias_analysis.h"
#include "engine/graph/graph.h"

namespace bringup::engine {

// Nodes, for quick questions whether one is among them.
class NodeSet {
 public:
  explicit NodeSet(std::vector<NodeId> nodes) : nodes_(std::move(nodes)) {
    std::sort(nodes_.begin(), nodes_.end());
  }
  bool contains(NodeId node) const {
    return std::binary_search(nodes_.begin(), nodes_.end(), node);
  }
  std::span<const NodeId> all() const { return nodes_; }

 private:
  std::vector<NodeId> nodes_;
};

// The nodes of a graph that a replacement would take the place of.
struct ReplacedPart {
  std::vector<NodeId> nodes;     // in graph order; not empty
  std::vector<ValueId> inputs;   // what the replacement may read
  std::vector<ValueId> outputs;  // what it computes
};

// In front of which node a replacement stands, and which nodes must move there first.
struct Placement {
  NodeId before = kNoNode;
  std::vector<NodeId> hoist;
};

// Why there is no such place. The words are made on demand.
struct PlacementRefusal {
  enum class Why : uint8_t {
    kNoOperator,
    kImpure,
    kUsedOutside,    // output `index` of the node, by `other`
    kInputInside,    // the node computes an input
    kWritten,        // memory of the node's output, by `other`
    kWritesBetween,  // `other` writes what the node reads
    kOrder,          // `words`
  };
  Why why;
  NodeId node;  // in the way
  NodeId other = kNoNode;
  uint32_t index = 0;
  std::string words = {};

  // The reason without the node.
  std::string text(const Graph& graph) const;
};

// The questions in their order. A constant among the nodes stays for readers outside.

// Whether they are operators that only compute.
std::optional<PlacementRefusal> why_not_operators(const Graph& graph, const ReplacedPart& part);
// Whether what is used outside is an output, and no input is computed inside.
std::optional<PlacementRefusal> why_not_closed(const Graph& graph, const ReplacedPart& part);
// Whether the memory of no output is written.
std::optional<PlacementRefusal> why_not_unwritten(const Graph& graph, const ReplacedPart& part,
                                                  const AliasAnalysis& aliases);
// The place: behind all that is read, in front of all that read, with no write of what the nodes
// read in between. Control edges count as reads do.
std::variant<Placement, PlacementRefusal> stand(const Graph& graph, const ReplacedPart& part,
                                                const AliasAnalysis& aliases);

// All of them.
std::variant<Placement, PlacementRefusal> place(const Graph& graph, const ReplacedPart& part,
                                                const AliasAnalysis& aliases);

}  // namespace bringup::engine
