// Arguments of nodes: from Python objects to the engine's form and back.
#include "engine/util/forever.h"
#include "python/engine_core.h"
#include "python/engine_handles.h"

namespace bringup::python {
namespace {

struct Symbolic {
  PyTypeObject* type;
  Ref describe;
};

// Guarded by the GIL.
std::vector<Symbolic>& symbolic_types() { return forever<std::vector<Symbolic>>(); }

const Symbolic* symbolic(PyObject* object) {
  for (const Symbolic& one : symbolic_types()) {
    if (Py_TYPE(object) == one.type) return &one;
  }
  return nullptr;
}

void put_opaque(GraphCore& core, PyObject* object, en::ArgumentList& list) {
  list.put(en::Argument::of_opaque(core.objects.intern(object)));
}

void put_int(GraphCore& core, PyObject* object, en::ArgumentList& list) {
  int overflow = 0;
  const long long number = PyLong_AsLongLongAndOverflow(object, &overflow);
  if (overflow != 0) return put_opaque(core, object, list);
  list.put(en::Argument::of_int(number));
}

void put_string(GraphCore& core, PyObject* object, en::ArgumentList& list) {
  Py_ssize_t size = 0;
  const char* text = PyUnicode_AsUTF8AndSize(object, &size);
  if (text == nullptr) {  // a lone surrogate
    PyErr_Clear();
    return put_opaque(core, object, list);
  }
  list.put(en::Argument::of_string(en::Strings::intern({text, static_cast<size_t>(size)})));
}

void put_value(GraphCore& core, ValueHandle* value, en::ArgumentList& list) {
  if (value->core != &core) return put_opaque(core, &value->ob_base, list);
  if (!core.require_live(value->id.node)) throw PythonError();
  list.put(en::Argument::of_value(value->id));
}

// A node of the graph that is being mirrored.
void put_mirrored(GraphCore& core, PyObject* node, en::ArgumentList& list) {
  const en::ValueId* found = core.fx_values->find(reinterpret_cast<uintptr_t>(node));
  if (found == nullptr) {
    PyErr_SetObject(PyExc_KeyError, node);
    throw PythonError();
  }
  list.put(en::Argument::of_value(*found));
}

void put_symbol(GraphCore& core, const Symbolic& kind, PyObject* object, en::ArgumentList& list) {
  const Ref text = Ref::checked(PyObject_CallOneArg(kind.describe.get(), object));
  const en::StringId expression = string_of(text.get());
  core.objects.keep_symbol(expression, object);
  list.put(en::Argument::of_symbol(expression));
}

// A list may hold itself.
class Recursion {
 public:
  Recursion() {
    if (Py_EnterRecursiveCall(" in the arguments of a node") != 0) throw PythonError();
  }
  ~Recursion() { Py_LeaveRecursiveCall(); }
};

void put_list(GraphCore& core, PyObject* items, en::ArgumentList& list) {
  const Recursion deeper;
  list.open(en::Tag::kList);
  convert_all(core, items, list);
  list.close();
}

void put_dict(GraphCore& core, PyObject* dict, en::ArgumentList& list) {
  const Recursion deeper;
  list.open(en::Tag::kDict);
  Py_ssize_t position = 0;
  PyObject* key = nullptr;
  PyObject* item = nullptr;
  while (PyDict_Next(dict, &position, &key, &item)) {
    const bool nested = PyTuple_Check(key) || PySlice_Check(key);
    nested ? put_opaque(core, key, list) : convert(core, key, list);
    convert(core, item, list);
  }
  list.close();
}

void put_slice(GraphCore& core, PyObject* object, en::ArgumentList& list) {
  const Recursion deeper;
  const auto* slice = reinterpret_cast<PySliceObject*>(object);
  list.open(en::Tag::kSlice);
  for (PyObject* item : {slice->start, slice->stop, slice->step}) convert(core, item, list);
  list.close();
}

// Calls `visit` with the item at every top-level position of a run.
template <class Visit>
void for_each_item(en::ArgumentSpan run, Visit&& visit) {
  for (size_t i = 0; i < run.size(); i += size_t{1} + run[i].extent) visit(en::item_at(run, i));
}

Ref python_leaf(GraphCore& core, const en::Argument& leaf) {
  switch (leaf.tag) {
    case en::Tag::kBool:
      return Ref::borrowed(leaf.integer != 0 ? Py_True : Py_False);
    case en::Tag::kInt:
      return Ref::checked(PyLong_FromLongLong(leaf.integer));
    case en::Tag::kFloat:
      return Ref::checked(PyFloat_FromDouble(leaf.number));
    case en::Tag::kString:
      return python_text(leaf.id);
    case en::Tag::kSymbol:
      if (PyObject* symbol = core.objects.symbol(leaf.id)) return Ref::borrowed(symbol);
      return python_text(leaf.id);
    case en::Tag::kOpaque:
      return Ref::borrowed(core.objects.at(leaf.id));
    case en::Tag::kValue:
      return value_handle(core, leaf.value);
    default:
      return Ref::borrowed(Py_None);
  }
}

Ref python_slice(GraphCore& core, en::ArgumentSpan inside) {
  const Ref parts = python_arguments(core, inside, 3);
  PyObject* const* items = reinterpret_cast<PyTupleObject*>(parts.get())->ob_item;
  return Ref::checked(PySlice_New(items[0], items[1], items[2]));
}

}  // namespace

void use_symbolic_type(PyObject* type, PyObject* describe) {
  Py_INCREF(type);
  symbolic_types().push_back({reinterpret_cast<PyTypeObject*>(type), Ref::borrowed(describe)});
}

void convert(GraphCore& core, PyObject* argument, en::ArgumentList& list) {
  if (Py_TYPE(argument) == core.fx_type) return put_mirrored(core, argument, list);
  if (ValueHandle* value = as_value(argument)) return put_value(core, value, list);
  if (argument == Py_None) return list.put(en::Argument::none());
  if (PyBool_Check(argument)) return list.put(en::Argument::of_bool(argument == Py_True));
  if (PyLong_CheckExact(argument)) return put_int(core, argument, list);
  if (PyFloat_CheckExact(argument)) {
    return list.put(en::Argument::of_float(PyFloat_AS_DOUBLE(argument)));
  }
  if (PyUnicode_CheckExact(argument)) return put_string(core, argument, list);
  if (PyTuple_Check(argument) || PyList_Check(argument)) return put_list(core, argument, list);
  if (PyDict_Check(argument)) return put_dict(core, argument, list);
  if (PySlice_Check(argument)) return put_slice(core, argument, list);
  if (const Symbolic* kind = symbolic(argument)) return put_symbol(core, *kind, argument, list);
  put_opaque(core, argument, list);
}

void convert_all(GraphCore& core, PyObject* arguments, en::ArgumentList& list) {
  const Ref items =
      Ref::checked(PySequence_Fast(arguments, "the arguments of a node are a sequence"));
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(items.get()); ++i) {
    convert(core, PySequence_Fast_GET_ITEM(items.get(), i), list);
  }
}

Ref python_argument(GraphCore& core, en::ArgumentSpan item) {
  const en::Argument& head = item.front();
  const en::ArgumentSpan inside = item.subspan(1);
  if (head.tag == en::Tag::kList) return python_arguments(core, inside, head.count);
  if (head.tag == en::Tag::kDict) return python_keywords(core, item);
  if (head.tag == en::Tag::kSlice) return python_slice(core, inside);
  return python_leaf(core, head);
}

Ref python_arguments(GraphCore& core, en::ArgumentSpan run, uint32_t count) {
  Ref all = Ref::checked(PyTuple_New(count));
  Py_ssize_t place = 0;
  for_each_item(run, [&](en::ArgumentSpan item) {
    PyTuple_SET_ITEM(all.get(), place++, python_argument(core, item).release());
  });
  return all;
}

Ref python_keywords(GraphCore& core, en::ArgumentSpan dict) {
  Ref all = Ref::checked(PyDict_New());
  Ref key;
  if (dict.empty()) return all;
  for_each_item(dict.subspan(1), [&](en::ArgumentSpan item) {
    Ref object = python_argument(core, item);
    if (!key) {
      key = std::move(object);
      return;
    }
    if (PyDict_SetItem(all.get(), key.get(), object.get()) != 0) throw PythonError();
    key = Ref();
  });
  return all;
}

}  // namespace bringup::python
