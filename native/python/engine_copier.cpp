#include "engine_copier.h"

#include <nanobind/stl/string.h>

#include <algorithm>

#include "engine/graph/node_factory.h"
#include "engine/util/error.h"
#include "engine_handles.h"

namespace nb = nanobind;

namespace bringup::python {
namespace {

Ref owner(const GraphCore& core) {
  Ref found = owner_of(core);
  if (found) return found;
  PyErr_SetString(PyExc_RuntimeError, "the graph that is being rewritten is gone");
  throw PythonError();
}

void put(const Ref& dict, const char* key, const Ref& item) {
  if (PyDict_SetItemString(dict.get(), key, item.get()) != 0) throw PythonError();
}

void update(const Ref& dict, PyObject* more) {
  if (PyDict_Update(dict.get(), more) != 0) throw PythonError();
}

// The traces of the nodes, each once, one below the other; null where none has any.
Ref joined_traces(GraphCore& core, std::span<const en::NodeId> nodes) {
  static PyObject* const key = PyUnicode_InternFromString("stack_trace");
  const Ref traces = Ref::checked(PyDict_New());
  for (const en::NodeId node : nodes) {
    const Ref trace = core.node_meta_entry(node, key);
    if (!trace || trace.get() == Py_None) continue;
    const Ref text = Ref::checked(PyObject_Str(trace.get()));
    if (PyDict_SetItem(traces.get(), text.get(), Py_None) != 0) throw PythonError();
  }
  if (PyDict_GET_SIZE(traces.get()) == 0) return Ref();
  const Ref between = Ref::checked(PyUnicode_FromString("\n"));
  return Ref::checked(PyUnicode_Join(between.get(), traces.get()));
}

PyObject* attributes_key() {
  static PyObject* const key = PyUnicode_InternFromString("attributes");
  return key;
}

// The attributes that passes set, or null; nodes that differ in one are not replaced together.
Ref joined_attributes(GraphCore& core, std::span<const en::NodeId> nodes) {
  Ref all, sources;
  for (const en::NodeId node : nodes) {
    const Ref own = core.node_meta_entry(node, attributes_key());
    if (!own || !PyDict_Check(own.get()) || PyDict_GET_SIZE(own.get()) == 0) continue;
    if (!all) all = Ref::checked(PyDict_New()), sources = Ref::checked(PyDict_New());
    PyObject *name = nullptr, *value = nullptr;
    for (Py_ssize_t at = 0; PyDict_Next(own.get(), &at, &name, &value) != 0;) {
      PyObject* known = PyDict_GetItemWithError(all.get(), name);
      if (known == nullptr) {
        const Ref source = core.name(node);
        if (PyErr_Occurred() != nullptr || PyDict_SetItem(all.get(), name, value) != 0 ||
            PyDict_SetItem(sources.get(), name, source.get()) != 0) {
          throw PythonError();
        }
        continue;
      }
      const int is_same = PyObject_RichCompareBool(known, value, Py_EQ);
      if (is_same < 0) throw PythonError();
      if (is_same == 1) continue;
      const nb::object first = nb::borrow(PyDict_GetItem(sources.get(), name));
      en::throw_error(en::ErrorCode::kPass, "nodes ", en::in_quotes(nb::cast<std::string>(first)),
                      " and ", en::in_quotes(core.graph.name_text(node)),
                      " differ in their attribute ",
                      en::in_quotes(nb::cast<std::string>(nb::str(nb::handle(name)))),
                      ", so one replacement cannot stand for both");
    }
  }
  return all;
}

// The attributes of a new node: its own before those it inherits, in a dict of its own.
void keep_apart(const Ref& meta, const Ref& inherited) {
  const Ref own = Ref::borrowed(PyDict_GetItemWithError(meta.get(), attributes_key()));
  if (PyErr_Occurred() != nullptr) throw PythonError();
  if (!own || !PyDict_Check(own.get())) return;
  const Ref former = Ref::borrowed(PyDict_GetItemWithError(inherited.get(), attributes_key()));
  const Ref joined = Ref::checked(former ? PyDict_Copy(former.get()) : PyDict_New());
  update(joined, own.get());
  if (PyDict_SetItem(meta.get(), attributes_key(), joined.get()) != 0) throw PythonError();
}

}  // namespace

Ref inherited_metadata(GraphCore& core, std::span<const en::NodeId> nodes) {
  static PyObject* const kLast[] = {PyUnicode_InternFromString("nn_module_stack"),
                                    PyUnicode_InternFromString("module")};
  Ref found = Ref::checked(PyDict_New());
  if (const Ref traces = joined_traces(core, nodes)) put(found, "stack_trace", traces);
  for (PyObject* key : kLast) {
    const Ref entry = core.node_meta_entry(nodes.back(), key);
    if (!entry || entry.get() == Py_None) continue;
    if (PyDict_SetItem(found.get(), key, entry.get()) != 0) throw PythonError();
  }
  const Ref names = Ref::checked(PyTuple_New(static_cast<Py_ssize_t>(nodes.size())));
  for (size_t i = 0; i < nodes.size(); ++i) {
    PyTuple_SET_ITEM(names.get(), static_cast<Py_ssize_t>(i), core.name(nodes[i]).release());
  }
  put(found, "replaces", names);
  if (const Ref attributes = joined_attributes(core, nodes)) put(found, "attributes", attributes);
  return found;
}

en::NodeId Copier::copy(const en::CopiedNode& copied) {
  if (copied.op == en::Operators::constant()) return copy_constant(copied);
  en::Graph& graph = editable(core_);
  const en::StringId base = en::base_name_of(copied.op->type);
  const en::NodeId node = graph.draft(copied.op, base, copied.call);
  Ref metas;
  try {
    metas = outputs_of(node, copied);
  } catch (...) {
    graph.discard_draft(node);
    throw;
  }
  const Py_ssize_t count = PyTuple_GET_SIZE(metas.get());
  graph.insert_draft(node, static_cast<uint32_t>(count), copied.before);
  for (Py_ssize_t i = 0; i < count; ++i) {
    PyObject* meta = PyTuple_GET_ITEM(metas.get(), i);
    if (meta != Py_None) core_.set_meta({node, static_cast<uint32_t>(i)}, meta);
  }
  take_metadata(node, copied);
  return node;
}

en::NodeId Copier::copy_constant(const en::CopiedNode& copied) {
  const auto held = replacement_->payloads.find(copied.original);
  PyObject* payload = held == replacement_->payloads.end() ? Py_None : held->second.get();
  const nb::object graph = take(owner(core_));
  const nb::object name = take(replacement_->name(copied.original));
  const nb::object made = graph.attr("add_constant")(nb::handle(payload), nb::arg("name") = name);
  return value_of(core_, made).node;
}

// A tuple with the description of every output of a node that is being made.
Ref Copier::outputs_of(en::NodeId draft, const en::CopiedNode& copied) {
  static PyObject* const method = PyUnicode_InternFromString("_metas_of");
  const Ref graph = owner(core_);
  const Ref node = node_handle(core_, draft);
  const Ref count = Ref::checked(PyLong_FromUnsignedLong(copied.outputs));
  const bool stands = copied.stands_for.node != en::kNoNode;
  const Ref old = stands ? value_handle(core_, copied.stands_for) : Ref::borrowed(Py_None);
  PyObject* given[] = {graph.get(), node.get(), count.get(), old.get()};
  return Ref::checked(
      PySequence_Tuple(Ref::checked(PyObject_VectorcallMethod(method, given, 4, nullptr)).get()));
}

void Copier::take_metadata(en::NodeId node, const en::CopiedNode& copied) {
  if (!inherited_ || !std::ranges::equal(replaced_, copied.replaced)) {
    inherited_ = inherited_metadata(core_, copied.replaced);
    replaced_.assign(copied.replaced.begin(), copied.replaced.end());
  }
  const Ref meta = core_.node_meta(node);
  update(meta, inherited_.get());
  if (replacement_ != nullptr) {
    const auto own = replacement_->node_metas.find(copied.original);
    if (own != replacement_->node_metas.end()) update(meta, own->second.get());
  }
  keep_apart(meta, inherited_);
}

// An object stays an argument, a value is itself here, and a size the value that is it.
void Copier::carry_over(const en::Argument& foreign, en::NodeId before, en::ArgumentList& items) {
  if (replacement_ == nullptr) return items.put(foreign);
  const bool is_symbol = foreign.tag == en::Tag::kSymbol;
  const Ref object = is_symbol ? python_argument(*replacement_, {&foreign, 1})
                               : Ref::borrowed(replacement_->objects.at(foreign.id));
  if (as_value(object.get()) != nullptr) return convert(core_, object.get(), items);
  const nb::object graph = take(owner(core_));
  const nb::object computed =
      nb::module_::import_("bringup.ir.sizes")
          .attr("computed_sizes")(graph, nb::make_tuple(nb::handle(object.get())),
                                  take(node_handle(core_, before)));
  convert(core_, nb::object(computed[0]).ptr(), items);
}

bool Copier::can_copy_values() const {
  const nb::object dialect = take(owner(core_)).attr("dialect");
  return !dialect.is_none() && !dialect.attr("copy_operator").is_none();
}

en::ValueId Copier::copy_of(en::ValueId value, en::NodeId before) {
  const nb::object graph = take(owner(core_));
  const nb::object copy = graph.attr("insert")(
      graph.attr("dialect").attr("copy_operator"), nb::make_tuple(take(value_handle(core_, value))),
      nb::arg("before") = take(node_handle(core_, before)));
  return value_of(core_, copy.attr("output"));
}

std::optional<std::string> Copier::difference(en::ValueId old, en::ValueId now) {
  PyObject* former = core_.meta(old);
  PyObject* current = core_.meta(now);
  if (former == nullptr || current == nullptr || former == current) return std::nullopt;
  const nb::object found =
      take(owner(core_))
          .attr("why_not")(take(value_handle(core_, old)), take(value_handle(core_, now)));
  if (found.is_none()) return std::nullopt;
  return std::string(nb::str(found).c_str());
}

// The description was taken over for a value that goes: what stays keeps it for itself.
void Copier::stays(en::ValueId old, en::ValueId now) {
  if (core_.meta(old) != core_.meta(now)) return;
  take(owner(core_))
      .attr("part_from")(take(value_handle(core_, old)), take(value_handle(core_, now)));
}

en::Providers rewriting_providers(Copier& copier) {
  en::Providers all;
  all.copy = [&](en::Graph&, const en::CopiedNode& copied) { return copier.copy(copied); };
  all.carry_over = [&](en::Graph&, const en::Argument& foreign, en::NodeId before,
                       en::ArgumentList& items) { copier.carry_over(foreign, before, items); };
  all.difference = [&](const en::Graph&, en::ValueId old, en::ValueId now) {
    return copier.difference(old, now);
  };
  all.stays = [&](en::Graph&, en::ValueId old, en::ValueId now) { copier.stays(old, now); };
  if (copier.can_copy_values()) {
    all.copy_of = [&](en::Graph&, en::ValueId value, en::NodeId before) {
      return copier.copy_of(value, before);
    };
  }
  return all;
}

std::vector<en::NodeId> operators_among(const en::Graph& graph, std::vector<en::NodeId> made) {
  std::erase_if(made, [&](en::NodeId node) {
    return !graph.alive(node) || &graph.op(node) == en::Operators::constant();
  });
  return made;
}

}  // namespace bringup::python
