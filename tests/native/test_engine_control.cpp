// Control edges of patterns, of what is replaced, and of replacements; through the C API too.
#include "check.h"
#include "engine/analysis/control.h"
#include "engine/analysis/order.h"
#include "engine/rewrite/rewriter.h"
#include "engine_pieces.h"
#include "patterns.h"

namespace {

namespace en = bringup::engine;
using engine_graphs::call;
using engine_graphs::names;
using engine_graphs::op;
using engine_graphs::text;
using engine_graphs::values;

// join(first(x), second(y)), returned. Tests add the edges.
struct Pair {
  std::shared_ptr<en::Graph> graph = std::make_shared<en::Graph>("pair");
  en::NodeId x = graph->add_input(text("x"));
  en::NodeId y = graph->add_input(text("y"));
  en::NodeId first = engine_graphs::add(*graph, op("t::first"), {{x, 0}});
  en::NodeId second = engine_graphs::add(*graph, op("t::second"), {{y, 0}});
  en::NodeId join = engine_graphs::add(*graph, op("t::join", 2), {{first, 0}, {second, 0}});
  Pair() { graph->set_outputs(call(values({{join, 0}}))); }
};

std::shared_ptr<en::Pattern> pattern_in(const Pair& pair) {
  auto pattern = std::make_shared<en::Pattern>();
  pattern->name = "pair";
  pattern->graph = pair.graph;
  return pattern;
}

std::string edges(const en::Graph& graph) {
  std::string all;
  for (en::NodeId node = graph.first(); node != en::kNoNode; node = graph.next(node)) {
    const std::vector<en::NodeId> before = graph.control_inputs(node);
    if (before.empty()) continue;
    all += std::string(graph.name_text(node)) + ":" + names(graph, before) + "; ";
  }
  return all;
}

TEST(control_edge_of_a_pattern_must_be_there) {
  Pair wanted, found;
  wanted.graph->add_control_edge(wanted.first, wanted.second);
  std::optional<en::NearMiss> miss;
  CHECK_EQ(engine_graphs::matches(pattern_in(wanted), *found.graph, &miss), "");
  REQUIRE(miss.has_value());
  CHECK_EQ(miss->text(),
           "pair: 2 of 3 nodes matched, at 'second': a control edge is missing (expected from "
           "'first', got from none)");
  found.graph->add_control_edge(found.second, found.first);
  CHECK_EQ(engine_graphs::matches(pattern_in(wanted), *found.graph), "");
  found.graph->set_control_inputs(found.first, {});
  found.graph->add_control_edge(found.first, found.second);
  CHECK_EQ(engine_graphs::matches(pattern_in(wanted), *found.graph), " first second join\n");
}

TEST(control_edge_inside_of_a_match_must_be_stated_or_implied) {
  Pair wanted, found;
  found.graph->add_control_edge(found.first, found.join);
  CHECK_EQ(engine_graphs::matches(pattern_in(wanted), *found.graph), " first second join\n");
  found.graph->add_control_edge(found.first, found.second);
  std::optional<en::NearMiss> miss;
  CHECK_EQ(engine_graphs::matches(pattern_in(wanted), *found.graph, &miss), "");
  CHECK_EQ(miss->reason, "it runs after 'first' by a control edge that the pattern does not have");
}

TEST(control_edge_at_alternatives_is_refused) {
  Pair wanted;
  const en::NodeId choice =
      engine_graphs::add(*wanted.graph, op(en::kOneOf, 2), {{wanted.first, 0}, {wanted.x, 0}});
  const en::NodeId last = engine_graphs::add(*wanted.graph, op("t::last"), {{choice, 0}});
  wanted.graph->set_outputs(call(values({{wanted.join, 0}, {last, 0}})));
  wanted.graph->add_control_edge(wanted.second, choice);
  CHECK_THROWS(en::Program::compile(pattern_in(wanted)), en::EngineError,
               "has a control edge at 'one_of', which stands for alternatives");
}

// before -> a -> b -> after, where b reads a and the rest are edges.
struct Around {
  en::Graph graph{"around"};
  en::NodeId x = graph.add_input(text("x"));
  en::NodeId before = engine_graphs::add(graph, op("t::before"), {{x, 0}});
  en::NodeId a = engine_graphs::add(graph, op("t::a"), {{x, 0}});
  en::NodeId b = engine_graphs::add(graph, op("t::b"), {{a, 0}});
  en::NodeId after = engine_graphs::add(graph, op("t::after"), {{x, 0}});
  en::NodeId end = engine_graphs::add(graph, op("t::end"), {{b, 0}});
  Around() {
    graph.add_control_edge(before, a);
    graph.add_control_edge(b, after);
    graph.set_outputs(call(values({{end, 0}, {before, 0}, {after, 0}})));
  }

  void replace_by(const en::Graph& replacement) {
    const std::vector<en::ValueId> inputs = {{x, 0}}, outputs = {{b, 0}};
    const std::vector<en::NodeId> nodes = {a, b};
    en::AliasAnalysis aliases(graph);
    en::replace(graph, replacement, en::Site{inputs, outputs, nodes, after}, aliases, {});
  }
};

TEST(control_edges_are_kept_at_what_replaces_their_nodes) {
  Around around;
  en::Graph replacement("two");
  const en::NodeId in = replacement.add_input(text("in"));
  const en::NodeId c = engine_graphs::add(replacement, op("t::c"), {{in, 0}});
  const en::NodeId d = engine_graphs::add(replacement, op("t::d"), {{in, 0}});
  const en::NodeId e = engine_graphs::add(replacement, op("t::e", 2), {{c, 0}, {d, 0}});
  replacement.set_outputs(call(values({{e, 0}})));
  replacement.add_control_edge(c, d);
  replacement.add_control_edge(in, d);  // x is there from the start
  around.replace_by(replacement);
  CHECK(!around.graph.alive(around.a) && !around.graph.alive(around.b));
  CHECK_EQ(edges(around.graph), "c: before; d: c; after: e; ");
}

TEST(removed_nodes_leave_the_order_of_the_others) {
  Around around;
  en::Graph identity("identity");
  identity.set_outputs(call(values({{identity.add_input(text("in")), 0}})));
  around.replace_by(identity);
  CHECK_EQ(edges(around.graph), "after: before; end: before; ");
}

TEST(part_that_would_have_to_run_before_and_after_a_node_is_refused) {
  Around around;
  around.graph.add_control_edge(around.a, around.after);
  around.graph.set_control_inputs(around.b, std::vector<en::NodeId>{around.after});
  around.graph.set_control_inputs(around.after, std::vector<en::NodeId>{around.a});
  CHECK(!en::topological_sort(around.graph).has_value());
  en::Boundary boundary(around.graph);
  boundary.add_input_value(0, {around.x, 0});
  boundary.add_output(0, {around.b, 0});
  CHECK_THROWS(boundary.resolve(en::AliasAnalysis(around.graph)), en::EngineError,
               "it would make a cycle: what it needs depends on 'after', which needs it");
}

TEST(dead_nodes_that_wait_for_each_other_are_erased_in_any_order) {
  Pair pair;
  pair.graph->add_control_edge(pair.first, pair.second);
  pair.graph->set_outputs(call(values({{pair.x, 0}})));
  pair.graph->erase_dead(std::vector<en::NodeId>{pair.join, pair.first, pair.second});
  CHECK_EQ(pair.graph->size(), 3u);
}

// Through the C API

using engine_api::api;
using engine_pieces::find;
using engine_pieces::Finder;

std::string c_names(bringup_ir_graph graph, const bringup_ir_node* nodes, uint32_t count) {
  std::string all;
  for (uint32_t i = 0; i < count; ++i) {
    const char* name = "";
    CHECK_EQ(api().node_name(graph, nodes[i], &name), BRINGUP_ENGINE_OK);
    all += std::string(name) + " ";
  }
  return all;
}

bringup_ir_value linked(bringup_ir_graph graph, bool has_edge) {
  const bringup_ir_value x = engine_api::input(graph, "x");
  const bringup_ir_value relu = engine_api::add(graph, "t::relu", {x});
  const bringup_ir_value exp = engine_api::add(graph, "t::exp", {x});
  if (has_edge) CHECK_EQ(api().add_control_edge(graph, relu.node, exp.node), BRINGUP_ENGINE_OK);
  return engine_api::add(graph, "t::join", {relu, exp});
}

TEST(control_edges_in_c_are_added_read_and_removed) {
  engine_api::Chain chain;
  const bringup_ir_node* nodes = nullptr;
  uint32_t count = 0;
  CHECK_EQ(api().add_control_edge(chain.graph, chain.x.node, chain.exp.node), BRINGUP_ENGINE_OK);
  CHECK_EQ(api().add_control_edge(chain.graph, chain.relu.node, chain.exp.node), BRINGUP_ENGINE_OK);
  CHECK_EQ(api().node_control_inputs(chain.graph, chain.exp.node, &nodes, &count),
           BRINGUP_ENGINE_OK);
  CHECK_EQ(c_names(chain.graph, nodes, count), "x relu ");
  CHECK_EQ(api().node_control_users(chain.graph, chain.relu.node, &nodes, &count),
           BRINGUP_ENGINE_OK);
  CHECK_EQ(c_names(chain.graph, nodes, count), "exp ");
  CHECK_EQ(api().remove_control_edge(chain.graph, chain.relu.node, chain.exp.node),
           BRINGUP_ENGINE_OK);
  CHECK_EQ(api().remove_control_edge(chain.graph, chain.relu.node, chain.exp.node),
           BRINGUP_ENGINE_INVALID);
  CHECK_EQ(std::string(api().last_error()), "no control edge leads from 'relu' to 'exp'");
}

TEST(control_edges_in_c_that_cannot_be_are_refused) {
  engine_api::Chain chain;
  CHECK_EQ(api().add_control_edge(chain.graph, chain.exp.node, chain.x.node),
           BRINGUP_ENGINE_INVALID);
  CHECK_EQ(std::string(api().last_error()),
           "no control edge can lead from 'exp' (t::exp) to 'x' (ir::input)");
  CHECK_EQ(api().add_control_edge(chain.graph, chain.exp.node, 1000), BRINGUP_ENGINE_EXPIRED);
  CHECK_EQ(api().add_control_edge(chain.graph + 1000, 0, 0), BRINGUP_ENGINE_EXPIRED);
  CHECK_EQ(api().node_control_inputs(chain.graph, chain.exp.node, nullptr, nullptr),
           BRINGUP_ENGINE_INVALID);
  bringup_ir_graph made = 0;
  bringup_ir_value outer{};
  CHECK_EQ(api().graph_create("made", &made), BRINGUP_ENGINE_OK);
  const bringup_ir_value own = engine_api::add(made, "t::own", {engine_api::input(made, "in")});
  CHECK_EQ(api().add_outer(made, chain.graph, chain.relu, &outer), BRINGUP_ENGINE_OK);
  CHECK_EQ(api().add_control_edge(made, outer.node, own.node), BRINGUP_ENGINE_INVALID);
  CHECK(std::string(api().last_error()).find("let it be an input of the replacement") !=
        std::string::npos);
  CHECK_EQ(api().graph_release(made), BRINGUP_ENGINE_OK);
}

TEST(pattern_in_c_compares_its_control_edges) {
  for (const bool has_edge : {false, true}) {
    bringup_ir_graph graph = 0;
    CHECK_EQ(api().graph_create("g", &graph), BRINGUP_ENGINE_OK);
    engine_api::returns(graph, {linked(graph, has_edge)});
    Finder finder;
    finder.build = [](bringup_ir_graph wanted) { return linked(wanted, true); };
    const engine_pieces::Found found = find(finder, graph);
    CHECK_EQ(found.count, has_edge ? 1u : 0u);
    CHECK_EQ(found.near_miss.find("a control edge is missing") != std::string::npos, !has_edge);
    CHECK_EQ(api().graph_release(graph), BRINGUP_ENGINE_OK);
  }
}

TEST(pattern_in_c_whose_edges_make_a_cycle_is_refused) {
  engine_api::Chain chain;
  Finder finder;
  finder.build = [](bringup_ir_graph wanted) {
    const bringup_ir_value relu =
        engine_api::add(wanted, "t::relu", {engine_api::input(wanted, "x")});
    const bringup_ir_value exp = engine_api::add(wanted, "t::exp", {relu});
    CHECK_EQ(api().add_control_edge(wanted, exp.node, relu.node), BRINGUP_ENGINE_OK);
    return exp;
  };
  CHECK(find(finder, chain.graph)
            .failure.find("pattern 'wanted' cannot run: at 'relu' it would "
                          "make a cycle") != std::string::npos);
}

}  // namespace
