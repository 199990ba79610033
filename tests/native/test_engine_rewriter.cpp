// Putting replacements in place: the rewriter and its boundaries.
#include "check.h"
#include "engine/graph/native_host.h"
#include "engine/rewrite/rewriter.h"
#include "engine_graphs.h"

using namespace bringup::engine;
using engine_graphs::add;
using engine_graphs::call;
using engine_graphs::op;
using engine_graphs::text;
using engine_graphs::values;

namespace {

// x, y -> out = exp(relu(x)) + y, twice relu(x) when `shared`.
struct Target {
  Graph graph{"target"};
  NodeId x = graph.add_input(text("x"));
  NodeId y = graph.add_input(text("y"));
  NodeId relu = add(graph, op("t::relu"), {{x, 0}});
  NodeId exp = add(graph, op("t::exp"), {{relu, 0}});
  NodeId sum = add(graph, op("t::add", 2), {{exp, 0}, {y, 0}});
  Target() { graph.set_outputs(call(values({{sum, 0}}))); }
};

// in -> op(in)
struct Unary {
  Graph graph{"unary"};
  NodeId in = graph.add_input(text("in"));
  NodeId node;
  explicit Unary(const char* type) : node(add(graph, op(type), {{in, 0}})) {
    graph.set_outputs(call(values({{node, 0}})));
  }
};

std::string line(const Graph& graph) {
  std::string all;
  for (NodeId node = graph.first(); node != kNoNode; node = graph.next(node)) {
    all += std::string(graph.name_text(node)) + "(";
    for_each_value(graph.all_arguments(node),
                   [&](ValueId value) { all += std::string(graph.name_text(value.node)) + " "; });
    all += ") ";
  }
  return all;
}

std::vector<NodeId> replace_at(Graph& graph, const Graph& replacement,
                               const std::vector<ValueId>& inputs,
                               const std::vector<ValueId>& outputs,
                               const std::vector<NodeId>& nodes, NodeId before) {
  AliasAnalysis aliases(graph);
  const Providers providers;
  return replace(graph, replacement, Site{inputs, outputs, nodes, before}, aliases, providers);
}

Boundary::Place place(NodeId node, uint32_t position) { return {node, position}; }

}  // namespace

// One to one at every site; attributes are inherited; rule and origin are on the new node.
TEST(one_node_becomes_another_that_inherits_attributes_rule_and_origin) {
  Target target;
  ArgumentList label;
  label.put(Argument::of_string(text("stream 1")));
  target.graph.set_attribute(target.relu, text("label"), label.items());
  const Unary replacement("t::tanh");
  target.graph.begin(text("Swap"));
  const std::vector<NodeId> made = replace_at(target.graph, replacement.graph, {{target.x, 0}},
                                              {{target.relu, 0}}, {target.relu}, target.exp);
  target.graph.commit();
  CHECK_EQ(line(target.graph), "x() y() tanh(x ) exp(tanh ) add(exp y ) output(add ) ");
  REQUIRE(made.size() == 1);
  CHECK_EQ(Strings::text(target.graph.rule(made[0])), "Swap");
  CHECK(same(*target.graph.attribute(made[0], text("label")), label.items()));
  const auto origin = target.graph.attribute(made[0], text("origin"));
  REQUIRE(origin && origin->size() == 2);
  CHECK_EQ(Strings::text((*origin)[1].id), "relu");
}

// Two nodes become two nodes and a constant, whose data stay.
TEST(chain_becomes_a_chain_with_a_constant) {
  Target target;
  target.graph.set_host(NativeHost::instance());
  auto replacement = make_native_graph("scaled");
  const NodeId in = replacement->add_input(text("in"));
  const float two = 2;
  const auto* first = reinterpret_cast<const std::byte*>(&two);
  auto bytes = std::make_shared<std::vector<std::byte>>(first, first + sizeof(two));
  const NodeId constant = replacement->add_constant(text("two"));
  replacement->set_payload(constant, {text("float32"), {}, *bytes, bytes});
  const NodeId mul = add(*replacement, op("t::mul", 2), {{in, 0}, {constant, 0}});
  const NodeId neg = add(*replacement, op("t::neg"), {{mul, 0}});
  replacement->set_outputs(call(values({{neg, 0}})));
  const auto made = replace_at(target.graph, *replacement, {{target.x, 0}}, {{target.exp, 0}},
                               {target.relu, target.exp}, target.sum);
  CHECK_EQ(line(target.graph), "x() y() two() mul(x two ) neg(mul ) add(neg y ) output(add ) ");
  const ConstantData* data = target.graph.payload(made[0]);
  REQUIRE(data != nullptr && data->bytes.size() == sizeof(two));
  CHECK_EQ(*reinterpret_cast<const float*>(data->bytes.data()), two);
  const TensorDesc* desc = target.graph.desc({made[0], 0});
  REQUIRE(desc != nullptr);
  CHECK_EQ(Strings::text(desc->dtype), "float32");
}

// One input with several consumers, two outputs. The producer keeps its other consumer.
TEST(several_outputs_are_exchanged_in_order_and_outside_readers_stay) {
  Graph graph("g");
  const NodeId x = graph.add_input(text("x"));
  const NodeId pre = add(graph, op("t::pre"), {{x, 0}});
  const NodeId a = add(graph, op("t::a"), {{pre, 0}});
  const NodeId b = add(graph, op("t::b"), {{pre, 0}});
  const NodeId outside = add(graph, op("t::outside"), {{pre, 0}});
  graph.set_outputs(call(values({{a, 0}, {b, 0}, {outside, 0}})));
  Graph replacement("pair");
  const NodeId in = replacement.add_input(text("in"));
  const NodeId both = add(replacement, op("t::both", 1, 2), {{in, 0}});
  replacement.set_outputs(call(values({{both, 1}, {both, 0}})));
  const auto made = replace_at(graph, replacement, {{pre, 0}}, {{a, 0}, {b, 0}}, {a, b}, outside);
  CHECK_EQ(line(graph), "x() pre(x ) both(pre ) outside(pre ) output(both both outside ) ");
  const std::vector<ValueId> outputs = graph.outputs();
  CHECK(outputs[0] == (ValueId{made[0], 1}));
  CHECK(outputs[1] == (ValueId{made[0], 0}));
}

// A replacement output wired straight to an input. N to 0.
TEST(replacement_without_nodes_wires_its_input_through) {
  Target target;
  Graph identity("identity");
  const NodeId in = identity.add_input(text("in"));
  identity.set_outputs(call(values({{in, 0}})));
  const auto made = replace_at(target.graph, identity, {{target.x, 0}}, {{target.exp, 0}},
                               {target.relu, target.exp}, target.sum);
  CHECK(made.empty());
  CHECK_EQ(line(target.graph), "x() y() add(x y ) output(add ) ");
}

// The numbers of inputs and outputs must fit.
TEST(wrong_number_of_inputs_or_outputs_is_refused) {
  Target target;
  Graph wide("wide");
  const NodeId a = wide.add_input(text("a")), b = wide.add_input(text("b"));
  const NodeId sum = add(wide, op("t::add", 2), {{a, 0}, {b, 0}});
  wide.set_outputs(call(values({{sum, 0}, {sum, 0}})));
  CHECK_THROWS(replace_at(target.graph, wide, {{target.x, 0}}, {{target.relu, 0}}, {target.relu},
                          target.exp),
               EngineError, "the replacement 'wide' has 2 inputs, what it replaces has 1");
  CHECK_THROWS(replace_at(target.graph, wide, {{target.x, 0}, {target.y, 0}}, {{target.relu, 0}},
                          {target.relu}, target.exp),
               EngineError, "the replacement 'wide' has 2 outputs, what it replaces has 1");
}

TEST(replacement_that_differs_in_dtype_is_refused_by_name) {
  Target target;
  target.graph.set_host(NativeHost::instance());
  TensorDesc desc;
  desc.sizes = {{2}, {3}};
  desc.dtype = text("float32");
  desc.device = text("cpu");
  describe(target.graph, {target.relu, 0}, &desc);
  desc.dtype = text("float16");
  describe(target.graph, {target.y, 0}, &desc);
  Graph identity("identity");
  identity.set_outputs(call(values({{identity.add_input(text("in")), 0}})));
  CHECK_THROWS(replace_at(target.graph, identity, {{target.y, 0}}, {{target.relu, 0}},
                          {target.relu}, target.exp),
               EngineError,
               "it would replace 'relu' (t::relu) by 'y' (ir::input): dtype differs: expected "
               "float32, got float16");
}

// Nodes that contradict each other cannot become one.
TEST(nodes_that_differ_in_an_attribute_are_refused_and_both_are_named) {
  Target target;
  ArgumentList one, two;
  one.put(Argument::of_int(1));
  two.put(Argument::of_int(2));
  target.graph.set_attribute(target.relu, text("stream"), one.items());
  target.graph.set_attribute(target.exp, text("stream"), two.items());
  const Unary replacement("t::tanh");
  CHECK_THROWS(replace_at(target.graph, replacement.graph, {{target.x, 0}}, {{target.exp, 0}},
                          {target.relu, target.exp}, target.sum),
               EngineError, "nodes 'relu' and 'exp' differ in their attribute 'stream'");
}

TEST(replacement_may_write_only_what_it_made) {
  Target target;
  Operator writer = engine_graphs::facts_of("t::add_", 2);
  writer.mutates = {0};
  const Operator* facts = Operators::intern(writer);
  Graph bad("bad");
  const NodeId in = bad.add_input(text("in"));
  bad.set_outputs(call(values({{add(bad, facts, {{in, 0}, {in, 0}}), 0}})));
  CHECK_THROWS(
      replace_at(target.graph, bad, {{target.x, 0}}, {{target.relu, 0}}, {target.relu}, target.exp),
      EngineError, "the replacement writes 'x', which it did not make itself (t::add_)");
  Graph good("good");
  const NodeId other = good.add_input(text("in"));
  const NodeId copy = add(good, op("t::clone"), {{other, 0}});
  good.set_outputs(call(values({{add(good, facts, {{copy, 0}, {other, 0}}), 0}})));
  replace_at(target.graph, good, {{target.x, 0}}, {{target.relu, 0}}, {target.relu}, target.exp);
  CHECK_EQ(target.graph.count(facts->type), 1u);
}

TEST(failed_replacement_is_undone_by_its_transaction) {
  Target target;
  const std::string before = engine_graphs::shown(target.graph);
  Graph wide("wide");
  const NodeId in = wide.add_input(text("in"));
  const NodeId node = add(wide, op("t::tanh"), {{in, 0}});
  const NodeId constant = wide.add_constant(text("c"));
  const NodeId last = add(wide, op("t::add", 2), {{node, 0}, {constant, 0}});
  wide.set_outputs(call(values({{last, 0}})));
  target.graph.begin(text("rule"));
  const auto made = replace_at(target.graph, wide, {{target.x, 0}}, {{target.exp, 0}},
                               {target.relu, target.exp}, target.sum);
  const Graph::Savepoint savepoint = target.graph.savepoint();
  replace_at(target.graph, Unary("t::neg").graph, {{made.back(), 0}}, {{target.sum, 0}},
             {target.sum}, target.graph.last());
  target.graph.rollback_to(savepoint);
  CHECK_EQ(target.graph.count(text("t::neg")), 0u);
  CHECK_EQ(target.graph.count(text("t::tanh")), 1u);
  target.graph.rollback();
  CHECK_EQ(engine_graphs::shown(target.graph), before);
}

// Single and multi-consumer inputs, one value into several places, closure from the outputs.
TEST(boundary_finds_its_nodes_and_replaces_them) {
  Target target;
  Boundary boundary(target.graph);
  const std::vector<Boundary::Place> x = {place(target.relu, 0)}, y = {place(target.sum, 1)};
  boundary.add_input(0, x);
  boundary.add_input(1, y);
  boundary.add_output(0, {target.sum, 0});
  const AliasAnalysis aliases(target.graph);
  const Boundary::Part part = boundary.resolve(aliases);
  CHECK((part.nodes == std::vector<NodeId>{target.relu, target.exp, target.sum}));
  Graph fused("fused");
  const NodeId a = fused.add_input(text("a")), b = fused.add_input(text("b"));
  fused.set_outputs(call(values({{add(fused, op("t::fused", 2), {{a, 0}, {b, 0}}), 0}})));
  AliasAnalysis changing(target.graph);
  replace(target.graph, fused, part, changing, Providers());
  CHECK_EQ(line(target.graph), "x() y() fused(x y ) output(fused ) ");
}

// Different producers, duplicate index, output set twice, missing port, missing index.
TEST(boundary_refuses_what_does_not_fit) {
  Target target;
  Boundary boundary(target.graph);
  const std::vector<Boundary::Place> mixed = {place(target.relu, 0), place(target.sum, 1)};
  CHECK_THROWS(boundary.add_input(0, mixed), EngineError,
               "input 0 of the boundary would be 'x' and 'y': one input, one value");
  const std::vector<Boundary::Place> nowhere = {place(target.relu, 1)};
  CHECK_THROWS(boundary.add_input(0, nowhere), EngineError,
               "node 'relu' reads 1 values, there is no number 1");
  CHECK_THROWS(boundary.add_input(0, {}), EngineError, "enters nowhere");
  const std::vector<Boundary::Place> x = {place(target.relu, 0)};
  boundary.add_input(1, x);
  CHECK_THROWS(boundary.add_input(1, x), EngineError, "has an input number 1 already");
  boundary.add_output(0, {target.exp, 0});
  CHECK_THROWS(boundary.add_output(0, {target.sum, 0}), EngineError,
               "has an output number 0 already");
  CHECK_THROWS(boundary.add_output(1, {target.exp, 0}), EngineError,
               "is an output of the boundary");
  CHECK_THROWS(boundary.add_output(1, {target.exp, 1}), EngineError, "is no value of graph");
  CHECK_THROWS(boundary.resolve(AliasAnalysis(target.graph)), EngineError,
               "the boundary has no input number 0");
}

// A boundary that is not self-contained is refused with its reason.
TEST(boundary_that_is_read_outside_is_refused) {
  Target target;
  const NodeId other = add(target.graph, op("t::other"), {{target.relu, 0}});
  target.graph.set_outputs(call(values({{target.sum, 0}, {other, 0}})));
  Boundary boundary(target.graph);
  const std::vector<Boundary::Place> x = {place(target.relu, 0)};
  boundary.add_input(0, x);
  boundary.add_output(0, {target.exp, 0});
  CHECK_THROWS(boundary.resolve(AliasAnalysis(target.graph)), EngineError,
               "because of 'relu': its output 0 is used outside by 'other'");
}

TEST(boundary_that_is_not_closed_is_refused) {
  Target target;
  Boundary boundary(target.graph);
  const std::vector<Boundary::Place> x = {place(target.relu, 0)};
  boundary.add_input(0, x);
  boundary.add_output(0, {target.sum, 0});
  CHECK_THROWS(boundary.resolve(AliasAnalysis(target.graph)), EngineError,
               "the boundary is not closed: 'y' enters it, but is no input of it");
}

// A replacement that would make a cycle is refused.
TEST(boundary_whose_replacement_would_make_a_cycle_is_refused) {
  Graph graph("g");
  const NodeId x = graph.add_input(text("x"));
  const NodeId a = add(graph, op("t::a"), {{x, 0}});
  const NodeId between = add(graph, op("t::between"), {{a, 0}});
  const NodeId b = add(graph, op("t::b", 2), {{x, 0}, {between, 0}});
  graph.set_outputs(call(values({{b, 0}})));
  Boundary boundary(graph);
  const std::vector<Boundary::Place> from = {place(a, 0), place(b, 0)}, late = {place(b, 1)};
  boundary.add_input(0, from);
  boundary.add_input(1, late);
  boundary.add_output(0, {a, 0});
  boundary.add_output(1, {b, 0});
  CHECK_THROWS(boundary.resolve(AliasAnalysis(graph)), EngineError, "it would make a cycle");
}

// What the anchor walks exponentially often: a stack of diamonds.
TEST(stacked_diamonds_are_walked_once) {
  Graph graph("g");
  const NodeId x = graph.add_input(text("x"));
  ValueId top{x, 0};
  const ValueId first = top;
  NodeId entry = kNoNode;
  for (int depth = 0; depth < 200; ++depth) {
    const NodeId left = add(graph, op("t::left"), {top});
    const NodeId right = add(graph, op("t::right"), {top});
    if (entry == kNoNode) entry = left;
    top = {add(graph, op("t::join", 2), {{left, 0}, {right, 0}}), 0};
  }
  graph.set_outputs(call(values({top})));
  Boundary boundary(graph);
  const std::vector<Boundary::Place> from = {place(entry, 0)};
  boundary.add_input(0, from);
  boundary.add_output(0, top);
  const Boundary::Part part = boundary.resolve(AliasAnalysis(graph));
  CHECK_EQ(part.nodes.size(), 600u);
  CHECK(part.inputs[0] == first);
}
