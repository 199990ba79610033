// The graph of the engine for bringup.ir.
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include <unordered_map>

#include "engine/analysis/alias_analysis.h"
#include "engine/analysis/control.h"
#include "engine/analysis/order.h"
#include "python/bindings.h"
#include "python/engine_fx.h"
#include "python/engine_handles.h"
#include "python/engine_host.h"

namespace nb = nanobind;

namespace bringup::python {
namespace {

// The edits of a transaction that was committed.
struct EditList {
  std::vector<en::Edit> edits;
};

en::StringId text_of(std::string_view text) { return en::Strings::intern(text); }

// Arguments from Python, kept for as long as one call of the engine takes.
class Given {
 public:
  Given(GraphCore& core, nb::handle arguments, nb::handle keywords) {
    convert_all(core, arguments.ptr(), items_);
    if (nb::len(keywords) == 0) return;
    convert(core, Ref::checked(PyDict_Copy(as_dict(keywords).ptr())).get(), keywords_);
  }
  en::Call call() const { return {items_.items(), items_.count(), keywords_.items()}; }

 private:
  static nb::object as_dict(nb::handle keywords) {
    if (PyDict_Check(keywords.ptr())) return nb::borrow(keywords);
    return nb::steal(
        Ref::checked(PyObject_CallOneArg(reinterpret_cast<PyObject*>(&PyDict_Type), keywords.ptr()))
            .release());
  }

  en::ArgumentList items_;
  en::ArgumentList keywords_;
};

// Reading

nb::object all_nodes(GraphCore& core) {
  std::vector<en::NodeId> nodes;
  nodes.reserve(core.graph.size());
  for (en::NodeId node = core.graph.first(); node != en::kNoNode; node = core.graph.next(node)) {
    nodes.push_back(node);
  }
  return take(node_tuple(core, nodes));
}

nb::object find_by_name(GraphCore& core, std::string_view name) {
  const en::NodeId node = core.graph.find_by_name(name);
  return node == en::kNoNode ? nb::none() : take(node_handle(core, node));
}

// Whether `is_settled` accepts each output's meta; each is asked about once: `known` keeps answers.
bool has_settled_outputs(GraphCore& core, en::NodeId node, nb::handle is_settled,
                         std::unordered_map<PyObject*, bool>& known) {
  for (uint32_t i = 0; i < core.graph.output_count(node); ++i) {
    PyObject* meta = core.meta({node, i});
    if (meta == nullptr) return false;
    auto found = known.find(meta);
    if (found == known.end()) {
      found = known.emplace(meta, nb::cast<bool>(is_settled(nb::borrow(meta)))).first;
    }
    if (!found->second) return false;
  }
  return core.graph.output_count(node) > 0;
}

// Constants, and nodes of which more may be inferred.
nb::object unsettled(GraphCore& core, nb::handle is_settled) {
  std::vector<en::NodeId> nodes;
  std::unordered_map<PyObject*, bool> known;
  for (en::NodeId node = core.graph.first(); node != en::kNoNode; node = core.graph.next(node)) {
    const bool is_constant = &core.graph.op(node) == en::Operators::constant();
    if (is_constant || !has_settled_outputs(core, node, is_settled, known)) nodes.push_back(node);
  }
  return take(node_tuple(core, nodes));
}

bool owns(GraphCore& core, nb::handle object) {
  NodeHandle* node = as_node(object.ptr());
  return node != nullptr && node->core == &core && core.graph.alive(node->id);
}

bool has_meta(GraphCore& core, en::ValueId value) { return core.meta(value) != nullptr; }

// Whether an object stands for more than itself: what a pattern has in the place of an argument.
bool is_open(PyObject* object) { return PyObject_HasAttrString(object, "is_open_argument") != 0; }

// Whether every value that `object` reads has a meta, and every input of the graph too.
bool can_be_shaped(GraphCore& core, nb::handle object) {
  const en::NodeId node = node_of(core, object);
  for (const en::Argument& item : core.graph.all_arguments(node)) {
    if (item.tag == en::Tag::kValue && !has_meta(core, item.value)) return false;
    if (item.tag != en::Tag::kOpaque) continue;
    ValueHandle* foreign = as_value(core.objects.at(item.id));
    if (foreign != nullptr ? !has_meta(*foreign->core, foreign->id)
                           : is_open(core.objects.at(item.id))) {
      return false;
    }
  }
  for (const en::ValueId input : core.graph.inputs()) {
    if (!has_meta(core, input)) return false;
  }
  return true;
}

// Changing

nb::object draft(GraphCore& core, nb::handle op, std::string_view base, nb::handle arguments,
                 nb::handle keywords) {
  const Given given(core, arguments, keywords);
  return take(
      node_handle(core, editable(core).draft(operator_of(op.ptr()), text_of(base), given.call())));
}

// `metas` has one item an output; None where nothing is known.
void place(GraphCore& core, nb::handle object, nb::handle before, nb::tuple metas) {
  const en::NodeId node = node_of(core, object);
  editable(core).insert_draft(node, static_cast<uint32_t>(metas.size()), node_of(core, before));
  for (uint32_t i = 0; i < metas.size(); ++i) {
    if (!metas[i].is_none()) core.set_meta({node, i}, metas[i].ptr());
  }
}

void discard(GraphCore& core, nb::handle node) {
  editable(core).discard_draft(node_of(core, node));
}

nb::object add_input(GraphCore& core, std::string_view name, nb::handle meta) {
  const en::NodeId node = editable(core).add_input(text_of(name));
  core.set_meta({node, 0}, meta.ptr());
  return take(node_handle(core, node));
}

nb::object add_constant(GraphCore& core, std::string_view name, nb::handle payload, nb::handle meta,
                        nb::handle before) {
  const en::NodeId place = before.is_none() ? en::kNoNode : node_of(core, before);
  const en::NodeId node = editable(core).add_constant(text_of(name), place);
  if (!payload.is_none()) core.payloads[node] = Ref::borrowed(payload.ptr());
  core.set_meta({node, 0}, meta.ptr());
  return take(node_handle(core, node));
}

void rewire(GraphCore& core, nb::handle object, nb::handle arguments, nb::handle keywords) {
  const Given given(core, arguments, keywords);
  editable(core).rewire(node_of(core, object), given.call());
}

void set_operator(GraphCore& core, nb::handle object, nb::handle op, nb::handle arguments) {
  const Given given(core, arguments, nb::dict());
  editable(core).set_operator(node_of(core, object), operator_of(op.ptr()), given.call());
}

void replace_all_uses(GraphCore& core, nb::handle old, nb::handle now) {
  editable(core).replace_all_uses(value_of(core, old), value_of(core, now));
}

std::vector<en::ValueId> values_of(GraphCore& core, nb::handle objects) {
  std::vector<en::ValueId> values;
  for (nb::handle object : objects) values.push_back(value_of(core, object));
  return values;
}

// `outputs` of the nodes `old` become `results`; `made` are new.
void move_control_edges(GraphCore& core, nb::handle old, nb::handle made, nb::handle outputs,
                        nb::handle results) {
  const std::vector<en::NodeId> added = nodes_of(core, made);
  const std::vector<en::ValueId> before = values_of(core, outputs), now = values_of(core, results);
  en::move_control_edges(core.graph, nodes_of(core, old), {added, before, now});
}

// Transactions

// The sources of control edges.
nb::object control_nodes(GraphCore& core, const en::ArgumentRange& range) {
  std::vector<en::NodeId> nodes;
  en::for_each_value(core.graph.items_of(range),
                     [&](en::ValueId edge) { nodes.push_back(edge.node); });
  return take(node_tuple(core, nodes));
}

nb::object edit_tuple(GraphCore& core, const en::Edit& edit) {
  const auto node = [&](en::NodeId id) {
    return id == en::kNoNode ? nb::none() : take(node_handle(core, id));
  };
  const auto items = [&](const en::ArgumentRange& range) {
    return take(python_arguments(core, core.graph.items_of(range), range.count));
  };
  const auto keywords = [&](const en::ArgumentRange& range) {
    return take(python_keywords(core, core.graph.keywords_of(range)));
  };
  const bool is_control = edit.kind == en::EditKind::kControl;
  const nb::object old = is_control ? control_nodes(core, edit.old) : items(edit.old);
  const nb::object now = is_control ? control_nodes(core, edit.now) : items(edit.now);
  return nb::make_tuple(edit.kind, node(edit.node), node(edit.before), node(edit.origin), old,
                        keywords(edit.old), now, keywords(edit.now));
}

nb::object edit_at(GraphCore& core, size_t index, const EditList* committed) {
  const std::span<const en::Edit> edits =
      committed != nullptr ? std::span<const en::Edit>(committed->edits) : core.graph.journal();
  if (index >= edits.size()) throw nb::index_error("there is no such edit");
  return edit_tuple(core, edits[index]);
}

// Mirroring

std::vector<Ref>* items_of(GraphCore& core, en::ValueId value) {
  if (!core.mirrored) return nullptr;
  const auto found = core.mirrored->items.find(value);
  return found == core.mirrored->items.end() ? nullptr : &found->second;
}

// The edits of the open transaction, or those of one that was committed.
void repeat_on_fx(GraphCore& core, nb::handle fx_graph, nb::handle writer,
                  const EditList* committed) {
  if (!core.mirrored) throw nb::value_error("the graph mirrors none");
  const std::span<const en::Edit> journal = core.graph.journal();
  const std::vector<en::Edit> edits =
      committed != nullptr ? committed->edits : std::vector(journal.begin(), journal.end());
  write_fx(core, edits, fx_graph.ptr(), writer.ptr());
}

// The nodes of the mirrored graph that stand for a value of a node with several.
nb::list items(GraphCore& core, nb::handle value) {
  nb::list all;
  if (const std::vector<Ref>* found = items_of(core, value_of(core, value))) {
    for (const Ref& item : *found) all.append(nb::borrow(item.get()));
  }
  return all;
}

void add_item(GraphCore& core, nb::handle value, nb::handle item) {
  core.mirrored->items[value_of(core, value)].push_back(Ref::borrowed(item.ptr()));
}

// Values whose description was changed since the graph was mirrored.
nb::list take_changed(GraphCore& core) {
  nb::list all;
  for (const en::ValueId value : std::exchange(core.mirrored->changed, {})) {
    if (core.graph.alive(value.node)) all.append(take(value_handle(core, value)));
  }
  return all;
}

nb::object sort_graph(GraphCore& core) {
  const auto failure = en::topological_sort(editable(core));
  if (!failure) return nb::none();
  return nb::make_tuple(take(node_handle(core, failure->node)), failure->reason);
}

// Garbage collection

int traverse_core(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  if (!nb::inst_ready(self)) return 0;
  const GraphCore& core = *nb::inst_ptr<GraphCore>(self);
  for (const Ref& meta : core.metas) Py_VISIT(meta.get());
  for (const auto& [node, meta] : core.node_metas) Py_VISIT(meta.get());
  for (const Ref& handle : core.handles) Py_VISIT(handle.get());
  for (const auto& [node, payload] : core.payloads) Py_VISIT(payload.get());
  if (core.mirrored) {
    Py_VISIT(core.mirrored->resolve.get());
    for (const auto& [value, items] : core.mirrored->items) {
      for (const Ref& item : items) Py_VISIT(item.get());
    }
  }
  return core.objects.traverse(visit, arg);
}

int clear_core(PyObject* self) {
  if (!nb::inst_ready(self)) return 0;
  GraphCore& core = *nb::inst_ptr<GraphCore>(self);
  const auto metas = std::exchange(core.metas, {});
  const auto node_metas = std::exchange(core.node_metas, {});
  const auto handles = std::exchange(core.handles, {});
  const auto payloads = std::exchange(core.payloads, {});
  const auto mirrored = std::exchange(core.mirrored, {});
  core.objects.clear();
  return 0;
}

PyType_Slot core_slots[] = {{Py_tp_traverse, reinterpret_cast<void*>(traverse_core)},
                            {Py_tp_clear, reinterpret_cast<void*>(clear_core)},
                            {0, nullptr}};

void attach(nb::handle self, nb::handle owner) {
  GraphCore& core = nb::cast<GraphCore&>(self);
  core.self = self.ptr();
  core.owner = Ref::checked(PyWeakref_NewRef(owner.ptr(), nullptr));
  core.graph.set_host(std::make_shared<PythonHost>(core));
}

void translate(const std::exception_ptr& error, void*) {
  try {
    std::rethrow_exception(error);
  } catch (const PythonError&) {
    // The Python exception is set already.
  } catch (const en::EngineError& engine) {
    set_python_error(engine);
  }
}

void def_reading(nb::class_<GraphCore>& type) {
  type.def("nodes", &all_nodes)
      .def("size", [](GraphCore& core) { return core.graph.size(); })
      .def("output_node",
           [](GraphCore& core) { return take(node_handle(core, core.graph.last())); })
      .def("inputs", [](GraphCore& core) { return take(value_tuple(core, core.graph.inputs())); })
      .def("find",
           [](GraphCore& core, std::string_view op_type) {
             return take(node_tuple(core, core.graph.find(text_of(op_type))));
           })
      .def("count", [](GraphCore& core,
                       std::string_view op_type) { return core.graph.count(text_of(op_type)); })
      .def("find_by_name", &find_by_name)
      .def("owns", &owns)
      .def("has_control_edges", [](GraphCore& core) { return core.graph.has_control_edges(); })
      .def("can_be_shaped", &can_be_shaped)
      .def("unsettled", &unsettled);
}

void def_changing(nb::class_<GraphCore>& type) {
  type.def("draft", &draft)
      .def("place", &place)
      .def("discard", &discard)
      .def("add_input", &add_input, nb::arg(), nb::arg().none())
      .def("add_constant", &add_constant, nb::arg(), nb::arg().none(), nb::arg().none(),
           nb::arg().none())
      .def("rewire", &rewire)
      .def("set_operator", &set_operator)
      .def("replace_all_uses", &replace_all_uses)
      .def("erase",
           [](GraphCore& core, nb::handle node) { editable(core).erase(node_of(core, node)); })
      .def("erase_dead", [](GraphCore& core,
                            nb::handle nodes) { editable(core).erase_dead(nodes_of(core, nodes)); })
      .def("move_before",
           [](GraphCore& core, nb::handle node, nb::handle before) {
             editable(core).move_before(node_of(core, node), node_of(core, before));
           })
      .def("add_control_edge",
           [](GraphCore& core, nb::handle source, nb::handle target) {
             core.graph.add_control_edge(node_of(core, source), node_of(core, target));
           })
      .def("remove_control_edge",
           [](GraphCore& core, nb::handle source, nb::handle target) {
             core.graph.remove_control_edge(node_of(core, source), node_of(core, target));
           })
      .def("move_control_edges", &move_control_edges)
      .def(
          "set_meta",
          [](GraphCore& core, nb::handle value, nb::handle meta) {
            core.set_meta(value_of(core, value), meta.ptr());
          },
          nb::arg(), nb::arg().none())
      .def("topological_sort", &sort_graph)
      .def_rw("expired", &GraphCore::expired)
      .def_prop_rw(
          "values_are_memory", [](GraphCore& core) { return core.graph.values_are_memory(); },
          [](GraphCore& core, bool are) { core.graph.set_values_are_memory(are); });
}

void def_mirroring(nb::class_<GraphCore>& type) {
  type.def("read_fx",
           [](GraphCore& core, nb::handle fx_graph, nb::handle node_type, nb::handle getitem,
              nb::handle reader, nb::handle inherited) {
             read_fx(core, fx_graph.ptr(), node_type.ptr(), getitem.ptr(), reader.ptr(),
                     inherited.ptr());
           })
      .def("write_fx", &repeat_on_fx, nb::arg(), nb::arg(), nb::arg().none() = nb::none())
      .def("items", &items)
      .def("add_item", &add_item)
      .def("take_changed", &take_changed);
}

void def_transactions(nb::class_<GraphCore>& type) {
  type.def("begin",
           [](GraphCore& core, std::string_view rule) { editable(core).begin(text_of(rule)); })
      .def("commit", [](GraphCore& core) { return EditList{editable(core).commit()}; })
      .def("rollback", [](GraphCore& core) { editable(core).rollback(); })
      .def("savepoint",
           [](GraphCore& core) {
             const en::Graph::Savepoint savepoint = core.graph.savepoint();
             return nb::make_tuple(savepoint.edits, savepoint.metas);
           })
      .def("rollback_to", [](GraphCore& core, size_t edits,
                             size_t metas) { editable(core).rollback_to({edits, metas}); })
      .def("edit_count", [](GraphCore& core) { return core.graph.journal().size(); })
      .def("edit_at", &edit_at, nb::arg(), nb::arg().none() = nb::none());
}

}  // namespace

void bind_graph(nb::module_& module) {
  nb::register_exception_translator(&translate);
  if (!add_handle_types(module.ptr())) throw nb::python_error();
  nb::enum_<en::EditKind>(module, "EditKind")
      .value("INSERT", en::EditKind::kInsert)
      .value("ERASE", en::EditKind::kErase)
      .value("MOVE", en::EditKind::kMove)
      .value("REWIRE", en::EditKind::kRewire)
      .value("CONTROL", en::EditKind::kControl)
      .value("ATTRIBUTE", en::EditKind::kAttribute)
      .value("SUBGRAPH", en::EditKind::kSubgraph);
  nb::class_<EditList>(module, "EditList").def("__len__", [](const EditList& list) {
    return list.edits.size();
  });
  nb::class_<GraphCore> type(module, "GraphCore", nb::type_slots(core_slots));
  type.def(nb::init<const std::string&>()).def("attach", [](nb::handle self, nb::handle owner) {
    attach(self, owner);
  });
  def_reading(type);
  def_changing(type);
  def_mirroring(type);
  def_transactions(type);
  module.def("use_ir_types",
             [](nb::handle node, nb::handle value, nb::handle op, nb::handle parameter) {
               use_handle_types(node.ptr(), value.ptr());
               use_operator_types(op.ptr(), parameter.ptr());
             });
  module.def("use_symbolic_type", [](nb::handle type_, nb::handle describe) {
    use_symbolic_type(type_.ptr(), describe.ptr());
  });
}

}  // namespace bringup::python
