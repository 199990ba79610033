// Operators and strings of the engine as Python objects.

#include "engine/util/forever.h"
#include "python/engine_core.h"

namespace bringup::python {
namespace {

// Process-wide and never freed, as strings and operators of the engine are. The GIL guards them.
std::vector<Ref>& kept_texts() {
  static auto* kept = new std::vector<Ref>;
  return *kept;
}

struct Operators {
  Ref operator_type;
  Ref parameter_type;
  std::vector<const en::Operator*> by_number;
  std::vector<Ref> objects;
};

Operators& operators() { return forever<Operators>(); }

// Where an Operator remembers its number: in its __dict__, past its fields.
PyObject* number_key() {
  static PyObject* key = PyUnicode_InternFromString("_engine_number");
  return key;
}

bool truth_of(PyObject* object, const char* name) {
  const int truth = PyObject_IsTrue(attribute(object, name).get());
  if (truth < 0) throw PythonError();
  return truth != 0;
}

int32_t number_or(PyObject* object, const char* name, int32_t otherwise) {
  const Ref found = attribute(object, name);
  if (found.get() == Py_None) return otherwise;
  const long number = PyLong_AsLong(found.get());
  if (number == -1 && PyErr_Occurred()) throw PythonError();
  return static_cast<int32_t>(number);
}

std::vector<uint32_t> indices(PyObject* object, const char* name) {
  const Ref sorted = Ref::checked(PySequence_List(attribute(object, name).get()));
  if (PyList_Sort(sorted.get()) != 0) throw PythonError();
  std::vector<uint32_t> found;
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(sorted.get()); ++i) {
    const unsigned long index = PyLong_AsUnsignedLong(PyList_GET_ITEM(sorted.get(), i));
    if (PyErr_Occurred()) throw PythonError();
    found.push_back(static_cast<uint32_t>(index));
  }
  return found;
}

en::Operator facts_of(PyObject* object) {
  en::Operator facts;
  facts.type = string_of(attribute(object, "type").get());
  const Ref parameters = Ref::checked(PySequence_Tuple(attribute(object, "parameters").get()));
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(parameters.get()); ++i) {
    PyObject* parameter = PyTuple_GET_ITEM(parameters.get(), i);
    facts.parameters.push_back({string_of(attribute(parameter, "name").get()),
                                string_of(attribute(parameter, "type").get())});
  }
  facts.output_count = number_or(object, "output_count", en::kOutputsDependOnCall);
  facts.mutates = indices(object, "mutates");
  facts.aliases = indices(object, "aliases");
  facts.random = truth_of(object, "random");
  facts.kept = truth_of(object, "kept");
  facts.opaque = truth_of(object, "opaque");
  facts.commutes = truth_of(object, "commutes");
  facts.commutes_if_one = number_or(object, "commutes_if_one", en::kAlwaysCommutes);
  return facts;
}

Ref index_set(const std::vector<uint32_t>& indices) {
  Ref set = Ref::checked(PyFrozenSet_New(nullptr));
  for (const uint32_t index : indices) {
    const Ref boxed = Ref::checked(PyLong_FromUnsignedLong(index));
    if (PySet_Add(set.get(), boxed.get()) != 0) throw PythonError();
  }
  return set;
}

Ref number_or_none(int32_t number) {
  return number < 0 ? Ref::borrowed(Py_None) : Ref::checked(PyLong_FromLong(number));
}

Ref parameters_of(const en::Operator& op) {
  Ref parameters = Ref::checked(PyTuple_New(static_cast<Py_ssize_t>(op.parameters.size())));
  for (size_t i = 0; i < op.parameters.size(); ++i) {
    const Ref name = python_text(op.parameters[i].name);
    const Ref type = python_text(op.parameters[i].type);
    PyObject* parameter = PyObject_CallFunctionObjArgs(operators().parameter_type.get(), name.get(),
                                                       type.get(), nullptr);
    if (parameter == nullptr) throw PythonError();
    PyTuple_SET_ITEM(parameters.get(), static_cast<Py_ssize_t>(i), parameter);
  }
  return parameters;
}

// For an operator that no Python code has described: made by a native pass, or by the engine.
Ref make_operator(const en::Operator& op) {
  const Ref type = python_text(op.type);
  const Ref parameters = parameters_of(op);
  const Ref count = number_or_none(op.output_count);
  const Ref mutates = index_set(op.mutates);
  const Ref aliases = index_set(op.aliases);
  const Ref if_one = number_or_none(op.commutes_if_one);
  const auto boolean = [](bool truth) { return truth ? Py_True : Py_False; };
  return Ref::checked(PyObject_CallFunctionObjArgs(
      operators().operator_type.get(), type.get(), parameters.get(), count.get(), mutates.get(),
      aliases.get(), boolean(op.random), boolean(op.kept), boolean(op.opaque), boolean(op.commutes),
      if_one.get(), nullptr));
}

void remember(const en::Operator* op, PyObject* object) {
  Operators& all = operators();
  if (op->number >= all.by_number.size()) {
    all.by_number.resize(op->number + 1, nullptr);
    all.objects.resize(op->number + 1);
  }
  all.by_number[op->number] = op;
  if (!all.objects[op->number]) all.objects[op->number] = Ref::borrowed(object);
}

}  // namespace

Ref python_text(en::StringId text) {
  std::vector<Ref>& all = kept_texts();
  if (text >= all.size()) all.resize(text + text / 2 + 64);
  if (!all[text]) {
    const std::string_view view = en::Strings::text(text);
    all[text] = Ref::checked(
        PyUnicode_FromStringAndSize(view.data(), static_cast<Py_ssize_t>(view.size())));
  }
  return Ref::borrowed(all[text].get());
}

en::StringId string_of(PyObject* text) {
  Py_ssize_t size = 0;
  const char* start = PyUnicode_AsUTF8AndSize(text, &size);
  if (start == nullptr) throw PythonError();
  return en::Strings::intern({start, static_cast<size_t>(size)});
}

const en::Operator* operator_of(PyObject* object) {
  const Ref known(PyObject_GenericGetAttr(object, number_key()));
  if (known) return operators().by_number[PyLong_AsUnsignedLong(known.get())];
  PyErr_Clear();
  const en::Operator* op = en::Operators::intern(facts_of(object));
  remember(op, object);
  const Ref number = Ref::checked(PyLong_FromUnsignedLong(op->number));
  if (PyObject_GenericSetAttr(object, number_key(), number.get()) != 0) throw PythonError();
  return op;
}

Ref python_operator(const en::Operator& op) {
  Operators& all = operators();
  if (op.number >= all.objects.size() || !all.objects[op.number]) {
    remember(&op, make_operator(op).get());
  }
  return Ref::borrowed(all.objects[op.number].get());
}

void use_operator_types(PyObject* op, PyObject* parameter) {
  operators().operator_type = Ref::borrowed(op);
  operators().parameter_type = Ref::borrowed(parameter);
}

}  // namespace bringup::python
