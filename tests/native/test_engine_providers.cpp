// What a C program says of its operators, and the engine's own steps between stages.
#include <cstring>

#include "engine_api.h"

using namespace engine_api;

namespace {

const char* const kNames[] = {"self", "other"};
const char* const kTypes[] = {"Tensor", "Tensor"};

// t::relu and t::exp take one tensor, t::add two; anything else is refused.
int32_t schema(void*, const char* type, const bringup_argument*, uint32_t count,
               bringup_operator_facts* facts) {
  const uint32_t wanted = std::strcmp(type, "t::add") == 0 ? 2 : 1;
  const bool known = std::strncmp(type, "t::", 3) == 0 && std::strcmp(type, "t::unknown") != 0;
  if (!known || count != wanted) {
    api().set_error("no such operator, or other arguments than it takes");
    return BRINGUP_ENGINE_SCHEMA;
  }
  facts->type = type;
  facts->parameter_count = wanted;
  facts->parameter_names = kNames;
  facts->parameter_types = kTypes;
  facts->output_count = 1;
  return BRINGUP_ENGINE_OK;
}

// An output looks like the first input.
int32_t infer(void*, bringup_ir_graph graph, bringup_ir_node node, bringup_tensor_desc* outputs,
              uint32_t) {
  const bringup_ir_value* inputs = nullptr;
  uint32_t count = 0;
  api().node_inputs(graph, node, &inputs, &count);
  const char* type = "";
  api().node_type(graph, node, &type);
  if (std::strcmp(type, "t::shapeless") == 0) {
    api().set_error("it has no shape");
    return BRINGUP_ENGINE_FAILED;
  }
  return api().value_desc(graph, inputs[0], &outputs[0]);
}

int32_t supports(void*, bringup_ir_graph, bringup_ir_node, int32_t* supported,
                 const char** reason) {
  *supported = 0;
  *reason = "the chip has no exp";
  return BRINGUP_ENGINE_OK;
}

// Adds float32 constants of one element.
int32_t evaluate(void*, bringup_ir_graph graph, bringup_ir_node node, bringup_constant* outputs,
                 uint32_t) {
  static thread_local float sum;
  const bringup_ir_value* inputs = nullptr;
  uint32_t count = 0;
  api().node_inputs(graph, node, &inputs, &count);
  sum = 0;
  for (uint32_t index = 0; index < count; ++index) {
    bringup_constant constant{};
    constant.struct_size = sizeof(constant);
    api().node_constant(graph, inputs[index].node, &constant);
    sum += *static_cast<const float*>(constant.data);
  }
  outputs[0].dtype = "float32";
  outputs[0].data = &sum;
  outputs[0].bytes = sizeof(sum);
  return BRINGUP_ENGINE_OK;
}

bringup_engine_providers all_providers() {
  return {sizeof(bringup_engine_providers), nullptr, schema, infer, supports, evaluate};
}

bringup_ir_graph graph_with(const bringup_engine_providers& providers) {
  bringup_ir_graph graph = 0;
  api().graph_create("g", &graph);
  CHECK_EQ(api().graph_set_providers(graph, &providers), BRINGUP_ENGINE_OK);
  return graph;
}

bringup_ir_value shaped_input(bringup_ir_graph graph, const char* dtype = "float32") {
  const int64_t shape[] = {-1, 3};
  const char* const text[] = {"s0", nullptr};
  bringup_tensor_desc desc{};
  desc.struct_size = sizeof(desc);
  desc.rank = 2;
  desc.shape = shape;
  desc.shape_text = text;
  desc.dtype = dtype;
  bringup_ir_value value{};
  CHECK_EQ(api().add_input(graph, "x", &desc, &value), BRINGUP_ENGINE_OK);
  return value;
}

bringup_ir_value constant(bringup_ir_graph graph, float number) {
  bringup_constant data{};
  data.struct_size = sizeof(data);
  data.dtype = "float32";
  data.data = &number;
  data.bytes = sizeof(number);
  bringup_ir_value value{};
  CHECK_EQ(api().add_constant(graph, "c", &data, &value), BRINGUP_ENGINE_OK);
  return value;
}

std::string shape_of(bringup_ir_graph graph, bringup_ir_value value) {
  bringup_tensor_desc desc{};
  desc.struct_size = sizeof(desc);
  if (api().value_desc(graph, value, &desc) != BRINGUP_ENGINE_OK) return api().last_error();
  std::string text = desc.dtype;
  for (int32_t index = 0; index < desc.rank; ++index) {
    text += " ";
    text += desc.shape_text[index] != nullptr ? desc.shape_text[index]
                                              : std::to_string(desc.shape[index]);
  }
  return text;
}

}  // namespace

TEST(schema_refuses_an_unknown_operator_and_names_it) {
  const bringup_ir_graph graph = graph_with(all_providers());
  const bringup_argument x = value_argument(shaped_input(graph));
  bringup_ir_node node = BRINGUP_NO_NODE;
  CHECK_EQ(api().add_node(graph, "t::unknown", &x, 1, 0, BRINGUP_NO_NODE, &node),
           BRINGUP_ENGINE_SCHEMA);
  CHECK(contains(api().last_error(), "no such operator, or other arguments"));
  CHECK_EQ(node, BRINGUP_NO_NODE);
  bringup_argument argument{};
  const bringup_ir_value relu = add(graph, "t::relu", {{x.of.value}});
  CHECK_EQ(api().node_argument_named(graph, relu.node, "self", &argument), BRINGUP_ENGINE_OK);
  CHECK_EQ(argument.of.value.node, x.of.value.node);
  CHECK_EQ(api().node_argument_named(graph, relu.node, "dim", &argument), BRINGUP_ENGINE_NOT_FOUND);
  CHECK(contains(api().last_error(), "t::relu has no parameter 'dim'"));
  api().graph_release(graph);
}

TEST(shapes_are_inferred_as_nodes_are_made_and_keep_symbols) {
  const bringup_ir_graph graph = graph_with(all_providers());
  const bringup_ir_value relu = add(graph, "t::relu", {shaped_input(graph)});
  CHECK_EQ(shape_of(graph, relu), "float32 s0 3");
  const bringup_ir_value bare = input(graph, "bare");
  CHECK(contains(shape_of(graph, add(graph, "t::relu", {bare})), "nothing is known about the"));
  api().graph_release(graph);
}

TEST(missing_provider_is_an_error_that_names_it) {
  const bringup_ir_graph graph = graph_with({sizeof(bringup_engine_providers)});
  const bringup_ir_value relu = add(graph, "t::relu", {shaped_input(graph)});
  returns(graph, {relu});
  int32_t supported = 1;
  CHECK_EQ(api().node_supported(graph, relu.node, &supported, nullptr),
           BRINGUP_ENGINE_MISSING_PROVIDER);
  CHECK(contains(api().last_error(), "there is no provider of node support"));
  bringup_run_options options{};
  options.infer_shapes = 1;
  const Ran ran(graph, options);
  CHECK_EQ(ran.status, BRINGUP_ENGINE_FAILED);
  CHECK(contains(ran.failure, "shape inference failed: at 'relu' (t::relu): there is no provider"));
  api().graph_release(graph);
}

TEST(support_is_answered_with_its_reason) {
  const bringup_ir_graph graph = graph_with(all_providers());
  const bringup_ir_value relu = add(graph, "t::exp", {shaped_input(graph)});
  int32_t supported = 1;
  const char* reason = "";
  CHECK_EQ(api().node_supported(graph, relu.node, &supported, &reason), BRINGUP_ENGINE_OK);
  CHECK_EQ(supported, 0);
  CHECK_EQ(std::string(reason), "the chip has no exp");
  api().graph_release(graph);
}

// The first stage runs without inferred shapes, the later ones with them.
TEST(pass_before_shape_inference_may_not_read_what_is_inferred) {
  const bringup_ir_graph graph = graph_with({sizeof(bringup_engine_providers)});
  const bringup_ir_value x = shaped_input(graph);
  const bringup_ir_value relu = add(graph, "t::relu", {x});
  returns(graph, {relu});
  const bringup_engine_providers providers = all_providers();
  api().graph_set_providers(graph, &providers);
  static std::string early, early_input, late;
  static bringup_ir_value read_input, read_relu;
  read_input = x, read_relu = relu;
  bringup_pass_definition first{}, second{};
  first.name = "early";
  first.stage = BRINGUP_BEFORE_INFER_SHAPE;
  first.run = [](void*, bringup_ir_graph given, bringup_pass_context) {
    early = shape_of(given, read_relu);
    early_input = shape_of(given, read_input);
    return 0;
  };
  second.name = "late";
  second.stage = BRINGUP_AFTER_INFER_SHAPE;
  second.run = [](void*, bringup_ir_graph given, bringup_pass_context) {
    late = shape_of(given, read_relu);
    return 0;
  };
  const Registered one(first), two(second);
  bringup_run_options options{};
  options.infer_shapes = 1;
  CHECK_EQ(Ran(graph, options).status, BRINGUP_ENGINE_OK);
  CHECK(contains(early, "the shape of 'relu' is inferred, which a pass of stage BeforeInferShape"));
  CHECK_EQ(early_input, "float32 s0 3");
  CHECK_EQ(late, "float32 s0 3");
  api().graph_release(graph);
}

TEST(replacement_is_shaped_and_one_that_differs_is_refused) {
  const bringup_ir_graph graph = graph_with(all_providers());
  const bringup_ir_value x = shaped_input(graph), half = shaped_input(graph, "float16");
  const bringup_ir_value sum = add(graph, "t::add", {x, half});
  const bringup_ir_value relu = add(graph, "t::relu", {x});
  returns(graph, {sum, relu});
  static const char* const kAdd[] = {"t::add", nullptr};
  static const char* const kRelu[] = {"t::relu", nullptr};
  bringup_pass_definition second_operand{}, tanh{};
  second_operand.name = "SecondOperand";
  second_operand.kind = tanh.kind = BRINGUP_PASS_DECOMPOSE;
  second_operand.stage = tanh.stage = BRINGUP_AFTER_INFER_SHAPE;
  second_operand.op_types = kAdd;
  second_operand.replace_node = [](void*, bringup_ir_graph, bringup_ir_node, bringup_pass_context,
                                   bringup_ir_graph* replacement) {
    api().graph_create("second", replacement);
    input(*replacement, "a");
    returns(*replacement, {input(*replacement, "b")});
    return 0;
  };
  tanh.name = "Tanh";
  tanh.op_types = kRelu;
  tanh.replace_node = [](void*, bringup_ir_graph, bringup_ir_node, bringup_pass_context,
                         bringup_ir_graph* replacement) {
    return *replacement = unary("t::tanh"), 0;
  };
  const Registered one(second_operand), two(tanh);
  const Ran ran(graph);
  CHECK(contains(ran.failure,
                 "it would replace 'add' (t::add) by 'x_1' (ir::input): dtype differs: expected "
                 "float32, got float16"));
  const bringup_ir_node* found = nullptr;
  uint32_t count = 0;
  api().find_nodes(graph, "t::tanh", &found, &count);
  REQUIRE(count == 1);
  CHECK_EQ(shape_of(graph, {found[0], 0}), "float32 s0 3");
  api().graph_release(graph);
}

TEST(constants_are_folded_once_and_what_is_returned_is_left_alone) {
  const bringup_ir_graph graph = graph_with(all_providers());
  const bringup_ir_value x = shaped_input(graph);
  const bringup_ir_value one = constant(graph, 1), two = constant(graph, 2);
  const bringup_ir_value three = add(graph, "t::add", {one, two});
  const bringup_ir_value five = add(graph, "t::add", {three, two});
  const bringup_ir_value used = add(graph, "t::add", {x, five});
  const bringup_ir_value returned = add(graph, "t::add", {one, one});
  returns(graph, {used, returned});
  bringup_run_options options{};
  options.fold = 1;
  CHECK_EQ(Ran(graph, options).status, BRINGUP_ENGINE_OK);
  CHECK_EQ(types(graph), "t::add t::add ");
  const bringup_ir_value* inputs = nullptr;
  uint32_t count = 0;
  api().node_inputs(graph, used.node, &inputs, &count);
  bringup_constant folded{};
  folded.struct_size = sizeof(folded);
  REQUIRE(api().node_constant(graph, inputs[1].node, &folded) == BRINGUP_ENGINE_OK);
  CHECK_EQ(*static_cast<const float*>(folded.data), 5.0f);
  api().graph_release(graph);
}

TEST(provider_that_throws_is_an_error) {
  bringup_engine_providers providers = all_providers();
  providers.schema = [](void*, const char*, const bringup_argument*, uint32_t,
                        bringup_operator_facts*) -> int32_t {
    throw std::runtime_error("lost its tables");
  };
  const bringup_ir_graph graph = graph_with(providers);
  bringup_ir_node node = 0;
  CHECK_EQ(api().add_node(graph, "t::relu", nullptr, 0, 0, BRINGUP_NO_NODE, &node),
           BRINGUP_ENGINE_FAILED);
  CHECK(contains(api().last_error(), "the provider of schema threw: lost its tables"));
  api().graph_release(graph);
}
