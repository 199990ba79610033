#include "python/engine_core.h"

namespace bringup::python {
namespace {

constexpr const char* kExpired = "graph handle has expired: ";

// What an error of the engine is in Python: a new reference.
Ref exception_of(en::ErrorCode code) {
  switch (code) {
    case en::ErrorCode::kPass:
    case en::ErrorCode::kFailed:
    case en::ErrorCode::kNoProvider:
      return Ref(error_type(ErrorClass::kPass));
    case en::ErrorCode::kSchema:
      return Ref(error_type(ErrorClass::kSchema));
    case en::ErrorCode::kExpired:
      return Ref(error_type(ErrorClass::kExpiredHandle));
    case en::ErrorCode::kMissing:
      return Ref::borrowed(PyExc_KeyError);
    case en::ErrorCode::kBusy:
      return Ref::borrowed(PyExc_RuntimeError);
    default:
      return Ref::borrowed(PyExc_ValueError);
  }
}

// Copies entries from the meta of a mirrored node.
void inherit_meta(PyObject* keys, PyObject* mirrored, PyObject* meta) {
  const Ref source = Ref::checked(PyObject_GetAttrString(mirrored, "meta"));
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(keys); ++i) {
    PyObject* key = PyTuple_GET_ITEM(keys, i);
    PyObject* entry = PyDict_GetItemWithError(source.get(), key);
    if (entry != nullptr && PyDict_SetItem(meta, key, entry) != 0) throw PythonError();
  }
  if (PyErr_Occurred()) throw PythonError();
}

}  // namespace

void set_python_error(const en::EngineError& error) {
  const Ref type = exception_of(error.code());
  if (!type) return;
  const bool expired = error.code() == en::ErrorCode::kExpired;
  PyErr_SetString(type.get(), ((expired ? kExpired : "") + std::string(error.what())).c_str());
}

en::Graph& editable(GraphCore& core) {
  if (core.searches != 0) {
    const std::string name(core.graph.name());
    PyErr_Format(PyExc_RuntimeError,
                 "graph '%s' cannot be edited: another thread is looking for a pattern in it",
                 name.c_str());
    throw PythonError();
  }
  return core.graph;
}

Ref owner_of(const GraphCore& core) {
#if PY_VERSION_HEX >= 0x030D0000
  PyObject* owner = nullptr;
  if (PyWeakref_GetRef(core.owner.get(), &owner) < 0) throw PythonError();
  return Ref(owner);
#else
  PyObject* owner = PyWeakref_GetObject(core.owner.get());
  return owner == Py_None ? Ref() : Ref::borrowed(owner);
#endif
}

// What an object is equal by: a number by its bits, which == does not compare.
Ref identity_of(PyObject* object) {
  if (PyFloat_Check(object)) {
    const double real = PyFloat_AS_DOUBLE(object);
    return Ref::checked(
        PyBytes_FromStringAndSize(reinterpret_cast<const char*>(&real), sizeof real));
  }
  if (PyComplex_Check(object)) {
    const Py_complex both = PyComplex_AsCComplex(object);
    return Ref::checked(
        PyBytes_FromStringAndSize(reinterpret_cast<const char*>(&both), sizeof both));
  }
  return Ref::borrowed(object);
}

// What is met here was either hashed once, or cannot be hashed and counts by identity.
uint32_t ObjectTable::intern(PyObject* object) {
  if (const auto known = numbers_.find(object); known != numbers_.end()) return known->second;
  if (!index_) index_ = Ref::checked(PyDict_New());
  const Ref identity = identity_of(object);
  Ref key = Ref::checked(PyTuple_Pack(2, Py_TYPE(object), identity.get()));
  PyObject* found = PyDict_GetItemWithError(index_.get(), key.get());
  if (found != nullptr) return static_cast<uint32_t>(PyLong_AsUnsignedLong(found));
  const auto number = static_cast<uint32_t>(objects_.size());
  if (PyErr_Occurred()) {
    if (!PyErr_ExceptionMatches(PyExc_TypeError)) throw PythonError();
    PyErr_Clear();
  } else {
    const Ref boxed = Ref::checked(PyLong_FromUnsignedLong(number));
    if (PyDict_SetItem(index_.get(), key.get(), boxed.get()) != 0) throw PythonError();
  }
  objects_.push_back(Ref::borrowed(object));
  numbers_.emplace(object, number);
  return number;
}

void ObjectTable::keep_symbol(en::StringId expression, PyObject* object) {
  symbols_.try_emplace(expression, Ref::borrowed(object));
}

PyObject* ObjectTable::symbol(en::StringId expression) const {
  const auto found = symbols_.find(expression);
  return found == symbols_.end() ? nullptr : found->second.get();
}

int ObjectTable::traverse(visitproc visit, void* arg) const {
  Py_VISIT(index_.get());
  for (const Ref& object : objects_) Py_VISIT(object.get());
  for (const auto& [expression, object] : symbols_) Py_VISIT(object.get());
  return 0;
}

// Only the references go: numbers stay valid, so that a node can still be printed.
void ObjectTable::clear() {
  index_ = Ref();
  numbers_.clear();
  for (Ref& object : objects_) object = Ref::borrowed(Py_None);
  symbols_.clear();
}

PyObject* GraphCore::meta(en::ValueId value) {
  const uint32_t slot = graph.slot(value);
  if (mirrored && slot < mirrored->unread.size() && mirrored->unread[slot]) {
    mirrored->unread[slot] = false;
    Ref found =
        Ref::checked(PyObject_CallOneArg(mirrored->resolve.get(), handles[value.node].get()));
    metas[slot] = found.get() == Py_None ? Ref() : std::move(found);
  }
  return slot < metas.size() ? metas[slot].get() : nullptr;
}

void GraphCore::set_meta(en::ValueId value, PyObject* meta) {
  const uint32_t slot = graph.slot(value);
  if (slot >= metas.size()) metas.resize(slot + 1);
  const bool known = meta != nullptr && meta != Py_None;
  metas[slot] = Ref::borrowed(known ? meta : nullptr);
  graph.set_meta(value, known ? uint64_t{slot} + 1 : 0);
  if (!mirrored) return;
  if (slot < mirrored->unread.size()) mirrored->unread[slot] = false;
  mirrored->changed.push_back(value);
}

void GraphCore::leave_unread(en::ValueId value) {
  const uint32_t slot = graph.slot(value);
  if (slot >= metas.size()) metas.resize(slot + 1);
  mirrored->unread.resize(slot + 1, false);
  mirrored->unread[slot] = true;
  graph.set_meta(value, uint64_t{slot} + 1);
}

PyObject* GraphCore::handle(en::NodeId node) const {
  return node < handles.size() ? handles[node].get() : nullptr;
}

void GraphCore::set_handle(en::NodeId node, PyObject* handle) {
  if (node >= handles.size()) handles.resize(node + 1);
  handles[node] = Ref::borrowed(handle == Py_None ? nullptr : handle);
}

Ref GraphCore::node_meta(en::NodeId node) {
  const auto found = node_metas.find(node);
  if (found != node_metas.end()) return Ref::borrowed(found->second.get());
  Ref meta = Ref::checked(PyDict_New());
  if (const en::StringId rule = graph.rule(node); rule != en::kNoString) {
    const Ref name = python_text(rule);
    if (PyDict_SetItemString(meta.get(), "rule", name.get()) != 0) throw PythonError();
  } else if (mirrored && handle(node) != nullptr) {
    inherit_meta(mirrored->inherited.get(), handle(node), meta.get());
  }
  node_metas[node] = Ref::borrowed(meta.get());
  return meta;
}

Ref GraphCore::node_meta_entry(en::NodeId node, PyObject* key) {
  static PyObject* const meta_key = PyUnicode_InternFromString("meta");
  const auto found = node_metas.find(node);
  Ref meta;
  if (found != node_metas.end()) {
    meta = Ref::borrowed(found->second.get());
  } else if (mirrored && handle(node) != nullptr && graph.rule(node) == en::kNoString) {
    meta = Ref::checked(PyObject_GetAttr(handle(node), meta_key));
    const int inherits = PySequence_Contains(mirrored->inherited.get(), key);
    if (inherits < 0) throw PythonError();
    if (inherits == 0) return Ref();
  } else {
    return Ref();
  }
  PyObject* entry = PyDict_GetItemWithError(meta.get(), key);
  if (entry == nullptr && PyErr_Occurred()) throw PythonError();
  return Ref(Py_XNewRef(entry));
}

// torch.fx keeps names unique, so only those asked for are learnt; the output node's is ours.
Ref GraphCore::name(en::NodeId node) const {
  static PyObject* const key = PyUnicode_InternFromString("name");
  if (mirrored && !graph.is_named(node) && handle(node) != nullptr) {
    Ref found = Ref::checked(PyObject_GetAttr(handle(node), key));
    if (PyUnicode_CompareWithASCIIString(found.get(), "output") != 0) return found;
  }
  return python_text(graph.name(node));
}

bool GraphCore::require_live(en::NodeId node) const {
  if (is_live(node)) return true;
  const char* why = expired && (graph.alive(node) || graph.is_draft(node))
                        ? " belongs to a finished session"
                        : " was erased";
  set_error(ErrorClass::kExpiredHandle,
            std::string(kExpired) + "node " + en::in_quotes(graph.name_text(node)) + why);
  return false;
}

}  // namespace bringup::python
