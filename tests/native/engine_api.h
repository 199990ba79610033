// Small graphs and passes through the C API, for its tests.
#pragma once

#include <string>
#include <vector>

#include "bringup/engine.h"
#include "check.h"
#include "engine/capi/api.h"

namespace engine_api {

inline const bringup_engine_api& api() { return *bringup::engine::engine_api(); }

inline bringup_argument value_argument(bringup_ir_value value) {
  bringup_argument argument{BRINGUP_ARGUMENT_VALUE, 0, {}};
  argument.of.value = value;
  return argument;
}

inline bringup_argument int_argument(int64_t number) {
  bringup_argument argument{BRINGUP_ARGUMENT_INT, 0, {}};
  argument.of.integer = number;
  return argument;
}

inline bringup_argument text_argument(const char* text) {
  bringup_argument argument{BRINGUP_ARGUMENT_STRING, 0, {}};
  argument.of.text = text;
  return argument;
}

// A call of `type` on values, at the end of the graph; its first output.
inline bringup_ir_value add(bringup_ir_graph graph, const char* type,
                            const std::vector<bringup_ir_value>& reads,
                            bringup_ir_node before = BRINGUP_NO_NODE) {
  std::vector<bringup_argument> arguments;
  for (const bringup_ir_value value : reads) arguments.push_back(value_argument(value));
  bringup_ir_node node = BRINGUP_NO_NODE;
  CHECK_EQ(api().add_node(graph, type, arguments.data(), static_cast<uint32_t>(arguments.size()), 0,
                          before, &node),
           BRINGUP_ENGINE_OK);
  return {node, 0};
}

inline bringup_ir_value input(bringup_ir_graph graph, const char* name) {
  bringup_ir_value value{};
  CHECK_EQ(api().add_input(graph, name, nullptr, &value), BRINGUP_ENGINE_OK);
  return value;
}

inline void returns(bringup_ir_graph graph, const std::vector<bringup_ir_value>& values) {
  CHECK_EQ(api().set_outputs(graph, values.data(), static_cast<uint32_t>(values.size())),
           BRINGUP_ENGINE_OK);
}

// in -> type(in)
inline bringup_ir_graph unary(const char* type) {
  bringup_ir_graph graph = 0;
  CHECK_EQ(api().graph_create("unary", &graph), BRINGUP_ENGINE_OK);
  const bringup_ir_value in = input(graph, "in");
  returns(graph, {add(graph, type, {in})});
  return graph;
}

// The operators of a graph in order.
inline std::string types(bringup_ir_graph graph) {
  std::string all;
  bringup_ir_node node = BRINGUP_NO_NODE;
  api().first_node(graph, &node);
  while (node != BRINGUP_NO_NODE) {
    const char* type = "";
    CHECK_EQ(api().node_type(graph, node, &type), BRINGUP_ENGINE_OK);
    if (std::string(type).rfind("ir::", 0) != 0) all += std::string(type) + " ";
    api().next_node(graph, node, &node);
  }
  return all;
}

// x -> relu -> exp -> out
struct Chain {
  bringup_ir_graph graph = 0;
  bringup_ir_value x{}, relu{}, exp{};

  Chain() {
    api().graph_create("chain", &graph);
    x = input(graph, "x");
    relu = add(graph, "t::relu", {x});
    exp = add(graph, "t::exp", {relu});
    returns(graph, {exp});
  }
  ~Chain() { api().graph_release(graph); }
};

// A registered pass, taken back at the end.
class Registered {
 public:
  explicit Registered(bringup_pass_definition definition) : name_(definition.name) {
    definition.struct_size = sizeof(definition);
    status_ = api().register_pass(&definition);
    if (status_ != BRINGUP_ENGINE_OK) message_ = api().last_error();
  }
  ~Registered() { api().unregister_pass(name_.c_str(), nullptr); }
  Registered(const Registered&) = delete;
  Registered& operator=(const Registered&) = delete;

  int32_t status() const { return status_; }
  const std::string& message() const { return message_; }

 private:
  std::string name_;
  int32_t status_;
  std::string message_;
};

// What a run gave.
struct Ran {
  int32_t status = 0;
  std::string failure;
  std::vector<bringup_pass_result> results;  // their texts end with the object
  bringup_run_report report = 0;

  explicit Ran(bringup_ir_graph graph, bringup_run_options options = {}) {
    options.struct_size = sizeof(options);
    status = api().run_passes(graph, &options, &report);
    if (status != BRINGUP_ENGINE_OK) failure = api().last_error();
    uint32_t count = 0;
    if (report != 0) api().report_count(report, &count);
    for (uint32_t index = 0; index < count; ++index) {
      bringup_pass_result result{};
      result.struct_size = sizeof(result);
      CHECK_EQ(api().report_result(report, index, &result), BRINGUP_ENGINE_OK);
      results.push_back(result);
    }
  }
  ~Ran() { api().report_release(report); }
  Ran(const Ran&) = delete;
  Ran& operator=(const Ran&) = delete;
};

inline bool contains(const std::string& text, const std::string& part) {
  if (text.find(part) != std::string::npos) return true;
  std::fprintf(stderr, "the text is: %s\n", text.c_str());
  return false;
}

}  // namespace engine_api
