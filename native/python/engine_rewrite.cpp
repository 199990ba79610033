// Putting a replacement that Python made where nodes of a graph of Python are.
#include <nanobind/stl/string.h>

#include "engine/analysis/placement.h"
#include "engine/rewrite/folding.h"
#include "engine/rewrite/rewriter.h"
#include "engine/run/targets.h"
#include "engine/util/outcome.h"
#include "engine_aliases.h"
#include "engine_copier.h"
#include "engine_handles.h"
#include "python/bindings.h"

namespace nb = nanobind;

namespace bringup::python {
namespace {

// None: nothing.
std::vector<en::ValueId> values_of(const GraphCore& core, nb::handle listed) {
  std::vector<en::ValueId> values;
  for (nb::handle item : listed) {
    values.push_back(item.is_none() ? en::ValueId() : value_of(core, item));
  }
  return values;
}

nb::object replace(GraphCore& core, GraphCore& replacement, nb::handle inputs, nb::handle outputs,
                   nb::handle nodes, nb::handle before, nb::handle hoist,
                   AliasAnalysisCore& aliases) {
  const std::vector<en::ValueId> given = values_of(core, inputs), left = values_of(core, outputs);
  const std::vector<en::NodeId> replaced = nodes_of(core, nodes);
  const en::Site site{given, left, replaced, node_of(core, before)};
  Copier copier(core, &replacement);
  const en::Providers providers = rewriting_providers(copier);
  en::Graph& graph = editable(core);
  for (const en::NodeId node : nodes_of(core, hoist)) graph.move_before(node, site.before);
  try {
    std::vector<en::NodeId> made =
        en::replace(graph, replacement.graph, site, *aliases.aliases, providers);
    return take(node_tuple(core, operators_among(graph, std::move(made))));
  } catch (const en::SkipPass& skip) {
    set_error(ErrorClass::kPassSkip, skip.what());
    throw nb::python_error();
  }
}

// (the node behind a replacement, what moves there first), or (the node in the way, why).
nb::object place(AliasAnalysisCore& aliases, nb::handle nodes, nb::handle inputs,
                 nb::handle outputs) {
  GraphCore& core = aliases.core;
  en::ReplacedPart part{nodes_of(core, nodes), values_of(core, inputs), values_of(core, outputs)};
  std::sort(part.nodes.begin(), part.nodes.end(),
            [&](en::NodeId one, en::NodeId other) { return core.graph.is_before(one, other); });
  auto found = en::place(core.graph, part, *aliases.aliases);
  if (const auto* refusal = std::get_if<en::PlacementRefusal>(&found)) {
    return nb::make_tuple(aliases.node(refusal->node), refusal->text(core.graph));
  }
  const auto& place = std::get<en::Placement>(found);
  return nb::make_tuple(aliases.node(place.before), take(node_tuple(core, place.hoist)));
}

// (what its replacement's inputs stand for, what `wanted` outputs of it stand for)
nb::object values_around(GraphCore& core, nb::handle node, size_t wanted) {
  const en::NodeId id = node_of(core, node);
  const auto listed = [&](const std::vector<en::ValueId>& values) {
    nb::list list;
    for (const en::ValueId value : values) list.append(take(value_handle(core, value)));
    return list;
  };
  return nb::make_tuple(listed(en::values_read(core.graph, id)),
                        listed(en::values_computed(core.graph, id, wanted)));
}

// Operators of a graph of Python: its dialect evaluates them, given the payloads they read.
class DialectFolding : public en::FoldingSteps {
 public:
  DialectFolding(GraphCore& core, nb::handle graph)
      : core_(core), graph_(graph), dialect_(graph.attr("dialect")) {}

  bool has_data(en::NodeId constant) override { return core_.payloads.contains(constant); }
  bool reads_graph() const override { return false; }

  bool can_fold(en::NodeId node) override {
    const bool is_declared = !core_.graph.op(node).parameters.empty();
    return is_declared && nb::cast<bool>(dialect_.attr("can_fold")(take(node_handle(core_, node))));
  }

  size_t evaluate(en::NodeId node) override {
    nb::dict constants;
    en::for_each_value(core_.graph.all_arguments(node), [&](en::ValueId value) {
      const auto computed = results_.find(value.node);
      constants[take(value_handle(core_, value))] =
          computed == results_.end() ? nb::borrow(core_.payloads.at(value.node).get())
                                     : nb::object(computed->second[value.index]);
    });
    const nb::object given = dialect_.attr("evaluate")(take(node_handle(core_, node)), constants);
    return nb::len(results_[node] = nb::tuple(given));
  }

  en::NodeId add_constant(en::ValueId output, en::StringId base) override {
    const nb::object made = graph_.attr("add_constant")(results_.at(output.node)[output.index],
                                                        nb::arg("name") = take(python_text(base)));
    return value_of(core_, made).node;
  }

 private:
  GraphCore& core_;
  nb::handle graph_;
  nb::object dialect_;
  std::unordered_map<en::NodeId, nb::tuple> results_;
};

uint64_t fold_constants(GraphCore& core, nb::handle graph) {
  DialectFolding steps(core, graph);
  return en::fold_constants(editable(core), steps);
}

nb::object inherited(GraphCore& core, nb::handle nodes) {
  return take(inherited_metadata(core, nodes_of(core, nodes)));
}

}  // namespace

void bind_rewriting(nb::module_& module) {
  module.def("replace", &replace, nb::arg("graph"), nb::arg("replacement"), nb::arg("inputs"),
             nb::arg("outputs"), nb::arg("nodes"), nb::arg("before"), nb::arg("hoist"),
             nb::arg("aliases"),
             "Copies `replacement` in front of `before`, behind which `hoist` is moved first; the "
             "new operators.");
  module.def("place", &place,
             "(the node in front of which a replacement of `nodes` may stand, what must move there "
             "first), or (the node in the way, the reason).");
  module.def("values_around", &values_around,
             "What the inputs of a node's replacement stand for, and `wanted` outputs of it.");
  module.def("fold_constants", &fold_constants,
             "Replaces operators on constants by what the graph's dialect computes; how many.");
  module.def("inherited_metadata", &inherited,
             "What new nodes take over from `nodes`, which they replace.");
}

}  // namespace bringup::python
