// Patterns, programs, matchers and the alias analysis of the engine for bringup.passes.
#pragma once

#include <nanobind/nanobind.h>

#include "engine/match/match.h"

namespace bringup::python {

// The match that a MatcherCore found last, for hooks of a library: a copy that stays as it is until
// the next one is looked for. To be asked for before the graph is edited.
const engine::Match& match_of(nanobind::handle matcher);

void bind_matching(nanobind::module_& module);

}  // namespace bringup::python
