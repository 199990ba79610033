// Random edits within transactions: what was rolled back is as it was, and the indices agree with
// the arguments whatever happened.
#include <algorithm>
#include <map>
#include <memory>
#include <random>

#include "check.h"
#include "engine/analysis/order.h"
#include "engine_graphs.h"

namespace {

using namespace bringup::engine;
using namespace engine_graphs;

class Fuzzer {
 public:
  explicit Fuzzer(uint32_t seed) : random_(seed) {
    for (int i = 0; i < 3; ++i) graph_.add_input(text("x"));
    for (int i = 0; i < 30; ++i) insert();
    graph_.set_outputs(random_call());
  }

  Graph& graph() { return graph_; }

  // One edit, which may be refused.
  void edit() {
    try {
      switch (below(12)) {
        case 0:
        case 1:
        case 2:
          return insert();
        case 3:
          return graph_.rewire(node(), random_call());
        case 4:
          return graph_.replace_all_uses(value(), value());
        case 5:
          return graph_.erase(node());
        case 6:
          return graph_.erase_dead(std::vector<NodeId>{node(), node()});
        case 7:
          return graph_.move_before(node(), node());
        case 8:
          return graph_.set_control_inputs(node(), random_nodes());
        case 9:
          return set_attribute();
        case 10:
          return graph_.set_meta(value(), below(1000));
        default:
          return set_subgraph();
      }
    } catch (const EngineError&) {
      // Refused: as good as not asked, which the comparison shows.
    }
  }

  uint32_t below(uint32_t limit) { return random_() % limit; }

 private:
  NodeId node() {
    NodeId found = graph_.first();
    for (uint32_t steps = below(static_cast<uint32_t>(graph_.size())); steps > 0; --steps) {
      found = graph_.next(found);
    }
    return found;
  }

  ValueId value() {
    for (;;) {
      const NodeId found = node();
      if (graph_.output_count(found) > 0) return {found, below(graph_.output_count(found))};
    }
  }

  std::vector<NodeId> random_nodes() {
    std::vector<NodeId> found;
    for (uint32_t i = below(3); i > 0; --i) found.push_back(node());
    return found;
  }

  Call random_call() {
    items_.clear();
    for (uint32_t i = below(4); i > 0; --i) {
      if (below(5) == 0) {
        items_.open(Tag::kList);
        items_.put(Argument::of_value(value()));
        items_.put(Argument::of_int(below(9)));
        items_.close();
      } else {
        items_.put(below(4) == 0 ? Argument::of_float(0.5) : Argument::of_value(value()));
      }
    }
    keywords_.clear();
    if (below(4) == 0) {
      keywords_.open(Tag::kDict);
      keywords_.put(Argument::of_string(text("key")));
      keywords_.put(Argument::of_value(value()));
      keywords_.close();
    }
    return {items_.items(), items_.count(), keywords_.items()};
  }

  void insert() {
    static const Operator* const operators[] = {op("t::one"), op("t::two", 2), op("t::pair", 1, 2)};
    const Operator* facts = operators[below(3)];
    const Call call = random_call();
    graph_.insert(facts, text("n"), call, static_cast<uint32_t>(facts->output_count), node());
  }

  void set_attribute() {
    const Argument number = Argument::of_int(below(10));
    const StringId name = text(below(2) == 0 ? "axis" : "mode");
    graph_.set_attribute(node(), name, below(3) == 0 ? ArgumentSpan{} : ArgumentSpan(&number, 1));
  }

  void set_subgraph() {
    std::shared_ptr<Graph> child;
    if (below(2) == 0) child = std::make_shared<Graph>("child" + std::to_string(below(100)));
    graph_.set_subgraph(node(), text("body"), child);
  }

  std::mt19937 random_;
  Graph graph_{"fuzzed"};
  ArgumentList items_;
  ArgumentList keywords_;
};

// The users and the type index, worked out again from the nodes alone.
void check_indices(const Graph& graph) {
  std::map<std::pair<NodeId, uint32_t>, std::vector<NodeId>> reads;
  std::map<StringId, std::vector<NodeId>> types;
  int64_t before = INT64_MIN;
  size_t size = 0;
  for (NodeId node = graph.first(); node != kNoNode; node = graph.next(node), ++size) {
    CHECK(graph.alive(node));
    CHECK(graph.order(node) > before);
    before = graph.order(node);
    CHECK_EQ(graph.find_by_name(graph.name_text(node)), node);
    types[graph.type(node)].push_back(node);
    for_each_value(graph.all_arguments(node), [&](ValueId value) {
      CHECK(graph.has(value));
      reads[{value.node, value.index}].push_back(node);
    });
  }
  CHECK_EQ(graph.size(), size);
  for (const auto& [type, nodes] : types) {
    const std::span<const NodeId> found = graph.find(type);
    CHECK(std::equal(found.begin(), found.end(), nodes.begin(), nodes.end()));
    CHECK_EQ(graph.count(type), nodes.size());
  }
  for (NodeId node = graph.first(); node != kNoNode; node = graph.next(node)) {
    for (uint32_t i = 0; i < graph.output_count(node); ++i) {
      std::vector<NodeId>& expected = reads[{node, i}];
      CHECK_EQ(graph.use_count({node, i}), expected.size());
      expected.erase(std::unique(expected.begin(), expected.end()), expected.end());
      CHECK(graph.sorted_users(ValueId{node, i}) == expected);
      CHECK_EQ(graph.users({node, i}).size(), expected.size());
    }
  }
}

TEST(random_edits_that_are_rolled_back_leave_no_trace) {
  for (uint32_t seed = 0; seed < 150; ++seed) {
    Fuzzer fuzzer(seed);
    for (int round = 0; round < 4; ++round) {
      const std::string before = shown(fuzzer.graph());
      fuzzer.graph().begin(text("rule"));
      for (uint32_t i = 5 + fuzzer.below(60); i > 0; --i) fuzzer.edit();
      check_indices(fuzzer.graph());
      if (round % 2 == 0) {
        fuzzer.graph().rollback();
        CHECK_EQ(shown(fuzzer.graph()), before);
      } else {
        fuzzer.graph().commit();
      }
      check_indices(fuzzer.graph());
    }
  }
}

TEST(putting_a_random_graph_in_order_orders_it_or_names_a_cycle) {
  int ordered = 0;
  for (uint32_t seed = 1000; seed < 1200; ++seed) {
    Fuzzer fuzzer(seed);
    for (int i = 0; i < 3; ++i) fuzzer.edit();
    Graph& graph = fuzzer.graph();
    if (topological_sort(graph).has_value()) continue;
    ++ordered;
    for (NodeId node = graph.first(); node != kNoNode; node = graph.next(node)) {
      for_each_value(graph.all_arguments(node),
                     [&](ValueId value) { CHECK(graph.is_before(value.node, node)); });
    }
    check_indices(graph);
  }
  CHECK(ordered > 5);
}

}  // namespace
