// A pattern of Python as the engine knows it.
#pragma once

#include <nanobind/nanobind.h>

#include <utility>

#include "engine/match/matcher.h"
#include "engine_core.h"

namespace bringup::python {

// What Python calls the kinds of arguments.
inline constexpr std::pair<const char*, uint8_t> kKindNames[] = {
    {"bool", en::AnyArgument::kBool},    {"int", en::AnyArgument::kInt},
    {"float", en::AnyArgument::kFloat},  {"str", en::AnyArgument::kString},
    {"none", en::AnyArgument::kNone},    {"list", en::AnyArgument::kList},
    {"tensor", en::AnyArgument::kTensor}};

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
