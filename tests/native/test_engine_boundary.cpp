// Boundaries in C: a part of a graph described by what enters and leaves it, and replacing it.
#include "engine_api.h"

using namespace engine_api;

namespace {

bringup_boundary around(const std::vector<bringup_ir_value>& inputs,
                        const std::vector<bringup_ir_value>& outputs) {
  bringup_boundary boundary{};
  boundary.struct_size = sizeof(boundary);
  boundary.inputs = inputs.data();
  boundary.input_count = static_cast<uint32_t>(inputs.size());
  boundary.outputs = outputs.data();
  boundary.output_count = static_cast<uint32_t>(outputs.size());
  return boundary;
}

// The status of asking for the nodes, and their names.
std::string nodes_in(bringup_ir_graph graph, const std::vector<bringup_ir_value>& inputs,
                     const std::vector<bringup_ir_value>& outputs) {
  const bringup_boundary boundary = around(inputs, outputs);
  const bringup_ir_node* nodes = nullptr;
  uint32_t count = 0;
  const int32_t status = api().boundary_nodes(graph, &boundary, &nodes, &count);
  if (status != BRINGUP_ENGINE_OK) return std::to_string(status) + ": " + api().last_error();
  std::string names;
  for (uint32_t index = 0; index < count; ++index) {
    const char* name = "";
    api().node_name(graph, nodes[index], &name);
    names += std::string(name) + " ";
  }
  return names;
}

int32_t replace(bringup_ir_graph graph, const std::vector<bringup_ir_value>& inputs,
                const std::vector<bringup_ir_value>& outputs, bringup_ir_graph replacement) {
  const bringup_boundary boundary = around(inputs, outputs);
  return api().boundary_replace(graph, &boundary, replacement, nullptr, nullptr);
}

// x, y -> neg(add(exp(relu(x)), y))
struct Target {
  bringup_ir_graph graph = 0;
  bringup_ir_value x{}, y{}, relu{}, exp{}, sum{}, neg{};
  Target() {
    api().graph_create("target", &graph);
    x = input(graph, "x");
    y = input(graph, "y");
    relu = add(graph, "t::relu", {x});
    exp = add(graph, "t::exp", {relu});
    sum = add(graph, "t::add", {exp, y});
    neg = add(graph, "t::neg", {sum});
    returns(graph, {neg});
  }
  ~Target() { api().graph_release(graph); }
};

bringup_ir_graph binary(const char* type) {
  bringup_ir_graph graph = 0;
  api().graph_create("binary", &graph);
  const bringup_ir_value a = input(graph, "a"), b = input(graph, "b");
  returns(graph, {add(graph, type, {a, b})});
  return graph;
}

}  // namespace

// The nodes between what enters and what leaves.
TEST(nodes_of_a_boundary_are_what_its_outputs_need) {
  Target target;
  CHECK_EQ(nodes_in(target.graph, {target.x, target.y}, {target.sum}), "relu exp add ");
  CHECK_EQ(nodes_in(target.graph, {target.relu}, {target.exp}), "exp ");
  CHECK_EQ(nodes_in(target.graph, {target.x}, {target.relu, target.exp}), "relu exp ");
}

// Not closed, not self-contained, taken twice, missing, no output.
TEST(boundaries_that_cannot_be_meant_say_why) {
  Target target;
  CHECK(contains(nodes_in(target.graph, {target.x}, {target.sum}),
                 "7: the boundary is not closed: 'y' enters it, but is no input of it"));
  returns(target.graph, {target.neg, target.relu});
  CHECK(contains(
      nodes_in(target.graph, {target.x}, {target.exp}),
      "7: the boundary cannot be replaced, because of 'relu': its output 0 is used outside"));
  CHECK(contains(
      nodes_in(target.graph, {target.x, target.relu}, {target.relu, target.exp}),
      "7: the boundary cannot be replaced, because of 'relu': an input would be computed inside"));
  CHECK(contains(nodes_in(target.graph, {target.x}, {target.relu, target.relu}),
                 "1: 'relu' is an output of the boundary already"));
  CHECK(contains(nodes_in(target.graph, {target.x}, {}), "1: the boundary has no output"));
  CHECK(contains(nodes_in(target.graph, {target.x}, {{99, 0}}), "2: graph handle has expired"));
  CHECK(contains(nodes_in(target.graph, {{target.x.node, 3}}, {target.relu}), "1: "));
  bringup_boundary boundary = around({}, {});
  boundary.output_count = 1;
  boundary.outputs = nullptr;
  const bringup_ir_node* nodes = nullptr;
  uint32_t count = 0;
  CHECK_EQ(api().boundary_nodes(target.graph, &boundary, &nodes, &count), BRINGUP_ENGINE_INVALID);
  CHECK(contains(api().last_error(), "the outputs of the boundary is NULL"));
  boundary.struct_size = 0;
  CHECK_EQ(api().boundary_nodes(target.graph, &boundary, &nodes, &count), BRINGUP_ENGINE_INVALID);
}

// The part goes, new nodes stand in its place and are given back.
TEST(part_is_replaced_by_a_graph) {
  Target target;
  const std::vector<bringup_ir_value> inputs = {target.x, target.y}, outputs = {target.sum};
  const bringup_boundary boundary = around(inputs, outputs);
  const bringup_ir_graph fused = binary("t::fused");
  const bringup_ir_node* nodes = nullptr;
  uint32_t count = 0;
  REQUIRE(api().boundary_replace(target.graph, &boundary, fused, &nodes, &count) == 0);
  REQUIRE(count == 1);
  const char* type = "";
  CHECK_EQ(api().node_type(target.graph, nodes[0], &type), BRINGUP_ENGINE_OK);
  CHECK_EQ(std::string(type), "t::fused");
  CHECK_EQ(types(target.graph), "t::fused t::neg ");
  CHECK_EQ(api().graph_release(fused), BRINGUP_ENGINE_EXPIRED);  // it was handed over
  const char* const* names = nullptr;
  CHECK_EQ(api().node_origin(target.graph, nodes[0], &names, &count), BRINGUP_ENGINE_OK);
  CHECK_EQ(count, 3u);
}

// Wired straight through, nothing left.
TEST(part_may_vanish) {
  Target target;
  bringup_ir_graph nothing = 0;
  api().graph_create("nothing", &nothing);
  returns(nothing, {input(nothing, "in")});
  CHECK_EQ(replace(target.graph, {target.relu}, {target.exp}, nothing), BRINGUP_ENGINE_OK);
  CHECK_EQ(types(target.graph), "t::relu t::add t::neg ");
}

// A cycle, other numbers of inputs and outputs; everything is as it was.
TEST(refused_replacement_leaves_graph_and_replacement) {
  Target target;
  const std::string before = types(target.graph);
  const bringup_ir_graph fused = binary("t::fused");
  CHECK_EQ(replace(target.graph, {target.x}, {target.exp}, fused), BRINGUP_ENGINE_FAILED);
  CHECK(contains(api().last_error(), "has 2 inputs, the boundary has 1"));
  CHECK_EQ(replace(target.graph, {target.x, target.y}, {target.relu, target.sum}, fused),
           BRINGUP_ENGINE_FAILED);
  CHECK(contains(api().last_error(), "has 1 output, what it replaces has 2"));
  CHECK_EQ(replace(target.graph, {target.x, target.sum}, {target.relu}, fused),
           BRINGUP_ENGINE_FAILED);
  CHECK(contains(api().last_error(), "cycle"));
  CHECK_EQ(replace(target.graph, {target.x, target.y}, {target.sum}, target.graph),
           BRINGUP_ENGINE_INVALID);
  CHECK_EQ(types(target.graph), before);
  CHECK_EQ(replace(target.graph, {target.x, target.y}, {target.sum}, fused), BRINGUP_ENGINE_OK);
}

// An input that only comes after the part, and does not need it, is moved in front.
TEST(late_input_is_moved_in_front_of_the_replacement) {
  Target target;
  const bringup_ir_value late = add(target.graph, "t::late", {target.y});
  returns(target.graph, {target.neg, late});
  CHECK_EQ(replace(target.graph, {target.x, late}, {target.relu}, binary("t::fused")),
           BRINGUP_ENGINE_OK);
  CHECK_EQ(types(target.graph), "t::late t::fused t::exp t::add t::neg ");
}

// A constant that others read too stays for them.
TEST(shared_constant_does_not_hold_a_part_back) {
  Target target;
  const float number = 2;
  bringup_constant constant{};
  constant.struct_size = sizeof(constant);
  constant.dtype = "float32";
  constant.data = &number;
  constant.bytes = sizeof(number);
  bringup_ir_value two{};
  REQUIRE(api().add_constant(target.graph, "two", &constant, &two) == BRINGUP_ENGINE_OK);
  const bringup_ir_value one = add(target.graph, "t::mul", {target.x, two});
  const bringup_ir_value other = add(target.graph, "t::mul", {target.y, two});
  returns(target.graph, {target.neg, one, other});
  CHECK_EQ(replace(target.graph, {target.x}, {one}, unary("t::twice")), BRINGUP_ENGINE_OK);
  CHECK_EQ(types(target.graph), "t::relu t::exp t::add t::neg t::twice t::mul ");
}

namespace {

bringup_tensor_desc flat(const int64_t* shape) {
  bringup_tensor_desc desc{};
  desc.struct_size = sizeof(desc);
  desc.rank = 1;
  desc.shape = shape;
  desc.dtype = "float32";
  return desc;
}

// A graph pass that replaces a part twice: the first replacement has another shape and is refused,
// the second one fits.
int32_t replace_in_a_pass(void*, bringup_ir_graph graph, bringup_pass_context) {
  static const int64_t kOther[] = {7};
  const bringup_ir_node* nodes = nullptr;
  uint32_t count = 0;
  CHECK_EQ(api().find_nodes(graph, "t::relu", &nodes, &count), BRINGUP_ENGINE_OK);
  const bringup_ir_value relu = {nodes[0], 0};
  const bringup_ir_value* reads = nullptr;
  CHECK_EQ(api().node_inputs(graph, nodes[0], &reads, &count), BRINGUP_ENGINE_OK);
  const bringup_ir_value x = reads[0];
  bringup_ir_graph wrong = 0;
  api().graph_create("wrong", &wrong);
  const float numbers[7] = {};
  bringup_constant constant{};
  constant.struct_size = sizeof(constant);
  constant.rank = 1;
  constant.shape = kOther;
  constant.dtype = "float32";
  constant.data = numbers;
  constant.bytes = sizeof(numbers);
  bringup_ir_value other{};
  input(wrong, "in");
  CHECK_EQ(api().add_constant(wrong, "zeros", &constant, &other), BRINGUP_ENGINE_OK);
  returns(wrong, {other});
  CHECK_EQ(replace(graph, {x}, {relu}, wrong), BRINGUP_ENGINE_FAILED);
  CHECK(contains(api().last_error(), "shape"));
  CHECK_EQ(types(graph), "t::relu ");
  CHECK_EQ(api().graph_release(wrong), BRINGUP_ENGINE_OK);
  return replace(graph, {x}, {relu}, unary("t::tanh"));
}

}  // namespace

TEST(boundary_in_a_pass_is_part_of_its_transaction) {
  static const int64_t kShape[] = {4};
  bringup_ir_graph graph = 0;
  api().graph_create("g", &graph);
  const bringup_tensor_desc desc = flat(kShape);
  bringup_ir_value x{};
  api().add_input(graph, "x", &desc, &x);
  const bringup_ir_value relu = add(graph, "t::relu", {x});
  returns(graph, {relu});
  bringup_engine_providers providers{};
  providers.struct_size = sizeof(providers);
  providers.infer_shape = [](void*, bringup_ir_graph, bringup_ir_node, bringup_tensor_desc* outputs,
                             uint32_t) { return outputs[0] = flat(kShape), 0; };
  CHECK_EQ(api().graph_set_providers(graph, &providers), BRINGUP_ENGINE_OK);
  bringup_pass_definition definition{};
  definition.name = "Replaces";
  definition.stage = BRINGUP_AFTER_INFER_SHAPE;
  definition.run = replace_in_a_pass;
  const Registered registered(definition);
  bringup_run_options options{};
  options.infer_shapes = 1;
  const Ran ran(graph, options);
  CHECK_EQ(ran.failure, "");
  CHECK_EQ(types(graph), "t::tanh ");
  const bringup_ir_node* nodes = nullptr;
  uint32_t count = 0;
  api().find_nodes(graph, "t::tanh", &nodes, &count);
  const char* rule = "";
  CHECK_EQ(api().node_rule(graph, nodes[0], &rule), BRINGUP_ENGINE_OK);
  CHECK_EQ(std::string(rule), "Replaces");
  api().graph_release(graph);
}

// Reading a graph for ever need not hold all that was read.
TEST(arrays_end_when_they_are_released) {
  Target target;
  for (int round = 0; round < 1000; ++round) {
    const bringup_ir_node* nodes = nullptr;
    uint32_t count = 0;
    REQUIRE(api().find_nodes(target.graph, "t::relu", &nodes, &count) == BRINGUP_ENGINE_OK);
    REQUIRE(count == 1 && nodes[0] == target.relu.node);
    REQUIRE(api().graph_release_arrays(target.graph) == BRINGUP_ENGINE_OK);
  }
  CHECK_EQ(api().graph_release_arrays(target.graph + 1000000), BRINGUP_ENGINE_EXPIRED);
}

TEST(table_says_which_functions_it_has) {
  bringup_engine_api older = api();
  older.struct_size = offsetof(bringup_engine_api, pattern_any);
  CHECK(BRINGUP_ENGINE_HAS(&older, report_release));
  CHECK(!BRINGUP_ENGINE_HAS(&older, pattern_any));
  CHECK(BRINGUP_ENGINE_HAS(&api(), graph_release_arrays));
}
