// Graphs of a program that says what its operators are, and has arguments of every kind.
#include <atomic>
#include <cstdio>
#include <cstring>

#include "host.h"

namespace host {
namespace {

std::atomic<int> schemas, shapes, supports_asked;

// demo::relu(self), demo::once(self) and demo::pad(self, size, mode): nothing else.
int32_t schema(void*, const char* type, const bringup_argument*, uint32_t count,
               bringup_operator_facts* facts) {
  static const char* const names[] = {"self", "size", "mode"};
  static const char* const types[] = {"Tensor", "int", "str"};
  ++schemas;
  const bool is_pad = std::strcmp(type, "demo::pad") == 0;
  const bool known =
      is_pad || std::strcmp(type, "demo::relu") == 0 || std::strcmp(type, "demo::once") == 0;
  const uint32_t most = is_pad ? 3 : 1;
  if (!known || count > most) {
    engine->set_error(known ? "too many arguments" : "this chip has no such operator");
    return BRINGUP_ENGINE_SCHEMA;
  }
  facts->type = type;
  facts->output_count = 1;
  facts->parameter_count = most;
  facts->parameter_names = names;
  facts->parameter_types = types;
  return BRINGUP_ENGINE_OK;
}

// An output looks like the first input; that of demo::once is float16.
int32_t infer(void*, bringup_ir_graph graph, bringup_ir_node node, bringup_tensor_desc* outputs,
              uint32_t) {
  ++shapes;
  const bringup_ir_value* inputs = nullptr;
  uint32_t count = 0;
  engine->node_inputs(graph, node, &inputs, &count);
  const int32_t status = engine->value_desc(graph, inputs[0], &outputs[0]);
  const char* type = "";
  engine->node_type(graph, node, &type);
  if (std::strcmp(type, "demo::once") == 0) outputs[0].device = "chip:1";
  return status;
}

int32_t supported(void*, bringup_ir_graph graph, bringup_ir_node node, int32_t* yes,
                  const char** reason) {
  ++supports_asked;
  const char* type = "";
  engine->node_type(graph, node, &type);
  *yes = std::strcmp(type, "demo::relu") == 0;
  *reason = "the chip has relu alone";
  return BRINGUP_ENGINE_OK;
}

bringup_argument integer(int64_t number) {
  bringup_argument made{BRINGUP_ARGUMENT_INT, 0, {}};
  made.of.integer = number;
  return made;
}

bringup_argument text(uint32_t kind, const char* words) {
  bringup_argument made{kind, 0, {}};
  made.of.text = words;
  return made;
}

bringup_argument object(uint64_t handle) {
  bringup_argument made{BRINGUP_ARGUMENT_OPAQUE, 0, {}};
  made.of.handle = handle;
  return made;
}

// x: float32[s0, 4] with strides (4*s1, 1).
bringup_ir_value symbolic_input(bringup_ir_graph graph) {
  const int64_t shape[] = {-1, 4}, strides[] = {-1, 1};
  const char* const shape_text[] = {"s0", nullptr};
  const char* const stride_text[] = {"4*s1", nullptr};
  bringup_tensor_desc desc{};
  desc.struct_size = sizeof(desc);
  desc.rank = 2;
  desc.shape = shape;
  desc.shape_text = shape_text;
  desc.strides = strides;
  desc.stride_text = stride_text;
  desc.dtype = "float32";
  desc.device = "cpu";
  bringup_ir_value value{};
  check(engine->add_input(graph, "x", &desc, &value));
  return value;
}

std::string words(const bringup_argument& found) {
  switch (found.kind) {
    case BRINGUP_ARGUMENT_INT:
      return std::to_string(found.of.integer);
    case BRINGUP_ARGUMENT_STRING:
      return std::string("'") + found.of.text + "'";
    case BRINGUP_ARGUMENT_SYMBOL:
      return std::string("symbol ") + found.of.text;
    case BRINGUP_ARGUMENT_OPAQUE:
      return "object " + std::to_string(found.of.handle);
    case BRINGUP_ARGUMENT_VALUE:
      return "value";
    case BRINGUP_ARGUMENT_LIST: {
      std::string all = "[";
      for (uint32_t index = 0; index < found.count; ++index) {
        all += (index > 0 ? " " : "") + words(found.of.items[index]);
      }
      return all + "]";
    }
    default:
      return "kind " + std::to_string(found.kind);
  }
}

std::string described(bringup_ir_graph graph, bringup_ir_value value) {
  bringup_tensor_desc desc{};
  desc.struct_size = sizeof(desc);
  if (engine->value_desc(graph, value, &desc) != BRINGUP_ENGINE_OK) return "unknown";
  std::string all = std::string(desc.dtype) + "[";
  for (int32_t index = 0; index < desc.rank; ++index) {
    const char* name = desc.shape_text != nullptr ? desc.shape_text[index] : nullptr;
    all += (index > 0 ? ", " : "") + (name != nullptr ? name : std::to_string(desc.shape[index]));
  }
  return all + "] " + desc.device;
}

// Every node with its arguments and what its first output looks like.
void print_graph(bringup_ir_graph graph) {
  bringup_ir_node node = BRINGUP_NO_NODE;
  for (check(engine->first_node(graph, &node)); node != BRINGUP_NO_NODE;
       check(engine->next_node(graph, node, &node))) {
    const char* type = nullptr;
    uint32_t count = 0, outputs = 0;
    check(engine->node_type(graph, node, &type));
    check(engine->node_argument_count(graph, node, &count));
    check(engine->node_output_count(graph, node, &outputs));
    std::printf("node %s(", type);
    for (uint32_t index = 0; index < count; ++index) {
      bringup_argument found{};
      check(engine->node_argument(graph, node, index, &found));
      std::printf("%s%s", index > 0 ? ", " : "", words(found).c_str());
    }
    std::printf(")%s%s\n", outputs > 0 ? ": " : "",
                outputs > 0 ? described(graph, {node, 0}).c_str() : "");
  }
}

void run_and_print(bringup_ir_graph graph, const bringup_run_options* how = nullptr) {
  const bool succeeded = run(graph, true, how);
  std::printf("run %s\n", succeeded ? "succeeded" : "failed");
  print_graph(graph);
  check(engine->graph_release(graph));
}

// --- scenarios

// relu(relu(x)), then pad(..., 3, "edge"), all of operators that the program knows.
void providers() {
  load();
  bringup_ir_graph graph = 0;
  check(engine->graph_create("provided", &graph));
  const bringup_engine_providers all = {sizeof(all), nullptr, schema, infer, supported, nullptr};
  check(engine->graph_set_providers(graph, &all));
  bringup_ir_value value = symbolic_input(graph);
  value = call(graph, "demo::relu", {call(graph, "demo::relu", {value})});
  value = call(graph, "demo::pad",
               {argument(value), integer(3), text(BRINGUP_ARGUMENT_STRING, "edge")});
  check(engine->set_outputs(graph, &value, 1));
  schemas = shapes = supports_asked = 0;
  bringup_run_options how{};
  how.struct_size = sizeof(how);
  how.infer_shapes = 1;
  run_and_print(graph, &how);
  std::printf("asked schema=%d shape=%d supports=%d\n", schemas > 0, shapes > 0,
              supports_asked > 0);
  check(engine->python_shutdown());
}

// Arguments of every kind, without providers.
void arguments() {
  load();
  bringup_ir_graph graph = 0;
  check(engine->graph_create("arguments", &graph));
  const bringup_ir_value x = symbolic_input(graph);
  const bringup_argument list_items[] = {argument(x), integer(7), object(5)};
  bringup_argument list{BRINGUP_ARGUMENT_LIST, 3, {}};
  list.of.items = list_items;
  bringup_ir_value value =
      call(graph, "demo::many",
           {argument(x), text(BRINGUP_ARGUMENT_SYMBOL, "2*s0"), object(5), object(2), list});
  value = call(graph, "demo::last", {argument(value), object(5)});
  check(engine->set_outputs(graph, &value, 1));
  run_and_print(graph);
  check(engine->python_shutdown());
}

}  // namespace

Scenarios graph_scenarios() { return {{"providers", providers}, {"arguments", arguments}}; }

}  // namespace host
