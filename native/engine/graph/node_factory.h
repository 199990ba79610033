// Nodes that the engine makes: their names, descriptions and data.
#pragma once

#include "engine/graph/graph.h"
#include "engine/graph/providers.h"

namespace bringup::engine {

// The name of an operation without namespace and overload: "add" of "aten::add.Tensor".
StringId base_name_of(StringId type);

// The attribute that lists the names of the nodes that a node stands for.
StringId origin_attribute();

// A constant with these data, described by its host, or by value where that leaves it open.
NodeId insert_constant(Graph& graph, StringId base, ConstantData data, const Providers& providers);

// Describes the outputs of a node when there is a provider and everything it reads is described.
void infer_if_known(Graph& graph, NodeId node, const Providers& providers);

// Every reader of `old` but the node of `now` reads `now`. EngineError where they look different.
void exchange(Graph& graph, ValueId old, ValueId now, const Providers& providers);

}  // namespace bringup::engine
