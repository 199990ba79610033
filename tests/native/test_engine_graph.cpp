// The graph of the engine: reading it, editing it, and undoing what was edited.
#include <algorithm>
#include <atomic>
#include <memory>
#include <thread>

#include "check.h"
#include "engine_graphs.h"

namespace {

using namespace bringup::engine;
using namespace engine_graphs;

std::string order_of(const Graph& graph) {
  std::vector<NodeId> nodes;
  for (NodeId node = graph.first(); node != kNoNode; node = graph.next(node)) nodes.push_back(node);
  return engine_graphs::names(graph, nodes);
}

TEST(nodes_values_and_users_are_reachable_from_each_other) {
  Small small;
  const Graph& graph = small.graph;
  CHECK_EQ(order_of(graph), " x relu exp mul output");
  CHECK_EQ(graph.size(), 5);
  CHECK_EQ(names(graph, graph.sorted_users(ValueId{small.x, 0})), " relu mul");
  CHECK(graph.inputs() == std::vector<ValueId>({{small.x, 0}}));
  CHECK(graph.outputs() == std::vector<ValueId>({{small.mul, 0}}));
  CHECK_EQ(graph.find_by_name("mul"), small.mul);
  CHECK_EQ(graph.find_by_name("gone"), kNoNode);
  CHECK(graph.is_before(small.relu, small.exp));
  CHECK_EQ(graph.count(text("t::relu")), 1);
  CHECK_EQ(graph.count(text("t::neg")), 0);
}

TEST(node_that_reads_a_value_twice_is_one_user) {
  Small small;
  const NodeId square = add(small.graph, op("t::mul", 2), {{small.x, 0}, {small.x, 0}});
  CHECK_EQ(names(small.graph, small.graph.sorted_users(ValueId{small.x, 0})), " relu mul mul_1");
  CHECK_EQ(small.graph.use_count({small.x, 0}), 4);
  small.graph.erase(square);
  CHECK_EQ(small.graph.use_count({small.x, 0}), 2);
}

TEST(names_are_made_unique_and_freed_by_an_erase) {
  Small small;
  const NodeId second = add(small.graph, op("t::relu"), {{small.x, 0}});
  const NodeId third = add(small.graph, op("t::relu"), {{small.x, 0}});
  CHECK_EQ(small.graph.name_text(second), "relu_1");
  CHECK_EQ(small.graph.name_text(third), "relu_2");
  small.graph.erase(second);
  const NodeId fourth = small.graph.insert(op("t::relu"), text("relu_1"), {}, 1, small.mul);
  CHECK_EQ(small.graph.name_text(fourth), "relu_1");
}

TEST(erasing_what_is_read_is_refused_and_names_the_reader) {
  Small small;
  CHECK_THROWS(small.graph.erase(small.relu), EngineError,
               "node 'relu' cannot be erased: 'exp' still reads it; replace its uses first");
  CHECK_THROWS(small.graph.erase(small.graph.last()), EngineError, "output node");
  CHECK_THROWS(small.graph.move_before(small.graph.last(), small.x), EngineError,
               "cannot be moved");
}

TEST(what_does_not_exist_is_refused) {
  Small small;
  CHECK_THROWS(small.graph.name(99), EngineError, "graph 'g' has no node number 99");
  CHECK_THROWS(small.graph.users({small.relu, 1}), EngineError, "'relu' has 1 outputs");
  CHECK_THROWS(add(small.graph, op("t::neg"), {{99, 0}}), EngineError, "no node number 99");
  CHECK_THROWS(add(small.graph, op("t::neg"), {{small.relu, 2}}), EngineError, "no number 2");
  small.graph.replace_all_uses({small.relu, 0}, {small.x, 0});
  small.graph.erase(small.relu);
  CHECK_THROWS(add(small.graph, op("t::neg"), {{small.relu, 0}}), EngineError,
               "node 'relu' was erased, so it cannot be read");
  CHECK_THROWS(small.graph.erase(small.relu), EngineError, "was erased");
  const std::vector<Argument> wrong(1, [] {
    Argument head;
    head.tag = Tag::kList;
    head.count = 4;
    return head;
  }());
  CHECK_THROWS(small.graph.rewire(small.exp, {wrong, 1}), EngineError, "not in prefix form");
}

TEST(replacing_uses_leaves_the_new_values_own_node_alone) {
  Small small;
  const NodeId neg = add(small.graph, op("t::neg"), {{small.relu, 0}}, small.exp);
  small.graph.replace_all_uses({small.relu, 0}, {neg, 0});
  CHECK_EQ(names(small.graph, small.graph.sorted_users(small.relu)), " neg");
  CHECK_EQ(names(small.graph, small.graph.sorted_users(neg)), " exp");
}

TEST(erase_dead_takes_what_only_the_dead_read_and_nothing_with_effects) {
  Small small;
  Operator writing = facts_of("t::write", 1);
  writing.mutates = {0};
  const NodeId write = add(small.graph, Operators::intern(writing), {{small.x, 0}});
  small.graph.set_outputs(call(values({{small.x, 0}})));
  small.graph.erase_dead(std::vector<NodeId>{small.mul, write, small.x});
  CHECK_EQ(order_of(small.graph), " x write output");
}

TEST(many_insertions_at_one_place_keep_the_order) {
  Small small;
  std::vector<NodeId> made;
  for (int i = 0; i < 500; ++i) {
    made.push_back(add(small.graph, op("t::neg"), {{small.x, 0}}, small.exp));
  }
  CHECK(std::is_sorted(made.begin(), made.end(), [&](NodeId one, NodeId other) {
    return small.graph.is_before(one, other);
  }));
  const std::span<const NodeId> found = small.graph.find(text("t::neg"));
  CHECK(std::vector<NodeId>(found.begin(), found.end()) == made);
  CHECK(small.graph.is_before(small.relu, made.front()));
  CHECK(small.graph.is_before(made.back(), small.exp));
}

TEST(a_value_with_many_readers_loses_them_in_linear_time) {
  Graph graph("wide");
  const NodeId x = graph.add_input(text("x"));
  const NodeId y = graph.add_input(text("y"));
  for (int i = 0; i < 50'000; ++i) add(graph, op("t::neg"), {{x, 0}});
  graph.replace_all_uses({x, 0}, {y, 0});
  CHECK_EQ(graph.users({x, 0}).size(), 0);
  CHECK_EQ(graph.users({y, 0}).size(), 50'000);
}

TEST(inputs_and_constants_stand_before_what_computes) {
  Small small;
  small.graph.add_constant(text("c"));
  small.graph.add_input(text("y"));
  small.graph.add_constant(text("c"));
  CHECK_EQ(order_of(small.graph), " x y c c_1 relu exp mul output");
}

TEST(transactions_do_not_nest_and_stamp_their_rule) {
  Small small;
  small.graph.begin(text("first"));
  CHECK_THROWS(small.graph.begin(text("second")), EngineError,
               "graph 'g' is already being edited by 'first'");
  const NodeId neg = add(small.graph, op("t::neg"), {{small.relu, 0}}, small.exp);
  small.graph.replace_all_uses({small.exp, 0}, {neg, 0});
  small.graph.erase(small.exp);
  const std::vector<Edit> edits = small.graph.commit();
  REQUIRE(edits.size() == 3);
  CHECK(edits[0].kind == EditKind::kInsert && edits[0].before == small.exp);
  CHECK(edits[1].kind == EditKind::kRewire && edits[1].node == small.mul);
  CHECK(small.graph.items_of(edits[1].old).front().value == ValueId({small.exp, 0}));
  CHECK(edits[2].kind == EditKind::kErase && edits[2].before == small.mul);
  CHECK_EQ(Strings::text(small.graph.rule(neg)), "first");
  CHECK_EQ(small.graph.rule(small.relu), kNoString);
  CHECK_THROWS(small.graph.commit(), EngineError, "not being edited");
  CHECK_THROWS(small.graph.rollback(), EngineError, "not being edited");
}

TEST(rollback_restores_nodes_order_arguments_and_metas) {
  Small small;
  small.graph.set_meta({small.mul, 0}, 7);
  const std::string before = shown(small.graph);
  small.graph.begin(text("rule"));
  const NodeId neg = add(small.graph, op("t::neg"), {{small.x, 0}}, small.relu);
  small.graph.replace_all_uses({small.exp, 0}, {neg, 0});
  small.graph.erase_dead(std::vector<NodeId>{small.exp});
  small.graph.move_before(neg, small.graph.last());
  small.graph.set_meta({small.mul, 0}, 8);
  CHECK(shown(small.graph) != before);
  small.graph.rollback();
  CHECK_EQ(shown(small.graph), before);
  CHECK(small.graph.alive(small.exp) && !small.graph.alive(neg));
}

TEST(control_edges_hold_their_nodes_and_are_undone) {
  Small small;
  Graph& graph = small.graph;
  const NodeId late = add(graph, op("t::neg"), {{small.x, 0}});
  const NodeId alone = add(graph, op("t::neg"), {{small.x, 0}}, small.relu);
  graph.begin(text("rule"));
  graph.set_control_inputs(late, std::vector<NodeId>{alone});
  CHECK_EQ(names(graph, graph.control_inputs(late)), " neg_1");
  CHECK_EQ(names(graph, graph.control_users(alone)), " neg");
  CHECK_THROWS(graph.erase(alone), EngineError, "'neg' has a control edge from it");
  CHECK_THROWS(graph.set_control_inputs(late, std::vector<NodeId>{late}), EngineError,
               "no control edge can lead from 'neg' (t::neg) to 'neg' (t::neg)");
  graph.erase(late);
  CHECK(graph.control_users(alone).empty());
  graph.rollback();
  CHECK(graph.alive(late) && graph.control_inputs(late).empty());
}

TEST(attributes_are_host_arguments_by_name) {
  Small small;
  Graph& graph = small.graph;
  const Argument three = Argument::of_int(3);
  graph.set_attribute(small.mul, text("axis"), {&three, 1});
  REQUIRE(graph.attribute(small.mul, text("axis")).has_value());
  CHECK_EQ(graph.attribute(small.mul, text("axis"))->front().integer, 3);
  const Argument value = Argument::of_value({small.x, 0});
  CHECK_THROWS(graph.set_attribute(small.mul, text("axis"), ArgumentSpan(&value, 1)), EngineError,
               "attribute 'axis' of node 'mul' cannot hold a value");
  graph.set_attribute(small.mul, text("axis"), {});
  CHECK(graph.attributes(small.mul).empty());
}

TEST(subgraphs_know_their_parent_and_have_one) {
  auto child = std::make_shared<Graph>("body");
  Small small;
  small.graph.set_subgraph(small.mul, text("then"), child);
  CHECK(child->parent_graph() == &small.graph);
  CHECK_EQ(child->parent_node(), small.mul);
  CHECK_THROWS(small.graph.set_subgraph(small.exp, text("else"), child), EngineError,
               "graph 'body' is a subgraph of 'g' already");
  auto parent = std::make_shared<Graph>("parent");
  const NodeId node = parent->add_input(text("x"));
  parent->set_subgraph(node, text("self"), std::make_shared<Graph>("inner"));
  const std::shared_ptr<Graph> inner = parent->subgraphs(node).front().graph;
  const NodeId deep = inner->add_input(text("x"));
  CHECK_THROWS(inner->set_subgraph(deep, text("loop"), parent), EngineError,
               "cannot be a subgraph of itself");
  small.graph.begin(text("rule"));
  small.graph.set_subgraph(small.mul, text("then"), nullptr);
  CHECK(child->parent_graph() == nullptr);
  small.graph.rollback();
  CHECK(child->parent_graph() == &small.graph);
}

TEST(a_graph_that_is_gone_is_no_parent) {
  auto child = std::make_shared<Graph>("body");
  {
    Small small;
    small.graph.set_subgraph(small.mul, text("then"), child);
  }
  CHECK(child->parent_graph() == nullptr);
}

TEST(another_operator_moves_the_node_to_another_type) {
  Small small;
  const ArgumentList list = values({{small.relu, 0}});
  small.graph.set_operator(small.exp, op("t::exp2"), call(list));
  CHECK_EQ(small.graph.count(text("t::exp")), 0);
  CHECK(small.graph.find(text("t::exp")).empty());
  CHECK_EQ(small.graph.find(text("t::exp2")).front(), small.exp);
}

// A host that counts what it is asked.
class CountingHost : public Host {
 public:
  std::optional<TensorDesc> describe(const Graph&, ValueId) override {
    ++asked;
    TensorDesc desc;
    desc.sizes = {{4}};
    return desc;
  }
  std::optional<ConstantData> constant(const Graph&, NodeId) override {
    ++asked;
    return std::nullopt;
  }
  bool draws_random(const Graph&, NodeId) override { return false; }
  StringId name(const Graph&, NodeId node) override {
    if (node > 4) return kNoString;
    ++named;
    return engine_graphs::text(node % 2 == 0 ? "even" : "odd");
  }
  std::string text(const Graph&, uint32_t object) override { return std::to_string(object); }
  int asked = 0;
  std::atomic<int> named = 0;
};

TEST(the_host_is_asked_once_until_the_description_is_changed) {
  Small small;
  const auto host = std::make_shared<CountingHost>();
  CHECK(small.graph.desc({small.mul, 0}) == nullptr);
  small.graph.set_host(host);
  CHECK(small.graph.desc({small.mul, 0}) == nullptr);  // nothing is known: nobody to ask
  small.graph.set_meta({small.mul, 0}, 1);
  CHECK_EQ(small.graph.desc({small.mul, 0})->sizes.front().number, 4);
  CHECK(small.graph.desc({small.mul, 0}) != nullptr);
  CHECK_EQ(host->asked, 1);
  small.graph.set_meta({small.mul, 0}, 2);
  CHECK(small.graph.desc({small.mul, 0}) != nullptr);
  CHECK_EQ(host->asked, 2);
  const NodeId constant = small.graph.add_constant(text("c"));
  CHECK(small.graph.payload(constant) == nullptr);
  CHECK(small.graph.payload(constant) == nullptr);
  CHECK_EQ(host->asked, 3);
  small.graph.set_payload(constant, {.sizes = {2}});
  CHECK_EQ(small.graph.payload(constant)->sizes.front(), 2);
  CHECK_THROWS(small.graph.set_payload(small.mul, {}), EngineError, "is no constant");
}

TEST(a_random_operator_is_pure_only_if_the_host_says_that_it_is_idle) {
  Small small;
  Operator random = facts_of("t::dropout", 1);
  random.random = true;
  const NodeId node = add(small.graph, Operators::intern(random), {{small.x, 0}});
  CHECK(!small.graph.pure(node));
  small.graph.set_host(std::make_shared<CountingHost>());
  CHECK(small.graph.pure(node));
}

TEST(several_threads_may_read_while_nobody_writes) {
  Small small;
  small.graph.set_host(std::make_shared<CountingHost>());
  for (int i = 0; i < 100; ++i) {
    const NodeId node = add(small.graph, op("t::neg"), {{small.x, 0}}, small.relu);
    small.graph.set_meta({node, 0}, 1);
    if (i % 3 == 0) small.graph.move_before(node, small.mul);
  }
  std::vector<std::jthread> threads;
  std::vector<std::vector<NodeId>> seen(4);
  for (auto& mine : seen) {
    threads.emplace_back([&mine, &small] {
      const std::span<const NodeId> found = small.graph.find(text("t::neg"));
      mine.assign(found.begin(), found.end());
    });
  }
  threads.clear();
  for (const auto& mine : seen) CHECK(mine.size() == 100 && mine == seen.front());
}

// x and `count` calls one after the other, appended.
std::shared_ptr<CountingHost> append_chain(Graph& graph, int count) {
  auto host = std::make_shared<CountingHost>();
  graph.set_host(host);
  NodeId last = graph.append(Operators::input(), {}, 1);
  for (int i = 0; i < count; ++i) {
    const ArgumentList list = values({{last, 0}});
    last = graph.append(op("t::relu"), call(list), 1);
  }
  graph.set_outputs(call(values({{last, 0}})));
  return host;
}

TEST(appended_nodes_are_like_inserted_ones_and_named_when_somebody_asks) {
  Graph graph("g");
  const auto host = append_chain(graph, 3);
  CHECK_EQ(graph.size(), 5);
  CHECK_EQ(graph.count(text("t::relu")), 3);
  CHECK_EQ(graph.use_count({2, 0}), 1);
  CHECK(graph.inputs() == std::vector<ValueId>({{1, 0}}));
  CHECK_EQ(host->named, 0);
  CHECK_EQ(graph.name_text(2), "even");
  CHECK_EQ(graph.name_text(2), "even");
  CHECK_EQ(host->named, 1);
  CHECK_EQ(order_of(graph), " odd even odd_1 even_1 output");
  CHECK_EQ(graph.find_by_name("even_1"), 4);
}

TEST(an_erased_node_keeps_the_name_that_was_not_asked_before) {
  Graph graph("g");
  append_chain(graph, 3);
  graph.begin(text("rule"));
  graph.replace_all_uses({4, 0}, {3, 0});
  graph.erase(4);
  CHECK_EQ(graph.name_text(4), "even");
  graph.rollback();
  CHECK_EQ(order_of(graph), " odd even_1 odd_1 even output");
  CHECK_EQ(graph.find_by_name("even"), 4);
}

TEST(a_new_node_beside_appended_ones_is_named_when_somebody_asks_and_differs_from_all) {
  Graph graph("g");
  const auto host = append_chain(graph, 3);
  const NodeId made = graph.insert(op("t::relu"), text("odd"), {}, 1, graph.last());
  const NodeId gone = graph.insert(op("t::relu"), text("even"), {}, 1, graph.last());
  graph.erase(gone);
  CHECK_EQ(host->named, 0);
  CHECK_EQ(Strings::text(graph.wanted_name(made)), "odd");
  CHECK_EQ(graph.name_text(made), "odd_2");
  CHECK_EQ(Strings::text(graph.wanted_name(made)), "odd_2");
  CHECK_EQ(graph.name_text(gone), "even_2");
  CHECK_EQ(order_of(graph), " odd even odd_1 even_1 odd_2 output");
}

TEST(several_threads_may_ask_for_names_at_once) {
  Graph graph("g");
  append_chain(graph, 200);
  std::vector<std::string> seen(4);
  std::vector<std::jthread> threads;
  for (std::string& mine : seen) {
    threads.emplace_back([&] {
      if (graph.find_by_name("node_40") != kNoNode) mine = order_of(graph);
    });
  }
  threads.clear();
  for (const std::string& mine : seen) CHECK(!mine.empty() && mine == seen.front());
}

}  // namespace
