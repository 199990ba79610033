#include "torch/graphs/slots.h"

#include <ATen/ops/empty_strided.h>
#include <c10/util/ScopeExit.h>
#include <c10/util/SmallVector.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <chrono>
#include <unordered_map>

#include "torch/common/errors.h"
#include "torch/common/tensor_caster.h"
#include "torch/graphs/control_node.h"
#include "torch/graphs/outside_capture.h"
#include "torch/graphs/values.h"

namespace bringup::torch_ext::graphs {
namespace {

namespace nb = nanobind;

[[noreturn]] void refuse(const std::string& message) {
  set_error(ErrorClass::kUpdate, message);
  throw nb::python_error();
}

// Inside a catch block: what was thrown is the cause of an UpdateError.
[[noreturn]] void refuse_with_current() {
  set_python_error_from_current_exception();
  const nb::python_error cause;
  refuse(std::string(nb::str(cause.value()).c_str()) + ". Nothing was changed");
}

std::string value_text(nb::handle value) {
  if (is_tensor_object(value.ptr()))
    return "a tensor " + graphs::describe(THPVariable_Unpack(value.ptr()));
  return std::string(nb::repr(value).c_str()) + " (" + nb::type_name(value.type()).c_str() + ")";
}

std::string name_of(const Slot& slot) { return nb::cast<std::string>(slot.name[0]); }

std::optional<size_t> length(const HostValue& value) {
  return value.isList() ? std::optional(value.toListRef().size()) : std::nullopt;
}

}  // namespace

struct SlotTable::Staged {
  Changes values;
  c10::SmallVector<size_t, 8> slots;               // of the values
  std::unordered_map<size_t, size_t> places = {};  // of many slots, once asked

  // Which of the values is the slot's.
  std::optional<size_t> place_of(size_t slot) {
    constexpr size_t kFew = 16;
    if (slots.size() <= kFew) {
      const auto* const found = std::ranges::find(slots, slot);
      if (found == slots.end()) return std::nullopt;
      return static_cast<size_t>(found - slots.begin());
    }
    while (places.size() < slots.size()) places.emplace(slots[places.size()], places.size());
    const auto found = places.find(slot);
    return found == places.end() ? std::nullopt : std::optional(found->second);
  }
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

void SlotTable::add(size_t node, size_t argument, nb::str name, bool variable_length) {
  const c10::Argument& declared = graph_->nodes().at(node)->schema()->arguments().at(argument);
  const HostValue captured = *graph_->host_value(node, argument);
  const SlotType type = *SlotType::of(declared);
  Slot slot{node, argument, nb::make_tuple(name), type,
            variable_length && !type.is_tensor() ? std::nullopt : length(captured)};
  for_each_tensor(captured, [&](const at::Tensor& t) { slot.layouts.push_back(layout_of(t)); });
  slots_.push_back(std::move(slot));
}

// Tensors are laid out as the captured ones. In the place of a captured None comes what the call
// itself accepts, dense and on the graph's device.
void SlotTable::check_layouts(const Slot& slot, const HostValue& wanted) const {
  size_t number = 0;
  for_each_tensor(wanted, [&](const at::Tensor& given) {
    const bool known = number < slot.layouts.size();
    std::string difference =
        known ? layout_difference(slot.layouts[number], given)
              : layout_difference(given, given);  // whether it has memory of its own
    if (!known && difference.empty() && !given.is_contiguous()) {
      difference = "it is not contiguous";
    }
    if (!known && difference.empty() && given.device() != graph_->device()) {
      difference = "it is on " + given.device().str() + ", not on " + graph_->device().str();
    }
    const std::string which =
        slot.length ? ", number " + std::to_string(number) + " of the list" : "";
    ++number;
    if (difference.empty()) return;
    refuse("slot '" + name_of(slot) + "' takes a tensor laid out as the captured one" + which +
           ": " + difference + ". Nothing was changed");
  });
}

// True or False for what a node of control flow reads.
std::optional<HostValue> SlotTable::as_predicate(const Slot& slot, nb::handle value) const {
  const bool is_predicate =
      dynamic_cast<const ControlNode*>(graph_->nodes()[slot.node].get()) != nullptr;
  if (!is_predicate || !PyBool_Check(value.ptr())) return std::nullopt;
  const OutsideCapture outside;
  const at::Tensor& captured = slot.layouts.front();
  return at::empty_strided(captured.sizes(), captured.strides(), at::kBool)
      .fill_(value.ptr() == Py_True);
}

void SlotTable::stage(Staged& staged, size_t index, nb::handle value) const {
  const Slot& slot = slots_[index];
  std::optional<HostValue> wanted = slot.type.from_python(value);
  if (!wanted) wanted = as_predicate(slot, value);
  if (!wanted) {
    refuse("slot '" + name_of(slot) + "' takes " + slot.type.words() + ", got " +
           value_text(value) + ". Nothing was changed");
  }
  const auto given = length(*wanted);
  if (given && slot.length && *given != *slot.length) {
    refuse("slot '" + name_of(slot) + "' takes " + std::to_string(*slot.length) +
           " values, as captured, got " + std::to_string(*given) + ": " + value_text(value) +
           ". Nothing was changed");
  }
  check_layouts(slot, *wanted);
  if (const auto earlier = staged.place_of(index)) {
    if (same(staged.values[*earlier].value, *wanted)) return;
    refuse("slot '" + name_of(slot) + "' is given two values by one update. Nothing was changed");
  }
  staged.slots.push_back(index);
  staged.values.push_back({slot.node, slot.argument, std::move(*wanted)});
}

nb::object SlotTable::commit(Staged& staged) {
  Changes& changes = staged.values;
  double microseconds = 0;
  if (graph_->has(changes)) {
    changes.clear();
  } else {
    const auto begun = std::chrono::steady_clock::now();
    const auto timed = c10::make_scope_exit([&] {
      const auto took = std::chrono::steady_clock::now() - begun;
      microseconds = std::chrono::duration<double, std::micro>(took).count();
    });
    const nb::gil_scoped_release no_gil;  // another update may check its values
    try {
      graph_->write(changes);
    } catch (const std::exception&) {
      const nb::gil_scoped_acquire gil;
      refuse_with_current();
    }
  }
  const auto of_tensors = [&](size_t index) { return slots_[index].type.is_tensor(); };
  if (!changes.empty() && std::ranges::any_of(staged.slots, of_tensors)) graph_->forget_replaced();
  // As the named tuple's own constructor does it, which would cost as much as the update.
  auto* type = reinterpret_cast<PyTypeObject*>(report_.ptr());
  nb::object report = nb::steal(type->tp_alloc(type, 3));
  if (!report.is_valid()) throw nb::python_error();
  c10::SmallVector<size_t, 8> changed;
  c10::SmallVector<size_t, 8> unchanged;
  for (const size_t index : staged.slots) {
    const Slot& slot = slots_[index];
    const bool is_next = changed.size() < changes.size() &&
                         changes[changed.size()].node == slot.node &&
                         changes[changed.size()].argument == slot.argument;
    (is_next ? changed : unchanged).push_back(index);
  }
  PyTuple_SET_ITEM(report.ptr(), 0, names_of(changed).release().ptr());
  PyTuple_SET_ITEM(report.ptr(), 1, names_of(unchanged).release().ptr());
  nb::object spent = microseconds == 0 ? nothing_ : nb::object(nb::float_(microseconds));
  PyTuple_SET_ITEM(report.ptr(), 2, spent.release().ptr());
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
