// Alias analysis, hoisting and ordering in the engine.
#include "check.h"
#include "engine/analysis/alias_analysis.h"
#include "engine/analysis/order.h"
#include "engine_graphs.h"

namespace {

using namespace bringup::engine;
using namespace engine_graphs;

const Operator* writing() {
  Operator facts = facts_of("t::write_", 1);
  facts.mutates = {0};
  return Operators::intern(facts);
}

const Operator* viewing() {
  Operator facts = facts_of("t::view", 1);
  facts.aliases = {0};
  return Operators::intern(facts);
}

const Operator* unknown() {
  Operator facts = facts_of("t::unknown", 1);
  facts.opaque = true;
  return Operators::intern(facts);
}

TEST(a_graph_without_writers_is_quiet) {
  Small small;
  const AliasAnalysis aliases(small.graph);
  CHECK(aliases.quiet());
  CHECK_EQ(aliases.writer_of({small.x, 0}), kNoNode);
  CHECK_EQ(aliases.writer_between({small.x, 0}, small.x, small.mul), kNoNode);
}

TEST(views_share_the_storage_of_what_they_view) {
  Graph graph("g");
  const NodeId x = graph.add_input(text("x"));
  const NodeId view = add(graph, viewing(), {{x, 0}});
  const NodeId again = add(graph, viewing(), {{view, 0}});
  const NodeId copy = add(graph, op("t::copy"), {{again, 0}});
  const AliasAnalysis aliases(graph, true);
  CHECK_EQ(aliases.root({again, 0}), x);
  CHECK_EQ(aliases.root({copy, 0}), copy);
  CHECK(aliases.quiet());
}

TEST(a_write_through_a_view_writes_what_is_viewed) {
  Graph graph("g");
  const NodeId x = graph.add_input(text("x"));
  const NodeId view = add(graph, viewing(), {{x, 0}});
  const NodeId first = add(graph, op("t::neg"), {{x, 0}});
  const NodeId write = add(graph, writing(), {{view, 0}});
  const NodeId last = add(graph, op("t::neg"), {{x, 0}});
  const AliasAnalysis aliases(graph);
  CHECK(!aliases.quiet());
  CHECK_EQ(aliases.writer_of({x, 0}), write);
  CHECK_EQ(aliases.writer_of({first, 0}), kNoNode);
  CHECK_EQ(aliases.writer_between({x, 0}, first, last), write);
  CHECK_EQ(aliases.writer_between({x, 0}, last, graph.last()), kNoNode);
  CHECK_EQ(aliases.writer_between({first, 0}, first, last), kNoNode);
}

TEST(an_opaque_node_may_write_anything_that_crosses_it) {
  Graph graph("g");
  const NodeId x = graph.add_input(text("x"));
  const NodeId y = graph.add_input(text("y"));
  const NodeId call_ = add(graph, unknown(), {{y, 0}});
  const NodeId neg = add(graph, op("t::neg"), {{x, 0}});
  const AliasAnalysis aliases(graph);
  CHECK_EQ(aliases.writer_between({x, 0}, x, neg), call_);
  CHECK_EQ(aliases.writer_of({x, 0}), kNoNode);
}

TEST(writers_of_what_was_replaced_are_writers_of_the_new_value) {
  Graph graph("g");
  const NodeId x = graph.add_input(text("x"));
  const NodeId old = add(graph, op("t::neg"), {{x, 0}});
  const NodeId now = add(graph, op("t::neg"), {{x, 0}});
  const NodeId write = add(graph, writing(), {{now, 0}});
  AliasAnalysis aliases(graph);
  CHECK_EQ(aliases.writer_of({old, 0}), kNoNode);
  aliases.replaced({old, 0}, {now, 0});
  CHECK_EQ(aliases.writer_of({old, 0}), write);
  CHECK_EQ(aliases.writer_of({now, 0}), write);
}

TEST(a_writer_recorded_later_counts) {
  Small small;
  AliasAnalysis aliases(small.graph);
  const NodeId write = add(small.graph, writing(), {{small.relu, 0}});
  aliases.record(write);
  CHECK_EQ(aliases.writer_of({small.relu, 0}), write);
}

std::string plan_text(const Graph& graph, std::variant<std::vector<NodeId>, std::string> plan) {
  if (const auto* reason = std::get_if<std::string>(&plan)) return *reason;
  return names(graph, std::get<std::vector<NodeId>>(plan));
}

TEST(hoisting_takes_what_the_late_nodes_need_in_order) {
  Graph graph("g");
  const NodeId x = graph.add_input(text("x"));
  const NodeId early = add(graph, op("t::early"), {{x, 0}});
  const NodeId one = add(graph, op("t::one"), {{x, 0}});
  const NodeId two = add(graph, op("t::two"), {{one, 0}});
  const AliasAnalysis aliases(graph);
  const std::vector<NodeId> wanted = {two, one, x};
  CHECK_EQ(plan_text(graph, hoist_plan(graph, wanted, early, {}, aliases)), " one two");
  CHECK_EQ(plan_text(graph, hoist_plan(graph, wanted, early, std::vector<NodeId>{one}, aliases)),
           "it would make a cycle: what it needs depends on 'one', which needs it");
}

TEST(hoisting_is_refused_over_effects_and_writes) {
  Graph graph("g");
  const NodeId x = graph.add_input(text("x"));
  const NodeId early = add(graph, op("t::early"), {{x, 0}});
  const NodeId write = add(graph, writing(), {{x, 0}});
  const NodeId reader = add(graph, op("t::one"), {{x, 0}});
  const AliasAnalysis aliases(graph);
  const std::vector<NodeId> read = {reader};
  CHECK_EQ(plan_text(graph, hoist_plan(graph, read, early, {}, aliases)),
           "'one' would have to run before 'write_', a writer of its input");
  const std::vector<NodeId> written = {write};
  CHECK_EQ(plan_text(graph, hoist_plan(graph, written, early, {}, aliases)),
           "'write_' (t::write_) would have to run earlier, but it has side effects");
}

TEST(a_graph_is_sorted_topologically_and_a_cycle_is_named) {
  Small small;
  Graph& graph = small.graph;
  const NodeId late = add(graph, op("t::neg"), {{small.x, 0}});
  graph.replace_all_uses({small.relu, 0}, {late, 0});
  CHECK(!topological_sort(graph).has_value());
  CHECK(graph.is_before(late, small.exp));
  CHECK(!topological_sort(graph).has_value());
  const ArgumentList own = values({{small.mul, 0}});
  graph.rewire(late, call(own));
  const auto failure = topological_sort(graph);
  REQUIRE(failure.has_value());
  CHECK_EQ(graph.name_text(failure->node), "neg");
  CHECK(failure->reason.find("it would make a cycle") == 0);
}

TEST(control_edges_count_when_a_graph_is_sorted_topologically) {
  Small small;
  Graph& graph = small.graph;
  const NodeId late = add(graph, op("t::neg"), {{small.x, 0}});
  graph.set_control_inputs(small.relu, std::vector<NodeId>{late});
  CHECK(!topological_sort(graph).has_value());
  CHECK(graph.is_before(late, small.relu));
}

}  // namespace
