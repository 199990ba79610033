// Patterns, programs, matchers and the alias analysis of the engine for bringup.passes.
#pragma once

#include <nanobind/nanobind.h>

#include "engine/run/targets.h"
#include "engine_core.h"

namespace bringup::python {

// The program of a ProgramCore for one graph.
engine::PatternProgram program_for(nanobind::handle program, GraphCore& core);

// Where the bindings of a match are; nulled when another is looked for.
using FoundBindings = std::shared_ptr<const engine::Bindings*>;

// (PlacedMatchCore, nodes, inputs, outputs), None for an absent input; `owner` is kept alive.
nanobind::tuple python_match(GraphCore& core, const engine::Target& target, FoundBindings bound,
                             nanobind::object owner);

}  // namespace bringup::python
