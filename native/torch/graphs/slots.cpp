#include "torch/graphs/slots.h"

#include <c10/util/SmallVector.h>
#include <nanobind/stl/string.h>

#include <optional>

#include "torch/common/errors.h"

namespace bringup::torch_ext::graphs {
namespace {

namespace nb = nanobind;

[[noreturn]] void refuse(const std::string& message) {
  const nb::object type = nb::module_::import_("bringup.errors").attr("UpdateError");
  PyErr_SetString(type.ptr(), message.c_str());
  throw nb::python_error();
}

// Inside a catch block: what was thrown is the cause of an UpdateError.
[[noreturn]] void refuse_with_current() {
  set_python_error_from_current_exception();
  const nb::python_error cause;
  refuse(std::string(nb::str(cause.value()).c_str()) + ". Nothing was changed");
}

std::string value_text(nb::handle value) {
  return std::string(nb::repr(value).c_str()) + " (" + nb::type_name(value.type()).c_str() + ")";
}

std::optional<int64_t> as_int(nb::handle value) {
  if (PyLong_CheckExact(value.ptr())) {
    int overflow = 0;
    const int64_t number = PyLong_AsLongLongAndOverflow(value.ptr(), &overflow);
    return overflow == 0 ? std::optional(number) : std::nullopt;
  }
  if (PyBool_Check(value.ptr()) || !PyIndex_Check(value.ptr())) return std::nullopt;
  const nb::object index = nb::steal(PyNumber_Index(value.ptr()));
  if (!index.is_valid()) {
    // A float tensor, or one of several elements, has __index__ and refuses to be one.
    if (PyErr_ExceptionMatches(PyExc_TypeError) == 0) throw nb::python_error();
    PyErr_Clear();
    return std::nullopt;
  }
  const int64_t number = PyLong_AsLongLong(index.ptr());
  if (number == -1 && PyErr_Occurred() != nullptr) {
    PyErr_Clear();
    return std::nullopt;
  }
  return number;
}

std::optional<double> as_float(nb::handle value) {
  if (PyFloat_Check(value.ptr())) return PyFloat_AS_DOUBLE(value.ptr());
  if (const auto number = as_int(value)) return static_cast<double>(*number);
  return std::nullopt;
}

template <class T>
std::optional<HostValue> as_list(nb::handle value, std::optional<T> (*convert)(nb::handle)) {
  if (!PyList_Check(value.ptr()) && !PyTuple_Check(value.ptr())) return std::nullopt;
  c10::List<T> list;
  list.reserve(static_cast<size_t>(PySequence_Fast_GET_SIZE(value.ptr())));
  // An element's __index__ may change the list.
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(value.ptr()); ++i) {
    const auto item = nb::borrow(PySequence_Fast_GET_ITEM(value.ptr(), i));
    const auto element = convert(item);
    if (!element) return std::nullopt;
    list.push_back(*element);
  }
  return HostValue(std::move(list));
}

// The value in the type of `current`, or none when it does not fit.
std::optional<HostValue> converted(nb::handle value, const HostValue& current) {
  if (current.isBool()) {
    if (!PyBool_Check(value.ptr())) return std::nullopt;
    return HostValue(value.ptr() == Py_True);
  }
  if (current.isInt()) {
    const auto number = as_int(value);
    return number ? std::optional<HostValue>(*number) : std::nullopt;
  }
  if (current.isDouble()) {
    const auto number = as_float(value);
    return number ? std::optional<HostValue>(*number) : std::nullopt;
  }
  return current.isIntList() ? as_list<int64_t>(value, &as_int) : as_list<double>(value, &as_float);
}

std::string name_of(const Slot& slot) { return nb::cast<std::string>(slot.name[0]); }

// Of one type. The values' own == is made for anything and asks for everything first.
bool same(const HostValue& left, const HostValue& right) {
  if (left.isInt()) return left.toInt() == right.toInt();
  if (left.isDouble()) return left.toDouble() == right.toDouble();
  return left == right;
}

size_t length(const HostValue& value) { return value.isList() ? value.toListRef().size() : 1; }

std::string type_text(const HostValue& current) {
  if (current.isBool()) return "a bool";
  if (current.isInt()) return "an int";
  if (current.isDouble()) return "a float";
  return current.isIntList() ? "a list of int" : "a list of float";
}

}  // namespace

struct SlotTable::Staged {
  std::vector<Change> changes;
  c10::SmallVector<size_t, 8> changed;
  c10::SmallVector<size_t, 8> unchanged;
};

nb::object SlotTable::update(const nb::dict& values) {
  Staged staged;
  for (const auto [key, value] : values) {
    // Conversions run code that may change the dict.
    const nb::object held_key = nb::borrow(key);
    const nb::object held_value = nb::borrow(value);
    for (const size_t slot : slots_of(held_key)) stage(staged, slot, held_value);
  }
  return commit(staged);
}

nb::object SlotTable::update_slots(const nb::list& values) {
  Staged staged;
  for (const nb::handle entry : values) {
    const auto pair = nb::borrow<nb::tuple>(entry);
    stage(staged, nb::cast<size_t>(pair[0]), pair[1]);
  }
  return commit(staged);
}

const std::vector<size_t>& SlotTable::slots_of(nb::handle key) {
  PyObject* known = PyDict_GetItemWithError(known_.ptr(), key.ptr());
  if (known != nullptr) return groups_[PyLong_AsSize_t(known)];
  if (PyErr_Occurred() != nullptr) throw nb::python_error();
  std::vector<size_t> group;
  for (const nb::handle slot : resolve_(key)) group.push_back(nb::cast<size_t>(slot));
  groups_.push_back(std::move(group));
  known_[key] = groups_.size() - 1;
  return groups_.back();
}

void SlotTable::stage(Staged& staged, size_t index, nb::handle value) const {
  const Slot& slot = slots_[index];
  const HostValue current = *graph_->host_value(slot.node, slot.argument);
  std::optional<HostValue> wanted = converted(value, current);
  if (!wanted) {
    refuse("slot '" + name_of(slot) + "' takes " + type_text(current) + ", got " +
           value_text(value) + ". Nothing was changed");
  }
  if (length(*wanted) != length(current) && !slot.variable_length) {
    refuse("slot '" + name_of(slot) + "' takes " + std::to_string(length(current)) +
           " values, as captured, got " + std::to_string(length(*wanted)) + ": " +
           value_text(value) + ". Nothing was changed");
  }
  for (Change& earlier : staged.changes) {
    if (earlier.node != slot.node || earlier.argument != slot.argument) continue;
    if (same(earlier.value, *wanted)) return;
    refuse("slot '" + name_of(slot) + "' is given two values by one update. Nothing was changed");
  }
  if (same(*wanted, current)) {
    staged.unchanged.push_back(index);
    return;
  }
  staged.changed.push_back(index);
  staged.changes.push_back({slot.node, slot.argument, std::move(*wanted)});
}

nb::object SlotTable::commit(Staged& staged) {
  if (!staged.changes.empty()) {
    // A replay on another thread may hold the graph and need the GIL for an operator written in
    // Python.
    const nb::gil_scoped_release no_gil;
    try {
      graph_->write(staged.changes);
    } catch (const std::exception&) {
      const nb::gil_scoped_acquire gil;
      refuse_with_current();
    }
  }
  // As the named tuple's own constructor does it, which would cost as much as the update.
  auto* type = reinterpret_cast<PyTypeObject*>(report_.ptr());
  nb::object report = nb::steal(type->tp_alloc(type, 2));
  if (!report.is_valid()) throw nb::python_error();
  PyTuple_SET_ITEM(report.ptr(), 0, names_of(staged.changed).release().ptr());
  PyTuple_SET_ITEM(report.ptr(), 1, names_of(staged.unchanged).release().ptr());
  return report;
}

nb::object SlotTable::names_of(c10::ArrayRef<size_t> slots) const {
  if (slots.size() == 1) return slots_[slots.front()].name;
  nb::object tuple = nb::steal(PyTuple_New(static_cast<Py_ssize_t>(slots.size())));
  if (!tuple.is_valid()) throw nb::python_error();
  for (size_t i = 0; i < slots.size(); ++i) {
    const nb::object name = slots_[slots[i]].name[0];
    PyTuple_SET_ITEM(tuple.ptr(), static_cast<Py_ssize_t>(i), name.inc_ref().ptr());
  }
  return tuple;
}

}  // namespace bringup::torch_ext::graphs
