// Random graphs, also such as cannot run, and random patterns with everything a pattern may hold:
// nothing crashes or hangs, and what matches is what the pattern says.
#include <random>

#include "check.h"
#include "patterns.h"

namespace {

using namespace bringup::engine;
using namespace engine_graphs;

class Maker {
 public:
  explicit Maker(uint32_t seed) : random_(seed) {}
  uint32_t below(uint32_t limit) { return random_() % limit; }

  // Adds `count` nodes to a graph. In a pattern arguments may be open.
  void fill(Graph& graph, uint32_t count, Pattern* pattern) {
    for (uint32_t i = 1 + below(3); i > 0; --i) known_.push_back({graph.add_input(text("x")), 0});
    if (below(3) == 0) known_.push_back({add_constant(graph), 0});
    for (uint32_t i = 0; i < count; ++i) add_node(graph, pattern);
    const uint32_t edges = pattern != nullptr ? 2 : below(2) * count;
    for (uint32_t i = 0; i < edges; ++i) add_control_edge(graph);
  }

  ValueId value() { return known_[below(static_cast<uint32_t>(known_.size()))]; }

 private:
  void add_control_edge(Graph& graph) {
    NodeId source = value().node, target = value().node;
    if (graph.is_before(target, source)) std::swap(source, target);
    try {
      graph.add_control_edge(source, target);
    } catch (const EngineError&) {
      // Not between these, which the graph says by itself.
    }
  }

  NodeId add_constant(Graph& graph) {
    const NodeId node = graph.add_constant(text("c"));
    if (below(3) == 0) return node;
    static const float numbers[] = {0.0f, 1.0f, 0.0f};
    ConstantData data;
    data.dtype = text("float32");
    const uint32_t size = 1 + below(2);
    data.sizes = {size};
    data.bytes = std::as_bytes(std::span(numbers + below(2), size));
    graph.set_payload(node, data);
    return node;
  }

  void add_node(Graph& graph, Pattern* pattern) {
    static const Operator* const all[] = {
        op("t::one"),        op("t::two", 2),  Operators::intern(commutative("t::add")),
        op("t::pair", 1, 2), op("t::list", 2),
    };
    const bool choose = pattern != nullptr && below(6) == 0;
    const Operator* facts = choose ? op(kOneOf, 2) : all[below(5)];
    list_.clear();
    const bool list = Strings::text(facts->type) == "t::list";
    for (size_t i = 0; i < facts->parameters.size(); ++i) put_argument(pattern, list && i == 0);
    if (choose) list_.put(Argument::of_value(value()));
    const NodeId node = graph.insert(facts, text("n"), call(list_),
                                     static_cast<uint32_t>(facts->output_count), graph.last());
    for (int32_t i = 0; i < facts->output_count; ++i) {
      known_.push_back({node, static_cast<uint32_t>(i)});
    }
  }

  void put_argument(Pattern* pattern, bool list) {
    if (list && pattern != nullptr && below(2) == 0) {
      list_.put(open_argument(*pattern, variadic()));
      return;
    }
    if (list) {
      list_.open(Tag::kList);
      bool open = pattern != nullptr && below(3) == 0;
      for (uint32_t i = below(4); i > 0; --i) {
        list_.put(open ? open_argument(*pattern, variadic()) : Argument::of_value(value()));
        open = false;
      }
      list_.close();
      return;
    }
    const uint32_t kind = below(8);
    if (kind == 0) return list_.put(Argument::of_int(below(3)));
    if (kind == 1) return list_.put(Argument::of_float(below(2)));
    if (kind == 2 && pattern != nullptr) return list_.put(open_argument(*pattern, any()));
    if (kind == 3 && pattern != nullptr) return list_.put(open_argument(*pattern, constant()));
    list_.put(Argument::of_value(value()));
  }

  template <class What>
  Argument open_argument(Pattern& pattern, What what) {
    const auto number = static_cast<uint32_t>(pattern.open.size());
    pattern.open[number] = {std::move(what), "open"};
    return Argument::of_opaque(number);
  }

  AnyArgument any() {
    AnyArgument made;
    if (below(2) == 0) made.name = text(below(2) == 0 ? "a" : "b");
    if (below(3) == 0) made.kinds = bit_of(Tag::kInt);
    if (below(4) == 0) made.at_least = 1;
    return made;
  }

  ConstantArgument constant() {
    ConstantArgument made;
    if (below(3) != 0) made.values = {{true, static_cast<int64_t>(below(2)), 0}};
    if (below(3) == 0) made.sizes = {{1}};
    made.atol = below(2);
    return made;
  }

  VariadicArgument variadic() {
    VariadicArgument made;
    made.name = text(below(2) == 0 ? "xs" : "ys");
    made.at_least = below(2);
    if (below(2) == 0) return made;
    made.each = pattern_of([](Graph& graph, Pattern&) {
      const NodeId x = graph.add_input(text("x"));
      return ValueId{add(graph, op("t::one"), {{x, 0}}), 0};
    });
    return made;
  }

  std::mt19937 random_;
  std::vector<ValueId> known_;
  ArgumentList list_;
};

// A pattern has no node that contributes to no output.
void erase_unread(Graph& graph) {
  NodeId node = graph.previous(graph.last());
  while (node != kNoNode) {
    const NodeId before = graph.previous(node);
    bool read = false;
    for (uint32_t i = 0; i < graph.output_count(node); ++i) {
      read = read || graph.use_count({node, i}) > 0;
    }
    if (!read) {
      for (const NodeId user : graph.control_users(node)) graph.remove_control_edge(node, user);
      graph.erase(node);
    }
    node = before;
  }
}

int edges_found = 0;

// Whether the nodes that stand for nodes of the pattern are of their type and bound consistently.
void check_match(const Program& program, const Graph& graph, const PlacedMatch& found) {
  for (const uint32_t frame : found.bound->frames()) {
    const SubPattern& sub = found.bound->sub(frame);
    for (uint32_t i = 0; i < sub.nodes.size(); ++i) {
      const NodeId node = found.bound->node(frame, i);
      if (node == kNoNode) continue;
      CHECK_EQ(graph.type(node), sub.nodes[i].type);
      CHECK(std::find(found.nodes.begin(), found.nodes.end(), node) != found.nodes.end());
      if (!sub.nodes[i].is_constant) {
        CHECK_EQ(found.bound->taken().find(node), sub.first_node + i);
      }
    }
    for (const PatternEdge& edge : sub.edges) {
      const NodeId source = edge.from_input ? found.bound->input(frame, edge.source).node
                                            : found.bound->node(frame, edge.source);
      const NodeId target = found.bound->node(frame, edge.target);
      if (source == kNoNode || target == kNoNode) continue;
      ++edges_found;
      CHECK(graph.has_control_edge(source, target));
    }
  }
  for (const uint32_t output : program.root().outputs) {
    CHECK(found.bound->resolve(0, output).has_value());
  }
}

TEST(random_patterns_on_random_graphs_match_what_they_say) {
  int programs = 0;
  int found = 0;
  for (uint32_t seed = 0; seed < 4000; ++seed) {
    Maker maker(seed);
    Graph graph("fuzzed");
    maker.fill(graph, 5 + maker.below(40), nullptr);
    graph.set_outputs(call(values({maker.value(), maker.value()})));
    Maker wanted(seed + 1000000);
    const auto pattern = std::make_shared<Pattern>();
    const auto made = std::make_shared<Graph>("pattern");
    wanted.fill(*made, 1 + wanted.below(4), pattern.get());
    made->set_outputs(call(values({wanted.value()})));
    erase_unread(*made);
    pattern->graph = made;
    pattern->name = "p";
    pattern->attributes = wanted.below(4) != 0;
    pattern->constant_values = wanted.below(4) != 0;
    std::shared_ptr<const Program> program;
    try {
      program = Program::compile(pattern);
    } catch (const EngineError&) {
      continue;  // not a pattern
    }
    ++programs;
    for (int edits = 0; edits < 3; ++edits) {
      const AliasAnalysis aliases(graph);
      Matcher matcher(program, graph, aliases);
      while (const auto match = matcher.next()) {
        ++found;
        check_match(*program, graph, *match);
      }
      const NodeId moved = maker.value().node;
      graph.move_before(moved, maker.value().node);  // may make an order that cannot run
    }
  }
  CHECK(programs > 500);
  CHECK(found > 500);
  CHECK(edges_found > 20);
}

}  // namespace
