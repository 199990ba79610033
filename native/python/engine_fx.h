// Reading a torch.fx graph into the engine's and repeating edits on it, through Python's C API.
#pragma once

#include <vector>

#include "python/engine_core.h"

namespace bringup::python {

// Mirrors the nodes of an FX graph. `reader` answers what only Python knows (bringup.compiler):
//   describe(fx_node) -> (Operator, slots or None)   of a target, asked once; slots: its schema
//   fold(fx_node, operator) -> (Operator, metas or None)   of a call with several outputs: the meta
//       of each when the node is only ever indexed, else what to take the whole call for
//   raise_mismatch(fx_node)   raises why the arguments do not match the schema
//   meta(fx_node)   the description of a value, asked on demand
// `inherited` are keys of fx_node.meta that `Node.meta` takes over, on demand.
void read_fx(GraphCore& core, PyObject* fx_graph, PyObject* node_type, PyObject* getitem,
             PyObject* reader, PyObject* inherited);

// Repeats edits of the mirror on the FX graph; refuses what FX cannot repeat before the first one.
// `writer` does what needs Python (bringup.compiler):
//   create(node, fx_before, arguments) -> fx_node   whose arguments are those of FX
//   move(node, fx_before)
//   rewire(node, old_arguments, old_keywords, arguments, keywords)   in any way; one value
//   exchanged
//       for another does not need it
//   value(value) -> fx_node   of a node with several outputs
void write_fx(GraphCore& core, const std::vector<en::Edit>& edits, PyObject* fx_graph,
              PyObject* writer);

}  // namespace bringup::python
