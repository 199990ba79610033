// How nodes of a replacement become nodes of a graph of Python.
#pragma once

#include <vector>

#include "engine/graph/providers.h"
#include "engine_core.h"

namespace bringup::python {

// What new nodes take over from those they replace (`nodes`, in graph order), as a dict for
// Node.meta: stack traces joined, the modules of the last one, and the names of all as "replaces".
Ref inherited_metadata(GraphCore& core, std::span<const en::NodeId> nodes);

// Answers the rewriter that copies a replacement into `core`, with the GIL; throws Python's errors.
class Copier {
 public:
  // `replacement`: null for a graph of a library, which has no objects of Python.
  Copier(GraphCore& core, GraphCore* replacement) : core_(core), replacement_(replacement) {}

  en::NodeId copy(const en::CopiedNode& copied);
  void carry_over(const en::Argument& foreign, en::NodeId before, en::ArgumentList& items);
  bool can_copy_values() const;
  en::ValueId copy_of(en::ValueId value, en::NodeId before);
  std::optional<std::string> difference(en::ValueId old, en::ValueId now);
  void stays(en::ValueId old, en::ValueId now);
  void forget() { inherited_ = Ref(); }

 private:
  en::NodeId copy_constant(const en::CopiedNode& copied);
  Ref outputs_of(en::NodeId draft, const en::CopiedNode& copied);
  void take_metadata(en::NodeId node, const en::CopiedNode& copied);

  GraphCore& core_;
  GraphCore* replacement_;
  std::vector<en::NodeId> replaced_;  // whose metadata this is:
  Ref inherited_;
};

// How a replacement of Python becomes nodes; asked with the GIL, by the thread that edits.
en::Providers rewriting_providers(Copier& copier);

// Those of new nodes that are there and no constants.
std::vector<en::NodeId> operators_among(const en::Graph& graph, std::vector<en::NodeId> made);

}  // namespace bringup::python
