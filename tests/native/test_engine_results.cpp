// Which results of a graph may share memory.
#include "check.h"
#include "engine/analysis/shared_outputs.h"
#include "engine_graphs.h"

using namespace bringup::engine;
using engine_graphs::add;
using engine_graphs::call;
using engine_graphs::op;
using engine_graphs::text;
using engine_graphs::values;

namespace {

ValueId first(NodeId node) { return {node, 0}; }

// An operator whose outputs are views of its first operands.
const Operator* view(const char* type, std::vector<uint32_t> aliases, int32_t outputs = 1) {
  Operator facts = engine_graphs::facts_of(type, static_cast<int>(aliases.size()), outputs);
  facts.aliases = std::move(aliases);
  return Operators::intern(facts);
}

struct Results {
  Graph graph{"g"};
  NodeId x = graph.add_input(text("x"));
  NodeId relu = add(graph, op("t::relu"), {first(x)});
  SharedOutputs of(const std::vector<ValueId>& outputs) {
    graph.set_outputs(call(values(outputs)));
    return shared_outputs(graph);
  }
};

using Firsts = std::vector<uint32_t>;

}  // namespace

TEST(views_share_memory_with_what_they_look_at) {
  Results results;
  const NodeId seen = add(results.graph, view("t::view", {0}), {first(results.x)});
  const SharedOutputs shared = results.of({first(seen), first(results.relu), first(results.x)});
  CHECK((shared.first == Firsts{0, 1, 0}));
  CHECK((shared.given == std::set<std::pair<uint32_t, NodeId>>{{0, results.x}, {2, results.x}}));
}

TEST(what_looks_at_two_values_shares_memory_with_both) {
  Results results;
  const NodeId other = add(results.graph, op("t::exp"), {first(results.x)});
  const NodeId either =
      add(results.graph, view("t::either", {0, 1}), {first(results.relu), first(results.x)});
  const SharedOutputs shared =
      results.of({first(results.relu), first(other), first(either), first(results.x)});
  CHECK((shared.first == Firsts{0, 1, 0, 0}));
  CHECK((shared.given == std::set<std::pair<uint32_t, NodeId>>{{2, results.x}, {3, results.x}}));
}

TEST(what_is_written_in_place_shares_memory_with_what_it_was) {
  Results results;
  Operator facts = engine_graphs::facts_of("t::add_", 1);
  facts.mutates = {0};
  const NodeId written = add(results.graph, Operators::intern(facts), {first(results.relu)});
  CHECK((results.of({first(results.relu), first(written)}).first == Firsts{0, 0}));
}

TEST(outputs_that_an_operator_makes_lie_apart) {
  Results results;
  const NodeId both = add(results.graph, op("t::both", 1, 2), {first(results.x)});
  CHECK((results.of({{both, 0}, {both, 1}, {both, 1}}).first == Firsts{0, 1, 1}));
}

TEST(parts_of_one_split_lie_apart_unless_the_whole_is_a_result_too) {
  Results results;
  const NodeId split = add(results.graph, view("t::split", {0}, 2), {first(results.relu)});
  CHECK((results.of({{split, 0}, {split, 1}, {split, 0}}).first == Firsts{0, 1, 0}));
  CHECK((results.of({{split, 0}, {split, 1}, first(results.relu)}).first == Firsts{0, 0, 0}));
}
