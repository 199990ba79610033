// Matching without Python: what C and C++ passes use. The Python tests compare every answer with
// the oracle in Python; here is what they cannot reach.
#include "check.h"
#include "engine/graph/text.h"
#include "patterns.h"

namespace {

using namespace bringup::engine;
using namespace engine_graphs;

const Operator* sum() { return Operators::intern(commutative("t::add")); }

ValueId first(NodeId node) { return {node, 0}; }

TEST(chain_is_found_in_graph_order_with_its_boundary) {
  Small small;
  const auto pattern = pattern_of([](Graph& graph, Pattern&) {
    const NodeId x = graph.add_input(text("x"));
    const NodeId relu = add(graph, op("t::relu"), {first(x)});
    return first(add(graph, op("t::exp"), {first(relu)}));
  });
  const AliasAnalysis aliases(small.graph);
  Matcher matcher(Program::compile(pattern), small.graph, aliases);
  const auto found = matcher.next();
  REQUIRE(found.has_value());
  CHECK_EQ(names(small.graph, found->nodes), " relu exp");
  CHECK_EQ(found->before, small.mul);
  CHECK(found->bound->input(0, 0) == (ValueId{small.x, 0}));
  CHECK(!matcher.next().has_value());
}

TEST(refusal_says_where_and_why) {
  Small small;
  const auto pattern = pattern_of([](Graph& graph, Pattern&) {
    const NodeId x = graph.add_input(text("x"));
    const NodeId neg = add(graph, op("t::neg"), {first(x)});
    return first(add(graph, op("t::exp"), {first(neg)}));
  });
  std::optional<NearMiss> miss;
  CHECK_EQ(matches(pattern, small.graph, &miss), "");
  REQUIRE(miss.has_value());
  CHECK_EQ(miss->text(),
           "pattern: 1 of 2 nodes matched, at 'relu': another operator (expected t::neg, got "
           "t::relu)");
}

TEST(number_of_an_open_argument_matches_a_constant_with_a_tolerance) {
  Graph graph("g");
  const NodeId x = graph.add_input(text("x"));
  for (const double number : {0.0, 1e-7, 0.5}) {
    ArgumentList list;
    list.put(Argument::of_value(first(x)));
    list.put(Argument::of_float(number));
    graph.insert(sum(), text("add"), call(list), 1, graph.last());
  }
  const auto pattern = pattern_of([](Graph& made, Pattern& wanted) {
    const NodeId input = made.add_input(text("x"));
    ConstantArgument zero;
    zero.values = {{true, 0, 0}};
    zero.atol = 1e-6;
    wanted.open[7] = {zero, "constant(0, atol=1e-06)"};
    ArgumentList list;
    list.put(Argument::of_value(first(input)));
    list.put(Argument::of_opaque(7));
    return first(made.insert(sum(), text("add"), call(list), 1, made.last()));
  });
  std::optional<NearMiss> miss;
  CHECK_EQ(matches(pattern, graph, &miss), " add\n add_1\n");
  REQUIRE(miss.has_value());
  CHECK_EQ(miss->got, "0.5");
}

// Stacked diamonds: each level reads the level below twice.
ValueId diamonds(Graph& graph, ValueId value, int depth) {
  for (int i = 0; i < depth; ++i) {
    const NodeId left = add(graph, op("t::relu"), {value});
    const NodeId right = add(graph, op("t::relu"), {value});
    value = first(add(graph, sum(), {first(left), first(right)}));
  }
  return value;
}

TEST(stacked_diamonds_are_decided_whether_they_fit_or_not) {
  for (const char* bottom : {"t::exp", "t::neg"}) {
    Graph graph("g");
    const NodeId x = graph.add_input(text("x"));
    const NodeId lowest = add(graph, op(bottom), {first(x)});
    graph.set_outputs(call(values({diamonds(graph, first(lowest), 20)})));
    const auto pattern = pattern_of([](Graph& made, Pattern&) {
      const NodeId input = made.add_input(text("x"));
      return diamonds(made, first(add(made, op("t::exp"), {first(input)})), 20);
    });
    std::optional<NearMiss> miss;
    CHECK_EQ(!matches(pattern, graph, &miss).empty(), std::string_view(bottom) == "t::exp");
    REQUIRE(miss.has_value());
    CHECK_EQ(miss->reason.find("gave up"), std::string::npos);
  }
}

TEST(pattern_that_returns_its_own_input_finds_nothing_there_and_says_why) {
  Small small;
  const auto own =
      pattern_of([](Graph& graph, Pattern&) { return first(graph.add_input(text("x"))); });
  std::optional<NearMiss> miss;
  CHECK_EQ(matches(own, small.graph, &miss), "");
  REQUIRE(miss.has_value());
  CHECK_EQ(miss->text(),
           "pattern: the pattern returns its own input here: only what an operator computes can be "
           "replaced");
  const auto both = pattern_of([](Graph& graph, Pattern&) {
    return first(add(graph, op("t::relu"), {first(graph.add_input(text("x")))}));
  });
  const NodeId relu = both->graph->outputs().front().node;
  const_cast<Graph&>(*both->graph)
      .set_outputs(call(values({first(relu), both->graph->inputs()[0]})));
  CHECK_EQ(matches(both, small.graph, &miss), "");
  REQUIRE(miss.has_value());
  CHECK_EQ(miss->text(),
           "pattern: 1 of 1 nodes matched, at 'x': the pattern returns its own input here: only "
           "what an operator computes can be replaced");
}

TEST(pattern_that_cannot_be_meant_is_refused) {
  const auto refused = [](auto make, const char* words) {
    CHECK_THROWS(Program::compile(pattern_of(make)), EngineError, words);
  };
  refused(
      [](Graph& graph, Pattern&) {
        const NodeId x = graph.add_input(text("x"));
        graph.add_input(text("y"));
        return first(add(graph, op("t::relu"), {first(x)}));
      },
      "input 1 of pattern 'pattern' is used nowhere in it");
  refused(
      [](Graph& graph, Pattern&) {
        const NodeId x = graph.add_input(text("x"));
        const NodeId late = add(graph, op("t::relu"), {first(x)});
        return first(add(graph, op("t::exp"), {first(late)}, late));
      },
      "reads 'relu', which comes after it");
  refused(
      [](Graph& graph, Pattern&) {
        const NodeId x = graph.add_input(text("x"));
        ValueId value = first(add(graph, op("t::relu"), {first(x)}));
        for (int i = 0; i < 9; ++i) value = first(add(graph, op(kOneOf, 2), {value, value}));
        return value;
      },
      "more than 256 alternatives");
}

TEST(numbers_read_as_python_writes_them) {
  CHECK_EQ(float_text(0.1), "0.1");
  CHECK_EQ(float_text(1), "1.0");
  CHECK_EQ(float_text(100000), "100000.0");
  CHECK_EQ(float_text(1e16), "1e+16");
  CHECK_EQ(float_text(123456789012345680.0), "1.2345678901234568e+17");
  CHECK_EQ(float_text(0.0001), "0.0001");
  CHECK_EQ(float_text(0.00001234), "1.234e-05");
  CHECK_EQ(float_text(-2.5e-300), "-2.5e-300");
  CHECK_EQ(string_text("it's"), "\"it's\"");
  CHECK_EQ(string_text("a\n\\"), "'a\\n\\\\'");
}

}  // namespace
