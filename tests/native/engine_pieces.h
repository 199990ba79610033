// Passes that look for one pattern, and the pieces of patterns, through the C API.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "engine_api.h"

namespace engine_pieces {

using namespace engine_api;

using Build = std::function<bringup_ir_value(bringup_ir_graph)>;
using See = std::function<void(bringup_match, bringup_ir_graph)>;

// A pass that looks for one pattern and calls `see` for each match; it replaces nothing.
struct Finder {
  Build build;
  See see = [](bringup_match, bringup_ir_graph) {};
  std::function<void(bringup_ir_pattern)> adjust = [](bringup_ir_pattern) {};
};

inline int32_t look_for(void* instance, bringup_pass_context context) {
  auto& finder = *static_cast<Finder*>(instance);
  bringup_ir_graph graph = 0;
  bringup_ir_pattern pattern = 0;
  api().graph_create("wanted", &graph);
  returns(graph, {finder.build(graph)});
  const int32_t status = api().pattern_create(graph, "wanted", &pattern);
  if (status != BRINGUP_ENGINE_OK) return status;
  finder.adjust(pattern);
  return api().add_pattern(context, pattern);
}

inline int32_t show(void* instance, bringup_match match, bringup_pass_context, int32_t* met) {
  bringup_ir_graph graph = 0;
  CHECK_EQ(api().match_graph(match, &graph), BRINGUP_ENGINE_OK);
  static_cast<Finder*>(instance)->see(match, graph);
  return *met = 0, BRINGUP_ENGINE_OK;
}

inline int32_t never(void*, bringup_match, bringup_pass_context, bringup_ir_graph*) { return 1; }

struct Found {
  uint64_t count = 0;
  std::string near_miss, failure;
};

inline Found find(Finder finder, bringup_ir_graph graph) {
  bringup_pass_definition definition{};
  definition.name = "Finds";
  definition.kind = BRINGUP_PASS_PATTERN;
  definition.stage = BRINGUP_AFTER_INFER_SHAPE;
  definition.user = &finder;
  definition.patterns = look_for;
  definition.meet_requirements = show;
  definition.replacement = never;
  const Registered registered(definition);
  const Ran ran(graph);
  Found found;
  found.failure = ran.failure;
  if (!ran.results.empty()) {
    found.count = ran.results[0].refused;
    found.near_miss = ran.results[0].near_miss;
  }
  return found;
}

inline bringup_argument float_argument(double number) {
  bringup_argument argument{BRINGUP_ARGUMENT_FLOAT, 0, {}};
  argument.of.number = number;
  return argument;
}

inline bringup_argument list_argument(const std::vector<bringup_argument>& items) {
  bringup_argument argument{BRINGUP_ARGUMENT_LIST, static_cast<uint32_t>(items.size()), {}};
  argument.of.items = items.data();
  return argument;
}

inline bringup_ir_value call(bringup_ir_graph graph, const char* type,
                             const std::vector<bringup_argument>& arguments) {
  bringup_ir_node node = BRINGUP_NO_NODE;
  CHECK_EQ(api().add_node(graph, type, arguments.data(), static_cast<uint32_t>(arguments.size()), 1,
                          BRINGUP_NO_NODE, &node),
           BRINGUP_ENGINE_OK);
  return {node, 0};
}

inline bringup_argument any(bringup_ir_graph graph, bringup_any_piece piece) {
  piece.struct_size = sizeof(piece);
  bringup_argument argument{};
  CHECK_EQ(api().pattern_any(graph, &piece, &argument), BRINGUP_ENGINE_OK);
  return argument;
}

inline bringup_argument constant(bringup_ir_graph graph, bringup_constant_piece piece) {
  piece.struct_size = sizeof(piece);
  bringup_argument argument{};
  CHECK_EQ(api().pattern_constant(graph, &piece, &argument), BRINGUP_ENGINE_OK);
  return argument;
}

inline bringup_argument list(bringup_ir_graph graph, const char* name, bringup_ir_pattern each = 0,
                             uint32_t at_least = 0) {
  bringup_list_piece piece{};
  piece.struct_size = sizeof(piece);
  piece.name = name;
  piece.each = each;
  piece.at_least = at_least;
  bringup_argument argument{};
  CHECK_EQ(api().pattern_list(graph, &piece, &argument), BRINGUP_ENGINE_OK);
  return argument;
}

inline void where(bringup_ir_graph graph, bringup_ir_value value, bringup_tensor_form form) {
  form.struct_size = sizeof(form);
  CHECK_EQ(api().pattern_where(graph, value, &form), BRINGUP_ENGINE_OK);
}

inline bringup_ir_value float_input(bringup_ir_graph graph, const char* name,
                                    const std::vector<int64_t>& shape) {
  bringup_tensor_desc desc{};
  desc.struct_size = sizeof(desc);
  desc.rank = static_cast<int32_t>(shape.size());
  desc.shape = shape.data();
  desc.dtype = "float32";
  desc.device = "npu:1";
  bringup_ir_value value{};
  CHECK_EQ(api().add_input(graph, name, &desc, &value), BRINGUP_ENGINE_OK);
  return value;
}

inline bringup_ir_value float_constant(bringup_ir_graph graph, const std::vector<float>& elements) {
  const int64_t shape[] = {static_cast<int64_t>(elements.size())};
  bringup_constant constant{};
  constant.struct_size = sizeof(constant);
  constant.rank = 1;
  constant.shape = shape;
  constant.dtype = "float32";
  constant.data = elements.data();
  constant.bytes = elements.size() * sizeof(float);
  bringup_ir_value value{};
  CHECK_EQ(api().add_constant(graph, "c", &constant, &value), BRINGUP_ENGINE_OK);
  return value;
}

inline std::string name_of(bringup_ir_graph graph, bringup_ir_value value) {
  const char* name = "";
  CHECK_EQ(api().node_name(graph, value.node, &name), BRINGUP_ENGINE_OK);
  return name;
}

inline bringup_argument named(bringup_match match, const char* name) {
  bringup_argument argument{};
  CHECK_EQ(api().match_named(match, name, &argument), BRINGUP_ENGINE_OK);
  return argument;
}

// A graph with input x; released at the end.
struct Graph {
  bringup_ir_graph handle = 0;
  bringup_ir_value x{};
  Graph() {
    api().graph_create("g", &handle);
    x = input(handle, "x");
  }
  ~Graph() { api().graph_release(handle); }
  bringup_argument value() const { return value_argument(x); }
};

}  // namespace engine_pieces
