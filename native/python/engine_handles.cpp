#include "python/engine_handles.h"

namespace bringup::python {
namespace {

PyTypeObject* node_type = nullptr;   // bringup.ir.Node
PyTypeObject* value_type = nullptr;  // bringup.ir.Value

NodeHandle* node_of(PyObject* self) { return reinterpret_cast<NodeHandle*>(self); }
ValueHandle* value_of(PyObject* self) { return reinterpret_cast<ValueHandle*>(self); }

// What a getter or method of Python makes of `body`.
template <class Body>
PyObject* guarded(Body&& body) {
  try {
    return body().release();
  } catch (const PythonError&) {
    return nullptr;
  } catch (nanobind::python_error& error) {
    error.restore();
  } catch (const en::EngineError& error) {
    set_python_error(error);
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
  }
  return nullptr;
}

bool require_live(const NodeHandle& node) { return node.core->require_live(node.id); }
bool require_live(const ValueHandle& value) { return value.core->require_live(value.id.node); }

template <class Handle>
Handle& handle_of(PyObject* self) {
  return *reinterpret_cast<Handle*>(self);
}

// Getters of Python that return what `kBody` does: of handles that are alive, and of any.
template <auto kBody>
struct Getter;

template <class Handle, Ref (*kBody)(Handle& handle)>
struct Getter<kBody> {
  static PyObject* of_any(PyObject* self, void*) {
    return guarded([&] { return kBody(handle_of<Handle>(self)); });
  }
  static PyObject* of_live(PyObject* self, void*) {
    return require_live(handle_of<Handle>(self)) ? of_any(self, nullptr) : nullptr;
  }
};

template <auto kBody>
constexpr PyGetSetDef of_any(const char* name, const char* doc) {
  return {name, &Getter<kBody>::of_any, nullptr, doc, nullptr};
}
template <auto kBody>
constexpr PyGetSetDef of_live(const char* name, const char* doc) {
  return {name, &Getter<kBody>::of_live, nullptr, doc, nullptr};
}

Ref python_bool(bool value) { return Ref::borrowed(value ? Py_True : Py_False); }

template <class Handle>
Handle* make_handle(GraphCore& core, PyTypeObject* type) {
  Ref owner = owner_of(core);
  if (!owner) {
    PyErr_SetString(PyExc_ReferenceError, "the graph of this core is gone");
    throw PythonError();
  }
  auto* handle = reinterpret_cast<Handle*>(Ref::checked(type->tp_alloc(type, 0)).release());
  handle->owner = owner.release();
  handle->core_self = Py_NewRef(core.self);
  handle->core = &core;
  return handle;
}

// The references of a handle that the collector may follow; `core` lives as long as the handle.
template <class Handle>
int traverse_handle(Handle* handle, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(&handle->ob_base));
  Py_VISIT(handle->owner);
  Py_VISIT(handle->core_self);
  return 0;
}

template <class Handle>
void free_handle(Handle* handle) {
  PyObject* core_self = handle->core_self;
  PyTypeObject* type = Py_TYPE(&handle->ob_base);
  Py_CLEAR(handle->owner);
  type->tp_free(&handle->ob_base);
  Py_XDECREF(core_self);
  Py_DECREF(type);
}

PyObject* refuse_new(PyTypeObject* type, PyObject*, PyObject*) {
  PyErr_Format(PyExc_TypeError, "%s handles come from a graph; they are not made", type->tp_name);
  return nullptr;
}

// Node

int node_traverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(node_of(self)->arguments);
  return traverse_handle(node_of(self), visit, arg);
}

int node_clear(PyObject* self) {
  Py_CLEAR(node_of(self)->arguments);
  return 0;
}

void node_dealloc(PyObject* self) {
  PyObject_GC_UnTrack(self);
  NodeHandle* node = node_of(self);
  if (node->core != nullptr) node->core->nodes[node->id] = nullptr;
  Py_CLEAR(node->arguments);
  free_handle(node);
}

template <class Handle>
Ref graph_of(Handle& handle) {
  return Ref::borrowed(handle.owner);
}

Ref node_name(NodeHandle& node) { return node.core->name(node.id); }
Ref node_op_type(NodeHandle& node) { return python_text(node.core->graph.type(node.id)); }
Ref node_operator(NodeHandle& node) { return python_operator(node.core->graph.op(node.id)); }

Ref node_order(NodeHandle& node) {
  return Ref::checked(PyLong_FromLongLong(node.core->graph.order(node.id)));
}

Ref node_arguments(NodeHandle& node) {
  const en::ArgumentRange& range = node.core->graph.argument_range(node.id);
  const bool cached = node.arguments != nullptr && node.cached.first == range.first &&
                      node.cached.extent == range.extent;
  if (!cached) {
    const en::ArgumentSpan items = node.core->graph.items_of(range);
    Ref made = python_arguments(*node.core, items, range.count);
    Py_XSETREF(node.arguments, made.release());
    node.cached = range;
  }
  return Ref::borrowed(node.arguments);
}

Ref node_keywords(NodeHandle& node) {
  const Ref dict = python_keywords(*node.core, node.core->graph.keywords(node.id));
  return Ref::checked(PyDictProxy_New(dict.get()));
}

// A value of another graph is an opaque argument of this one, but it is read all the same.
Ref node_inputs(NodeHandle& node) {
  const Ref found = Ref::checked(PyList_New(0));
  for (const en::Argument& item : node.core->graph.all_arguments(node.id)) {
    Ref read;
    if (item.tag == en::Tag::kValue) {
      read = value_handle(*node.core, item.value);
    } else if (item.tag == en::Tag::kOpaque && as_value(node.core->objects.at(item.id))) {
      read = Ref::borrowed(node.core->objects.at(item.id));
    }
    if (read && PyList_Append(found.get(), read.get()) != 0) throw PythonError();
  }
  return Ref::checked(PyList_AsTuple(found.get()));
}

Ref node_outputs(NodeHandle& node) {
  const uint32_t count = node.core->graph.output_count(node.id);
  Ref all = Ref::checked(PyTuple_New(count));
  for (uint32_t i = 0; i < count; ++i) {
    PyTuple_SET_ITEM(all.get(), i, value_handle(*node.core, {node.id, i}).release());
  }
  return all;
}

Ref node_output(NodeHandle& node) {
  const en::Graph& graph = node.core->graph;
  if (graph.output_count(node.id) > 0) return value_handle(*node.core, {node.id, 0});
  const std::string type(en::Strings::text(graph.type(node.id)));
  en::throw_error(en::ErrorCode::kInvalid, "node ", en::in_quotes(graph.name_text(node.id)), " (",
                  type, ") has no output");
}

Ref node_users(NodeHandle& node) {
  return node_tuple(*node.core, node.core->graph.sorted_users(node.id));
}

Ref node_control_inputs(NodeHandle& node) {
  return node_tuple(*node.core, node.core->graph.control_inputs(node.id));
}

Ref node_control_users(NodeHandle& node) {
  return node_tuple(*node.core, node.core->graph.control_users(node.id));
}

Ref node_pure(NodeHandle& node) { return python_bool(node.core->graph.pure(node.id)); }

Ref node_next(NodeHandle& node) {
  const en::NodeId next = node.core->graph.next(node.id);
  return next == en::kNoNode ? Ref::borrowed(Py_None) : node_handle(*node.core, next);
}

PyObject* node_is_before(PyObject* self, PyObject* other) {
  NodeHandle* node = node_of(self);
  NodeHandle* later = as_node(other);
  if (later == nullptr) {
    PyErr_SetString(PyExc_TypeError, "is_before takes a node");
    return nullptr;
  }
  if (!require_live(*node) || !require_live(*later)) return nullptr;
  const bool before = node->core->graph.order(node->id) < later->core->graph.order(later->id);
  return python_bool(before).release();
}

Ref node_is_erased(NodeHandle& node) {
  const en::Graph& graph = node.core->graph;
  return python_bool(!graph.alive(node.id) && !graph.is_draft(node.id));
}

Ref node_wanted_name(NodeHandle& node) {
  return python_text(node.core->graph.wanted_name(node.id));
}

Ref node_meta(NodeHandle& node) { return node.core->node_meta(node.id); }

using Table = std::unordered_map<en::NodeId, Ref>;

PyObject* get_entry(const Table& table, en::NodeId node) {
  const auto found = table.find(node);
  return Py_NewRef(found == table.end() ? Py_None : found->second.get());
}

int set_entry(Table& table, en::NodeId node, PyObject* object) {
  if (object == nullptr || object == Py_None) {
    table.erase(node);
  } else {
    table[node] = Ref::borrowed(object);
  }
  return 0;
}

PyObject* node_handle_of(PyObject* self, void*) {
  PyObject* handle = node_of(self)->core->handle(node_of(self)->id);
  return Py_NewRef(handle == nullptr ? Py_None : handle);
}

int set_node_handle(PyObject* self, PyObject* object, void*) {
  node_of(self)->core->set_handle(node_of(self)->id, object == nullptr ? Py_None : object);
  return 0;
}

PyObject* node_payload(PyObject* self, void*) {
  return get_entry(node_of(self)->core->payloads, node_of(self)->id);
}

int set_node_payload(PyObject* self, PyObject* object, void*) {
  return set_entry(node_of(self)->core->payloads, node_of(self)->id, object);
}

PyGetSetDef node_getters[] = {
    of_live<graph_of<NodeHandle>>("graph", "The graph that owns this node."),
    of_live<node_name>("name", "Unique in its graph."),
    of_live<node_op_type>(
        "op_type", "For instance `aten::add.Tensor`, `aten::addmm`, `ir::input`, `ir::constant`."),
    of_live<node_operator>("operator", "The operator's facts."),
    of_live<node_order>(
        "order", "Grows along the graph: a key to sort nodes by. Changes when nodes are inserted."),
    of_live<node_arguments>("arguments", "All arguments in schema order."),
    of_live<node_keywords>(
        "keywords", "Keyword arguments of an operation that has no schema; empty for operators."),
    of_live<node_inputs>(
        "inputs", "Every value this node reads, in order; one that is read twice stands twice."),
    of_live<node_outputs>("outputs", "The values this node computes."),
    of_live<node_output>("output", "The first output."),
    of_live<node_users>("users", "The nodes that read any output, each once, in graph order."),
    of_live<node_control_inputs>(
        "control_inputs",
        "The nodes from which control edges lead here, in the order in which they were added."),
    of_live<node_control_users>("control_users",
                                "The nodes to which control edges lead from here, in graph order."),
    of_live<node_pure>(
        "pure", "Whether this call only computes its outputs: it may be moved, folded or dropped."),
    of_live<node_next>("next", "The node after this one; None for the output node."),
    of_any<node_is_erased>("is_erased", "Whether the node is in its graph no more."),
    of_any<node_name>("_name", "The name, also of an erased node."),
    of_any<node_wanted_name>("_wanted_name",
                             "The name if it was asked for, else what it would be made from."),
    of_any<node_operator>("_operator", "The operator, also of an erased node."),
    of_any<node_outputs>("_outputs", "The values, also of an erased node."),
    of_any<node_meta>(
        "meta",
        "Free for anyone; `rule` is the pass that made the node, `stack_trace` the user's line."),
    {"handle", node_handle_of, set_node_handle,
     "The node of the mirrored graph; None for a node that no other graph knows.", nullptr},
    {"payload", node_payload, set_node_payload,
     "The data of a constant that passes may fold; None otherwise.", nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr}};

PyObject* node_meta_entry(PyObject* self, PyObject* key) {
  NodeHandle* node = node_of(self);
  return guarded([&] {
    Ref entry = node->core->node_meta_entry(node->id, key);
    return entry ? std::move(entry) : Ref::borrowed(Py_None);
  });
}

PyMethodDef node_methods[] = {
    {"_meta_entry", node_meta_entry, METH_O, "One entry of `meta`, or None, without making it."},
    {"is_before", node_is_before, METH_O, "Whether this node runs before `other`."},
    {nullptr, nullptr, 0, nullptr}};

PyType_Slot node_slots[] = {{Py_tp_getset, node_getters},
                            {Py_tp_methods, node_methods},
                            {Py_tp_new, reinterpret_cast<void*>(refuse_new)},
                            {Py_tp_traverse, reinterpret_cast<void*>(node_traverse)},
                            {Py_tp_clear, reinterpret_cast<void*>(node_clear)},
                            {Py_tp_dealloc, reinterpret_cast<void*>(node_dealloc)},
                            {0, nullptr}};

constexpr unsigned kFlags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC;

PyType_Spec node_spec = {"bringup._native._core.NodeBase", sizeof(NodeHandle), 0, kFlags,
                         node_slots};

// Value

int value_traverse(PyObject* self, visitproc visit, void* arg) {
  return traverse_handle(value_of(self), visit, arg);
}

void value_dealloc(PyObject* self) {
  PyObject_GC_UnTrack(self);
  ValueHandle* value = value_of(self);
  if (value->core != nullptr) value->core->values[value->slot] = nullptr;
  free_handle(value);
}

Ref value_node(ValueHandle& value) { return node_handle(*value.core, value.id.node); }

Ref value_index(ValueHandle& value) {
  return Ref::checked(PyLong_FromUnsignedLong(value.id.index));
}

Ref value_name(ValueHandle& value) {
  const en::Graph& graph = value.core->graph;
  Ref name = python_text(graph.name(value.id.node));
  if (graph.output_count(value.id.node) == 1) return name;
  return Ref::checked(PyUnicode_FromFormat("%U:%u", name.get(), value.id.index));
}

Ref value_meta(ValueHandle& value) {
  PyObject* meta = value.core->meta(value.id);
  return Ref::borrowed(meta == nullptr ? Py_None : meta);
}

Ref value_users(ValueHandle& value) {
  return node_tuple(*value.core, value.core->graph.sorted_users(value.id));
}

Ref value_is_erased(ValueHandle& value) {
  return python_bool(!value.core->graph.alive(value.id.node));
}

PyGetSetDef value_getters[] = {
    of_live<graph_of<ValueHandle>>("graph", "The graph that owns this value."),
    of_live<value_node>("node", "The node that computes this value."),
    of_live<value_index>("index", "Which output of its node it is."),
    of_live<value_name>("name",
                        "The name of the node, with `:index` when the node has several outputs."),
    of_any<value_node>("_node", "The node, also an erased one."),
    of_any<value_index>("_index", "The index, also of an erased node's."),
    of_any<value_meta>("_meta", "The description, also of an erased node's."),
    of_live<value_meta>(
        "meta",
        "The dialect's own description (for ATen a fake tensor or SymInt); None if unknown."),
    of_live<value_users>("users", "The nodes that read this value, each once, in graph order."),
    of_any<value_is_erased>("is_erased", "Whether its node is in its graph no more."),
    {nullptr, nullptr, nullptr, nullptr, nullptr}};

PyType_Slot value_slots[] = {{Py_tp_getset, value_getters},
                             {Py_tp_new, reinterpret_cast<void*>(refuse_new)},
                             {Py_tp_traverse, reinterpret_cast<void*>(value_traverse)},
                             {Py_tp_dealloc, reinterpret_cast<void*>(value_dealloc)},
                             {0, nullptr}};

PyType_Spec value_spec = {"bringup._native._core.ValueBase", sizeof(ValueHandle), 0, kFlags,
                          value_slots};

PyTypeObject* node_base = nullptr;
PyTypeObject* value_base = nullptr;

bool add_type(PyObject* module, const char* name, PyType_Spec& spec, PyTypeObject*& type) {
  type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&spec));
  return type != nullptr &&
         PyModule_AddObjectRef(module, name, reinterpret_cast<PyObject*>(type)) == 0;
}

template <class T>
void grow(std::vector<T>& table, size_t size) {
  if (table.size() < size) table.resize(size + size / 2);
}

}  // namespace

bool add_handle_types(PyObject* module) {
  return add_type(module, "NodeBase", node_spec, node_base) &&
         add_type(module, "ValueBase", value_spec, value_base);
}

void use_handle_types(PyObject* node, PyObject* value) {
  node_type = reinterpret_cast<PyTypeObject*>(Py_NewRef(node));
  value_type = reinterpret_cast<PyTypeObject*>(Py_NewRef(value));
}

NodeHandle* as_node(PyObject* object) {
  const bool is = Py_TYPE(object) == node_type || PyObject_TypeCheck(object, node_base);
  return is ? node_of(object) : nullptr;
}

ValueHandle* as_value(PyObject* object) {
  const bool is = Py_TYPE(object) == value_type || PyObject_TypeCheck(object, value_base);
  return is ? value_of(object) : nullptr;
}

en::NodeId node_of(const GraphCore& core, nanobind::handle object) {
  NodeHandle* node = as_node(object.ptr());
  if (node == nullptr) throw nanobind::type_error("expected a node");
  if (node->core != &core) throw nanobind::value_error("the node belongs to another graph");
  return node->id;
}

en::ValueId value_of(const GraphCore& core, nanobind::handle object) {
  ValueHandle* value = as_value(object.ptr());
  if (value == nullptr) throw nanobind::type_error("expected a value");
  if (value->core != &core) throw nanobind::value_error("the value belongs to another graph");
  return value->id;
}

std::vector<en::NodeId> nodes_of(const GraphCore& core, nanobind::handle listed) {
  std::vector<en::NodeId> nodes;
  for (nanobind::handle item : listed) nodes.push_back(node_of(core, item));
  return nodes;
}

Ref node_handle(GraphCore& core, en::NodeId node) {
  if (node < core.nodes.size() && core.nodes[node] != nullptr) {
    return Ref::borrowed(core.nodes[node]);
  }
  grow(core.nodes, core.graph.end());
  auto* handle = make_handle<NodeHandle>(core, node_type);
  handle->id = node;
  core.nodes[node] = &handle->ob_base;
  return Ref(&handle->ob_base);
}

Ref value_handle(GraphCore& core, en::ValueId value) {
  const uint32_t slot = core.graph.slot(value);
  if (slot < core.values.size() && core.values[slot] != nullptr) {
    return Ref::borrowed(core.values[slot]);
  }
  grow(core.values, slot + 1);
  auto* handle = make_handle<ValueHandle>(core, value_type);
  handle->id = value;
  handle->slot = slot;
  core.values[slot] = &handle->ob_base;
  return Ref(&handle->ob_base);
}

Ref node_tuple(GraphCore& core, std::span<const en::NodeId> nodes) {
  Ref all = Ref::checked(PyTuple_New(static_cast<Py_ssize_t>(nodes.size())));
  for (size_t i = 0; i < nodes.size(); ++i) {
    PyTuple_SET_ITEM(all.get(), static_cast<Py_ssize_t>(i), node_handle(core, nodes[i]).release());
  }
  return all;
}

Ref value_tuple(GraphCore& core, std::span<const en::ValueId> values) {
  Ref all = Ref::checked(PyTuple_New(static_cast<Py_ssize_t>(values.size())));
  for (size_t i = 0; i < values.size(); ++i) {
    const auto place = static_cast<Py_ssize_t>(i);
    PyTuple_SET_ITEM(all.get(), place, value_handle(core, values[i]).release());
  }
  return all;
}

}  // namespace bringup::python
