// Arguments, values and nodes as reports show them.
#pragma once

#include <string>

#include "engine/graph/graph.h"

namespace bringup::engine {

std::string float_text(double number);           // the shortest that reads back; "1.0", "1e-06"
std::string string_text(std::string_view text);  // quoted
std::string dim_text(const Dim& dim);
std::string shape_text(std::span<const Dim> sizes);         // "[2, s0]"
std::string value_name(const Graph& graph, ValueId value);  // with ":index" if there are several
std::string value_text(const Graph& graph, ValueId value);  // "%y: float32[2, 3]"
// One item: "%name" for a value, "[a, b]" for a list.
std::string argument_text(const Graph& graph, ArgumentSpan item);
// "%y: float32[2, 3] = aten::addmm(self=%bias, ...) after %x"
std::string node_text(const Graph& graph, NodeId node);

}  // namespace bringup::engine
