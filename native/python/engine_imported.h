// Graphs and patterns of a library, built again through the dialect of the graph being rewritten:
// then they are bound, shaped, verified, dumped and matched as those of Python.
#pragma once

#include <nanobind/nanobind.h>

#include "engine/pattern/pattern.h"
#include "engine_core.h"

namespace bringup::python {

// (dtype, sizes, bytes)
nanobind::tuple constant_fields(const en::ConstantData& data);

// A bringup.ir.Graph by `host`, a LibraryHost; objects, symbols, outer values: `rewritten`'s.
nanobind::object imported_graph(const en::Graph& graph, GraphCore& rewritten,
                                nanobind::handle host);

// A bringup.passes.Pattern, which knows its values also as the library does.
nanobind::object imported_pattern(const en::Pattern& pattern, nanobind::handle host);

}  // namespace bringup::python
