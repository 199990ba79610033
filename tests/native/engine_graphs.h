// Operators and small graphs for the tests of the engine.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "engine/graph/graph.h"

namespace engine_graphs {

namespace en = bringup::engine;

inline en::StringId text(std::string_view given) { return en::Strings::intern(given); }

// An operator with `parameters` parameters called a, b, c, ...
inline en::Operator facts_of(std::string_view type, int parameters, int32_t outputs = 1) {
  en::Operator facts;
  facts.type = text(type);
  facts.output_count = outputs;
  for (int i = 0; i < parameters; ++i) {
    facts.parameters.push_back({text(std::string(1, static_cast<char>('a' + i))), text("Tensor")});
  }
  return facts;
}

inline const en::Operator* op(std::string_view type, int parameters = 1, int32_t outputs = 1) {
  return en::Operators::intern(facts_of(type, parameters, outputs));
}

inline en::ArgumentList values(const std::vector<en::ValueId>& given) {
  en::ArgumentList list;
  for (const en::ValueId value : given) list.put(en::Argument::of_value(value));
  return list;
}

inline en::Call call(const en::ArgumentList& list) { return {list.items(), list.count()}; }

// A call of `facts` on `given` in front of `before` (the end by default), named after the operator.
inline en::NodeId add(en::Graph& graph, const en::Operator* facts,
                      const std::vector<en::ValueId>& given, en::NodeId before = en::kNoNode) {
  const std::string_view type = en::Strings::text(facts->type);
  const en::ArgumentList list = values(given);
  return graph.insert(facts, text(type.substr(type.rfind(':') + 1)), call(list),
                      static_cast<uint32_t>(facts->output_count),
                      before == en::kNoNode ? graph.last() : before);
}

// y = exp(relu(x)) * x
struct Small {
  en::Graph graph{"g"};
  en::NodeId x = graph.add_input(text("x"));
  en::NodeId relu = add(graph, op("t::relu"), {{x, 0}});
  en::NodeId exp = add(graph, op("t::exp"), {{relu, 0}});
  en::NodeId mul = add(graph, op("t::mul", 2), {{exp, 0}, {x, 0}});
  Small() { graph.set_outputs(call(values({{mul, 0}}))); }
};

inline std::string shown(const en::Graph& graph, en::ArgumentSpan run) {
  std::string all;
  for (const en::Argument& item : run) {
    all += " " + std::to_string(static_cast<int>(item.tag)) + "." + std::to_string(item.extent);
    if (item.tag == en::Tag::kValue) {
      all += "%" + std::string(graph.name_text(item.value.node)) + ":" +
             std::to_string(item.value.index);
    } else {
      all += "=" + std::to_string(item.integer);
    }
  }
  return all;
}

inline std::string names(const en::Graph& graph, const std::vector<en::NodeId>& nodes) {
  std::string all;
  for (const en::NodeId node : nodes) all += " " + std::string(graph.name_text(node));
  return all;
}

// Everything that can be read of a node, as text.
inline std::string shown(const en::Graph& graph, en::NodeId node) {
  std::string all(graph.name_text(node));
  all += " " + std::string(en::Strings::text(graph.type(node)));
  all += shown(graph, graph.arguments(node)) + " |" + shown(graph, graph.keywords(node));
  for (uint32_t i = 0; i < graph.output_count(node); ++i) {
    all += " >" + std::to_string(graph.use_count({node, i})) + "/" +
           std::to_string(graph.users({node, i}).size()) + ":" +
           names(graph, graph.sorted_users(en::ValueId{node, i})) + " m" +
           std::to_string(graph.meta({node, i}));
  }
  all += " after" + names(graph, graph.control_inputs(node)) + " until" +
         names(graph, graph.control_users(node));
  for (const en::Attribute& attribute : graph.attributes(node)) {
    all += " " + std::string(en::Strings::text(attribute.name)) + shown(graph, attribute.item);
  }
  for (const en::Subgraph& child : graph.subgraphs(node)) {
    all += " " + std::string(en::Strings::text(child.name)) + "{" +
           std::string(child.graph->name()) + "}";
  }
  return all;
}

// The whole graph, with its indices.
inline std::string shown(const en::Graph& graph) {
  std::string all;
  std::vector<en::StringId> types;
  for (en::NodeId node = graph.first(); node != en::kNoNode; node = graph.next(node)) {
    all += shown(graph, node) + "\n";
    const bool known = std::find(types.begin(), types.end(), graph.type(node)) != types.end();
    if (!known) types.push_back(graph.type(node));
  }
  for (const en::StringId type : types) {
    const std::span<const en::NodeId> found = graph.find(type);
    all += std::string(en::Strings::text(type)) + std::to_string(graph.count(type)) +
           names(graph, {found.begin(), found.end()}) + "\n";
  }
  return all;
}

}  // namespace engine_graphs
