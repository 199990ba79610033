// Graphs and patterns that a library made, as plain Python: `bringup.passes.registry.native` builds
// them again through the dialect of the graph that is being rewritten.
#pragma once

#include <nanobind/nanobind.h>

#include "engine/pattern/pattern.h"
#include "engine_core.h"

namespace bringup::python {

// (dtype, shape, bytes)
nanobind::tuple constant_tuple(const en::ConstantData& data);

// (name, nodes, outputs); a node is (number, type, name, arguments, output count, data or None), a
// value ("value", node, index). Objects and symbols are those of `objects`.
nanobind::tuple exported_graph(const en::Graph& graph, GraphCore& objects);

// (name, graph, captured, captured names, constraints, choices, constant_values, attributes). Open
// arguments are ("any", ...), ("constant", ...) and ("list", ...) with the fields of their structs.
nanobind::tuple exported_pattern(const en::Pattern& pattern);

}  // namespace bringup::python
