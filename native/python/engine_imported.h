// Graphs and patterns that a library made, built again through the dialect of the graph that is
// being rewritten: their operators are bound and shaped as any other, and they are verified, dumped
// and matched as those that a pass in Python makes.
#pragma once

#include <nanobind/nanobind.h>

#include "engine/pattern/pattern.h"
#include "engine_core.h"

namespace bringup::python {

// (dtype, sizes, bytes)
nanobind::tuple constant_fields(const en::ConstantData& data);

// A bringup.ir.Graph. `host` is a bringup.passes.run.library_host.LibraryHost; objects, symbols and
// outer values are those of `rewritten`.
nanobind::object imported_graph(const en::Graph& graph, GraphCore& rewritten,
                                nanobind::handle host);

// A bringup.passes.Pattern, which knows its values also as the library does.
nanobind::object imported_pattern(const en::Pattern& pattern, nanobind::handle host);

}  // namespace bringup::python
