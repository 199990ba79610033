// The C API: replacing a part of a graph that a pass picked by hand.
#include "engine/capi/access.h"
#include "engine/capi/api.h"
#include "engine/capi/marshal.h"
#include "engine/rewrite/rewriter.h"

namespace bringup::engine {
namespace {

Boundary::Part part_of(const GraphEntry& entry, const bringup_boundary& given_boundary,
                       const AliasAnalysis& aliases) {
  Boundary boundary(*entry.graph);
  if (given_boundary.input_count > 0) given(given_boundary.inputs, "the inputs of the boundary");
  if (given_boundary.output_count > 0) given(given_boundary.outputs, "the outputs of the boundary");
  for (uint32_t index = 0; index < given_boundary.input_count; ++index) {
    boundary.add_input_value(index, living(entry, given_boundary.inputs[index]));
  }
  for (uint32_t index = 0; index < given_boundary.output_count; ++index) {
    boundary.add_output(index, living(entry, given_boundary.outputs[index]));
  }
  return boundary.resolve(aliases);
}

void boundary_nodes(GraphEntry& entry, const bringup_boundary* boundary,
                    const bringup_ir_node** nodes, uint32_t* count) {
  const AliasAnalysis aliases(*entry.graph);
  hand_out(entry, part_of(entry, whole(boundary, "boundary"), aliases).nodes, nodes, count);
}

// Edits that stay only after `commit`: of a transaction of its own, or of the open one.
class Edits {
 public:
  explicit Edits(Graph& graph)
      : graph_(graph), is_inner_(graph.in_transaction()), savepoint_(graph.savepoint()) {
    if (!is_inner_) graph.begin(kNoString);
  }
  ~Edits() {
    if (is_committed_) return;
    if (is_inner_) {
      graph_.rollback_to(savepoint_);
    } else {
      graph_.rollback();
    }
  }
  Edits& operator=(Edits&&) = delete;

  void commit() {
    if (!is_inner_) graph_.commit();
    is_committed_ = true;
  }

 private:
  Graph& graph_;
  const bool is_inner_;
  const Graph::Savepoint savepoint_;
  bool is_committed_ = false;
};

void check_replacement(const GraphEntry& entry, const GraphEntry& replacement) {
  if (replacement.lent || replacement.graph == entry.graph) {
    throw_error(ErrorCode::kInvalid, "a graph cannot replace a part of itself");
  }
  check_has_no_pieces(*replacement.graph, "the replacement");
}

void check_inputs(const Graph& replacement, size_t inputs) {
  const size_t own = replacement.inputs().size();
  if (own == inputs) return;
  throw_error(ErrorCode::kPass, "the replacement ", in_quotes(replacement.name()), " has ", own,
              " inputs, the boundary has ", inputs);
}

// What leaves a match alone is a failure where a part was picked by hand.
std::vector<NodeId> replaced(GraphEntry& entry, const Graph& replacement,
                             const Boundary::Part& part, AliasAnalysis& aliases) {
  try {
    return replace(*entry.graph, replacement, part, aliases, *entry.providers);
  } catch (const SkipPass& skip) {
    throw_error(ErrorCode::kPass, skip.what());
  }
}

void boundary_replace(GraphEntry& entry, const bringup_boundary* boundary,
                      bringup_ir_graph replacement, const bringup_ir_node** nodes,
                      uint32_t* count) {
  const auto made = graph_of(replacement);
  check_replacement(entry, *made);
  if (nodes != nullptr) given(count, "count");
  AliasAnalysis aliases(*entry.graph);
  const Boundary::Part part = part_of(entry, whole(boundary, "boundary"), aliases);
  check_inputs(*made->graph, part.inputs.size());
  Edits edits(*entry.graph);
  const std::vector<NodeId> added = replaced(entry, *made->graph, part, aliases);
  if (nodes != nullptr) hand_out(entry, added, nodes, count);
  take_graph(replacement);
  edits.commit();
}

}  // namespace

void fill_boundary_functions(bringup_engine_api& table) {
  table.boundary_nodes = api<boundary_nodes>;
  table.boundary_replace = api<boundary_replace>;
}

}  // namespace bringup::engine
