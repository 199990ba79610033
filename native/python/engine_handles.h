// Node and Value: what Python holds of a graph, one object each while alive; they expire.
#pragma once

#include <nanobind/nanobind.h>

#include "python/engine_core.h"

namespace bringup::python {

struct NodeHandle {
  PyObject ob_base;
  PyObject* owner;      // bringup.ir.Graph
  PyObject* core_self;  // keeps `core` alive
  GraphCore* core;
  en::NodeId id;
  en::ArgumentRange cached;  // what `arguments` was made from
  PyObject* arguments;
};

struct ValueHandle {
  PyObject ob_base;
  PyObject* owner;
  PyObject* core_self;
  GraphCore* core;
  en::ValueId id;
  uint32_t slot;
};

// Adds NodeBase and ValueBase to the module; false with a Python error.
bool add_handle_types(PyObject* module);
// The subclasses of these that handles are made of.
void use_handle_types(PyObject* node, PyObject* value);

Ref node_handle(GraphCore& core, en::NodeId node);
Ref value_handle(GraphCore& core, en::ValueId value);
Ref node_tuple(GraphCore& core, std::span<const en::NodeId> nodes);
Ref value_tuple(GraphCore& core, std::span<const en::ValueId> values);
// Null unless it is a handle (of any graph).
NodeHandle* as_node(PyObject* object);
ValueHandle* as_value(PyObject* object);

// From handles to what they stand for in `core`; TypeError, or ValueError of another graph.
en::NodeId node_of(const GraphCore& core, nanobind::handle object);
en::ValueId value_of(const GraphCore& core, nanobind::handle object);
std::vector<en::NodeId> nodes_of(const GraphCore& core, nanobind::handle listed);
inline nanobind::object take(Ref ref) { return nanobind::steal(ref.release()); }

inline nanobind::object text(en::StringId id) { return take(python_text(id)); }

inline nanobind::tuple texts(const std::vector<en::StringId>& ids) {
  nanobind::list all;
  for (const en::StringId id : ids) all.append(text(id));
  return nanobind::tuple(all);
}

// Runs `work` with the GIL; its Python error becomes an exception that may cross the engine.
template <class Work>
auto with_gil(Work&& work) {
  const nanobind::gil_scoped_acquire acquired;
  try {
    return work();
  } catch (const PythonError&) {
    throw nanobind::python_error();
  }
}

}  // namespace bringup::python
