#include "engine_match.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>

#include <algorithm>

#include "engine_aliases.h"
#include "engine_handles.h"
#include "engine_pattern.h"

namespace nb = nanobind;

namespace bringup::python {
namespace {

// Alias analysis

void bind_alias_analysis(nb::module_& module) {
  nb::class_<AliasAnalysisCore>(module, "AliasAnalysisCore")
      .def(nb::init<GraphCore&, bool>(), nb::keep_alive<1, 2>())
      .def("rebuild",
           [](AliasAnalysisCore& self) { self.aliases.emplace(self.core.graph, self.track_views); })
      .def_prop_ro("quiet", [](AliasAnalysisCore& self) { return self.aliases->quiet(); })
      .def("root",
           [](AliasAnalysisCore& self, nb::handle value) {
             return self.node(self.aliases->root(value_of(self.core, value)));
           })
      .def("writer_between",
           [](AliasAnalysisCore& self, nb::handle value, nb::handle first, nb::handle last) {
             return self.node(self.aliases->writer_between(
                 value_of(self.core, value), node_of(self.core, first), node_of(self.core, last)));
           })
      .def("writer_of",
           [](AliasAnalysisCore& self, nb::handle value) {
             return self.node(self.aliases->writer_of(value_of(self.core, value)));
           })
      .def("replaced",
           [](AliasAnalysisCore& self, nb::handle old, nb::handle now) {
             self.aliases->replaced(value_of(self.core, old), value_of(self.core, now));
           })
      .def("record", [](AliasAnalysisCore& self, nb::handle node) {
        self.aliases->record(node_of(self.core, node));
      });
}

// Programs

struct ProgramCore {
  ProgramCore() = default;
  ProgramCore(ProgramCore&&) = default;
  ProgramCore(const ProgramCore&) = delete;

  std::shared_ptr<const en::Program> program;
  std::vector<Ref> objects;  // the opaque host arguments of the program
};

ProgramCore compile(const PatternCore& pattern) {
  ProgramCore made;
  made.program = en::Program::compile(pattern.pattern);
  for (const en::Program::Object& object : made.program->objects()) {
    const auto core = std::find_if(pattern.graphs.begin(), pattern.graphs.end(),
                                   [&](GraphCore* one) { return &one->graph == object.graph; });
    made.objects.push_back(Ref::borrowed((*core)->objects.at(object.number)));
  }
  return made;
}

uintptr_t address(const en::Pattern* pattern) { return reinterpret_cast<uintptr_t>(pattern); }

// For each pattern in a program, its address and the names of its slots.
nb::list layout(const ProgramCore& self) {
  nb::list all;
  for (const en::SubPattern& sub : self.program->subs()) {
    all.append(
        nb::make_tuple(address(sub.pattern), texts(sub.names), texts(sub.sizes), texts(sub.lists)));
  }
  return all;
}

// Matchers

nb::object python_dim(const en::Dim& dim) {
  return dim.is_static() ? nb::cast(dim.number) : text(dim.symbol);
}

// What a match found, as Python has it

Ref value_or_none(GraphCore& core, en::ValueId value) {
  return value.node == en::kNoNode ? Ref::borrowed(Py_None) : value_handle(core, value);
}

Ref values_or_none(GraphCore& core, std::span<const en::ValueId> values) {
  Ref all = Ref::checked(PyTuple_New(static_cast<Py_ssize_t>(values.size())));
  for (size_t i = 0; i < values.size(); ++i) {
    PyTuple_SET_ITEM(all.get(), static_cast<Py_ssize_t>(i),
                     value_or_none(core, values[i]).release());
  }
  return all;
}

// A tuple of the one argument, since it may be None.
nb::object captured(GraphCore& core, const en::Captured& captured) {
  if (!captured.bound) return nb::none();
  if (captured.is_list) {
    return nb::make_tuple(take(python_arguments(core, captured.span(), captured.count)));
  }
  return nb::make_tuple(take(python_argument(core, captured.span())));
}

// (value, frame) of each item.
nb::object listed(GraphCore& core, const en::ListBinding& list) {
  if (!list.bound) return nb::none();
  nb::list items;
  for (uint32_t i = 0; i < list.count; ++i) {
    items.append(nb::make_tuple(take(value_handle(core, list.first[i].value)), list.frames[i]));
  }
  return items;
}

// (number, sub-pattern, parent, nodes, inputs, choices, names, sizes, lists), None where unbound.
nb::object shown(GraphCore& core, const en::Bindings& bound, uint32_t frame) {
  const en::SubPattern& sub = bound.sub(frame);
  nb::list nodes, inputs, choices, names, sizes, lists;
  for (uint32_t i = 0; i < sub.nodes.size(); ++i) {
    const en::NodeId node = bound.node(frame, i);
    nodes.append(node == en::kNoNode ? nb::none() : take(node_handle(core, node)));
  }
  for (uint32_t i = 0; i < sub.inputs.size(); ++i) {
    const en::ValueId value = bound.input(frame, i);
    inputs.append(value.node == en::kNoNode ? nb::none() : take(value_handle(core, value)));
  }
  for (uint32_t i = 0; i < sub.choices.size(); ++i) {
    const uint32_t choice = bound.choice(frame, i);
    choices.append(choice == en::kNoSlot ? nb::none() : nb::cast(choice));
  }
  for (uint32_t i = 0; i < sub.names.size(); ++i)
    names.append(captured(core, bound.name(frame, i)));
  for (uint32_t i = 0; i < sub.sizes.size(); ++i) {
    const std::optional<en::Dim>& dim = bound.size(frame, i);
    sizes.append(dim ? python_dim(*dim) : nb::none());
  }
  for (uint32_t i = 0; i < sub.lists.size(); ++i) lists.append(listed(core, bound.list(frame, i)));
  const uint32_t parent = bound.frame(frame).parent;
  return nb::make_tuple(frame, bound.frame(frame).sub,
                        parent == en::kNoSlot ? nb::none() : nb::cast(parent), nodes, inputs,
                        choices, names, sizes, lists);
}

// What each piece of the pattern stands for; before edits if the pattern has names or lists.
nb::list frames_of(GraphCore& core, const en::Bindings& bound) {
  nb::list frames;
  for (const uint32_t frame : bound.frames()) frames.append(shown(core, bound, frame));
  return frames;
}

// The match that a session or a matcher has found last.
struct PlacedMatchCore {
  GraphCore& core;
  FoundBindings bound;
  nb::object owner;  // of the bindings, if Python is

  nb::list frames() const {
    if (*bound == nullptr) throw nb::value_error("there is no match to look into");
    return frames_of(core, **bound);
  }
};

std::vector<uint32_t> objects_in(const ProgramCore& program, GraphCore& core) {
  std::vector<uint32_t> numbers;
  for (const Ref& object : program.objects) numbers.push_back(core.objects.intern(object.get()));
  return numbers;
}

class MatcherCore {
 public:
  MatcherCore(const ProgramCore& program, GraphCore& core, AliasAnalysisCore& aliases)
      : core_(core),
        matcher_(program.program, core.graph, *aliases.aliases, objects_in(program, core)) {}

  nb::object next() {
    return found([&] { return matcher_.next(); });
  }

  nb::object match_at(nb::handle target) {
    const en::NodeId node = node_of(core_, target);
    return found([&] { return matcher_.match_at(node); });
  }

  nb::object candidates() { return take(node_tuple(core_, matcher_.candidates())); }

  void refuse(nb::handle node, std::string reason) {
    matcher_.refuse(node.is_none() ? en::kNoNode : node_of(core_, node), std::move(reason));
  }

  nb::object near_miss() const {
    const std::optional<en::NearMiss>& miss = matcher_.near_miss();
    if (!miss) return nb::none();
    return nb::make_tuple(miss->pattern, miss->node, miss->reason, miss->expected, miss->got,
                          miss->matched, miss->size);
  }

 private:
  // What `search` finds without the GIL: python_match's, the node behind it, what moves there.
  template <class Search>
  nb::object found(Search&& search) {
    if (last_) *last_ = nullptr;
    std::optional<en::PlacedMatch> placed;
    {
      const Searching searching(core_);
      const nb::gil_scoped_release released;
      placed = search();
    }
    if (!placed) return nb::none();
    const en::Target target(core_.graph, 0, matcher_.program(), *placed);
    last_ = std::make_shared<const en::Bindings*>(&target.bound());
    return python_match(core_, target, last_, nb::find(this)) +
           nb::make_tuple(take(node_handle(core_, placed->before)),
                          take(node_tuple(core_, placed->hoist)));
  }

  GraphCore& core_;
  en::Matcher matcher_;
  FoundBindings last_;
};

}  // namespace

en::PatternProgram program_for(nb::handle program, GraphCore& core) {
  const auto& given = nb::cast<const ProgramCore&>(program);
  return {given.program, objects_in(given, core)};
}

nb::tuple python_match(GraphCore& core, const en::Target& target, FoundBindings bound,
                       nb::object owner) {
  const nb::object match = nb::cast(new PlacedMatchCore{core, std::move(bound), std::move(owner)},
                                    nb::rv_policy::take_ownership);
  return nb::make_tuple(match, take(node_tuple(core, target.nodes())),
                        take(values_or_none(core, target.inputs())),
                        take(value_tuple(core, target.outputs())));
}

void bind_matching(nb::module_& module) {
  bind_alias_analysis(module);
  nb::class_<PatternCore>(module, "PatternCore")
      .def("__init__",
           [](PatternCore* self, GraphCore& core, std::string_view name, bool constant_values,
              bool attributes, nb::handle open, nb::handle constraints, nb::handle choices,
              nb::handle captured, nb::handle captured_names, nb::handle library_values) {
             new (self) PatternCore(make_pattern(core, name, constant_values, attributes, open,
                                                 constraints, choices, captured, captured_names,
                                                 library_values));
           })
      .def_prop_ro("address", [](const PatternCore& self) { return address(self.pattern.get()); });
  nb::class_<ProgramCore>(module, "ProgramCore")
      .def("__init__", [](ProgramCore* self,
                          const PatternCore& pattern) { new (self) ProgramCore(compile(pattern)); })
      .def("layout", &layout);
  nb::class_<PlacedMatchCore>(module, "PlacedMatchCore").def("frames", &PlacedMatchCore::frames);
  nb::class_<MatcherCore>(module, "MatcherCore")
      .def(nb::init<const ProgramCore&, GraphCore&, AliasAnalysisCore&>(), nb::keep_alive<1, 3>(),
           nb::keep_alive<1, 4>())
      .def("next", &MatcherCore::next)
      .def("match_at", &MatcherCore::match_at)
      .def("candidates", &MatcherCore::candidates)
      .def("refuse", &MatcherCore::refuse, nb::arg().none(), nb::arg())
      .def("near_miss", &MatcherCore::near_miss);
}

}  // namespace bringup::python
