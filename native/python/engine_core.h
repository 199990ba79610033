// A graph of the engine as Python owns it, with what only Python understands and live handles.
#pragma once

#include <Python.h>

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/graph/graph.h"
#include "python/errors.h"

namespace bringup::python {

namespace en = bringup::engine;

// A Python error is set.
struct PythonError {};

// Owns a reference.
class Ref {
 public:
  Ref() = default;
  explicit Ref(PyObject* owned) : object_(owned) {}
  Ref(Ref&& other) noexcept : object_(other.release()) {}
  Ref& operator=(Ref&& other) noexcept {
    PyObject* former = object_;
    object_ = other.release();
    Py_XDECREF(former);
    return *this;
  }
  ~Ref() { Py_XDECREF(object_); }

  static Ref borrowed(PyObject* object) { return Ref(Py_XNewRef(object)); }
  // Throws PythonError for null: what the C API returns on failure.
  static Ref checked(PyObject* owned) {
    if (owned == nullptr) throw PythonError();
    return Ref(owned);
  }
  PyObject* get() const { return object_; }
  PyObject* release() {
    PyObject* object = object_;
    object_ = nullptr;
    return object;
  }
  explicit operator bool() const { return object_ != nullptr; }

 private:
  PyObject* object_ = nullptr;
};

// Python objects that are arguments: equal ones (type and ==; numbers to the bit) have one number.
class ObjectTable {
 public:
  uint32_t intern(PyObject* object);
  size_t size() const { return objects_.size(); }
  PyObject* at(uint32_t number) const { return objects_[number].get(); }  // borrowed
  // The object that stands for a symbolic integer; the first of equal ones.
  void keep_symbol(en::StringId expression, PyObject* object);
  PyObject* symbol(en::StringId expression) const;
  int traverse(visitproc visit, void* arg) const;
  void clear();

 private:
  Ref index_;                                        // dict: (type, object) -> number
  std::unordered_map<PyObject*, uint32_t> numbers_;  // of kept objects, by address
  std::vector<Ref> objects_;
  std::unordered_map<en::StringId, Ref> symbols_;
};

// Values by the address of the node they mirror.
using FxValues = en::FlatMap<uintptr_t, en::ValueId, 0>;

// What a graph that mirrors another keeps of it.
struct Mirrored {
  Ref resolve;               // gives the meta of a mirrored node
  Ref inherited;             // keys of its meta that Node.meta takes over
  std::vector<bool> unread;  // by slot: the meta was not asked for yet
  std::unordered_map<en::ValueId, std::vector<Ref>> items;  // nodes there that are values here
  std::vector<en::ValueId> changed;                         // have another meta than they had
};

struct GraphCore {
  explicit GraphCore(const std::string& name) : GraphCore(std::make_shared<en::Graph>(name)) {}
  // A graph that was there before, of a program in C++.
  explicit GraphCore(std::shared_ptr<en::Graph> given) : held(std::move(given)), graph(*held) {}

  const std::shared_ptr<en::Graph> held;
  en::Graph& graph;
  PyObject* self = nullptr;  // the Python object of this core; borrowed
  Ref owner;                 // weak reference to the bringup.ir.Graph
  bool expired = false;
  uint32_t searches = 0;  // that run without the GIL just now
  ObjectTable objects;
  std::vector<PyObject*> nodes;                    // live handles by number; borrowed
  std::vector<PyObject*> values;                   // live handles by slot; borrowed
  std::vector<Ref> metas;                          // by slot
  std::unordered_map<en::NodeId, Ref> node_metas;  // dicts
  std::vector<Ref> handles;                        // nodes of the mirrored graph, by number
  std::unordered_map<en::NodeId, Ref> payloads;
  std::unique_ptr<Mirrored> mirrored;  // null: this graph mirrors none
  // While a graph is being mirrored: the type of its nodes, and what was made of them.
  PyTypeObject* fx_type = nullptr;
  const FxValues* fx_values = nullptr;

  PyObject* meta(en::ValueId value);  // borrowed; null: none
  void set_meta(en::ValueId value, PyObject* meta);
  void leave_unread(en::ValueId value);                 // the meta is that of the mirrored node
  Ref node_meta(en::NodeId node);                       // the dict, made when first asked for
  Ref node_meta_entry(en::NodeId node, PyObject* key);  // without making it; null: none
  Ref name(en::NodeId node) const;
  PyObject* handle(en::NodeId node) const;  // borrowed; null: none
  void set_handle(en::NodeId node, PyObject* handle);
  // Whether a node may be read, else why not, as a Python error.
  bool require_live(en::NodeId node) const;
  bool is_live(en::NodeId node) const {
    return !expired && (graph.alive(node) || graph.is_draft(node));
  }
};

// Makes edits by other threads errors during a search without the GIL. Made and ended with it.
class Searching {
 public:
  explicit Searching(GraphCore& core) : core_(core) { ++core_.searches; }
  Searching& operator=(Searching&&) = delete;
  ~Searching() { --core_.searches; }

 private:
  GraphCore& core_;
};

// The graph, to be changed. Throws PythonError while another thread searches it.
en::Graph& editable(GraphCore& core);

// The bringup.ir.Graph of a core; null when it is gone.
Ref owner_of(const GraphCore& core);

inline Ref attribute(PyObject* object, const char* name) {
  return Ref::checked(PyObject_GetAttrString(object, name));
}

// Strings and operators.
Ref python_text(en::StringId text);             // one str object a text
en::StringId string_of(PyObject* text);         // throws PythonError
const en::Operator* operator_of(PyObject* op);  // a bringup.ir.Operator
Ref python_operator(const en::Operator& op);    // the first that meant the same
void use_operator_types(PyObject* op, PyObject* parameter);
// `describe(object)` gives the text of a symbolic integer of this type.
void use_symbolic_type(PyObject* type, PyObject* describe);

// Arguments. A value of another graph is an opaque object here.
void convert(GraphCore& core, PyObject* argument, en::ArgumentList& list);
void convert_all(GraphCore& core, PyObject* arguments, en::ArgumentList& list);  // a sequence
Ref python_argument(GraphCore& core, en::ArgumentSpan item);
Ref python_arguments(GraphCore& core, en::ArgumentSpan run, uint32_t count);  // a tuple
Ref python_keywords(GraphCore& core, en::ArgumentSpan dict);                  // a dict

// Sets the Python exception for an error of the engine.
void set_python_error(const en::EngineError& error);

}  // namespace bringup::python
