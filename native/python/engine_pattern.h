// A pattern of Python as the engine knows it.
#pragma once

#include <nanobind/nanobind.h>

#include <utility>

#include "engine/pattern/pattern.h"
#include "engine_core.h"

namespace bringup::python {

struct PatternCore {
  std::shared_ptr<en::Pattern> pattern;
  std::vector<GraphCore*> graphs;  // of this pattern and of those in its lists; kept by `pattern`
};

// The members of a bringup.passes.Pattern, which says in Python what they mean.
PatternCore make_pattern(GraphCore& core, std::string_view name, bool constant_values,
                         bool attributes, nanobind::handle open, nanobind::handle constraints,
                         nanobind::handle choices, nanobind::handle captured,
                         nanobind::handle captured_names, nanobind::handle library_values);

}  // namespace bringup::python
