#include "torch/graphs/watch.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "torch/common/tensor_caster.h"
#include "torch/graphs/values.h"

namespace nb = nanobind;

namespace bringup::torch_ext::graphs {
namespace {

const c10::TensorImpl* tensor_of(PyObject* object) {
  return is_tensor_object(object) ? THPVariable_Unpack(object).unsafeGetTensorImpl() : nullptr;
}

std::string kind_of(PyObject* object) {
  if (object == Py_None) return "None";
  if (is_tensor_object(object)) return "a tensor";
  return nb::cast<std::string>(nb::handle(object).type().attr("__name__"));
}

constexpr uint64_t kUnknown = 0;

// A number that every change of a dictionary changes, where Python has one.
uint64_t version_of(PyObject* dict) {
#if PY_VERSION_HEX < 0x030C0000
  return reinterpret_cast<PyDictObject*>(dict)->ma_version_tag;
#else
  static_cast<void>(dict);
  return kUnknown;
#endif
}

}  // namespace

Watch::~Watch() {
  if (slots_.empty() && mirrors_.empty() && lists_.empty()) return;
  const nb::gil_scoped_acquire gil;
  clear();
}

void Watch::add_tensor(const at::Tensor& tensor, const std::string& reader) {
  if (!known_.insert(tensor.unsafeGetTensorImpl()).second) return;
  const std::string what = describe(tensor) + (reader.empty() ? "" : " of " + reader);
  tensors_.push_back({c10::weak_intrusive_ptr<c10::TensorImpl>(tensor.getIntrusivePtr()),
                      Placement(tensor), what});
  storages_.insert(tensor.storage().unsafeGetStorageImpl());
  if (versions_ != nullptr) versions_->add(tensor, "the tensor " + what);
}

std::shared_ptr<ReadVersions> Watch::keep_versions() {
  if (versions_ == nullptr) versions_ = std::make_shared<ReadVersions>();
  return versions_;
}

void Watch::ignore_tensor(const at::Tensor& tensor) { known_.insert(tensor.unsafeGetTensorImpl()); }

void Watch::name_tensor(const c10::TensorImpl* tensor, const std::string& name) {
  for (Held& held : tensors_) {
    if (held.tensor._unsafe_get_target() != tensor) continue;
    held.what = "'" + name + "' (" + held.what + ")";
    return;
  }
}

void Watch::forget(const c10::Storage& storage) {
  if (storages_.erase(storage.unsafeGetStorageImpl()) == 0) return;
  std::erase_if(tensors_, [&](const Held& held) {
    return held.placement.storage().unsafeGetStorageImpl() == storage.unsafeGetStorageImpl();
  });
}

std::optional<std::string> Watch::seal() {
  known_.clear();
  for (const Held& held : tensors_) {
    const auto tensor = held.tensor.lock();
    if (!tensor) continue;
    const auto how = held.placement.difference(*tensor);
    if (!how.empty()) return held.what + ", " + std::string(how);
  }
  std::erase_if(tensors_, [](const Held& held) { return held.tensor.expired(); });
  return std::nullopt;
}

void Watch::add_slot(nb::dict dict, nb::object key, std::string name, bool compares_memory) {
  PyObject* value = PyDict_GetItemWithError(dict.ptr(), key.ptr());
  if (value == nullptr) throw nb::key_error(name.c_str());
  std::optional<Placement> placement;
  const c10::TensorImpl* impl = compares_memory ? tensor_of(value) : nullptr;
  if (impl != nullptr) {
    placement.emplace(THPVariable_Unpack(value));
    slotted_.insert(impl);
  }
  const c10::TensorImpl* tensor = impl;
  if (placement) placed_.push_back(slots_.size());
  slots_.push_back(
      {std::move(key), 0, nb::borrow(value), std::move(placement), tensor, std::move(name)});
  if (dictionaries_.empty() || !dictionaries_.back().dict.is(dict)) {
    dictionaries_.push_back({std::move(dict), kUnknown, slots_.size() - 1, slots_.size()});
  }
  dictionaries_.back().end = slots_.size();
  dictionaries_.back().version = kUnknown;
}

// Of what is in both, the slot says more, and keeps the tensor.
void Watch::drop_slotted() {
  std::erase_if(tensors_, [&](const Held& held) {
    return slotted_.contains(held.tensor._unsafe_get_target());
  });
  slotted_.clear();
}

void Watch::add_list(nb::list list, std::string name) {
  std::vector<nb::object> items;
  for (const nb::handle item : list) items.push_back(nb::borrow(item));
  lists_.push_back({std::move(list), std::move(items), std::move(name)});
}

void Watch::prefetch(const DictionarySlot& slot) {
  __builtin_prefetch(slot.value.ptr());
  slot.placement->prefetch(slot.tensor);
}

// Asks the entry where it was last, which takes a few nanoseconds, before it looks the key up.
PyObject* Watch::find(const Dictionary& dictionary, DictionarySlot& slot) {
  PyObject* dict = dictionary.dict.ptr();
  PyObject *key, *value;
  Py_ssize_t next = slot.position;
  if (PyDict_Next(dict, &next, &key, &value) != 0 && key == slot.key.ptr()) return value;
  value = PyDict_GetItemWithError(dict, slot.key.ptr());
  if (value == nullptr) return nullptr;
  for (Py_ssize_t before = next = 0; PyDict_Next(dict, &next, &key, nullptr) != 0; before = next) {
    if (key == slot.key.ptr()) slot.position = before;
  }
  return value;
}

bool Watch::reads(const at::Tensor& tensor) const {
  return tensor.has_storage() && storages_.contains(tensor.storage().unsafeGetStorageImpl());
}

bool Watch::is_replaced(const at::Tensor& former, const at::Tensor& now) const {
  if (!reads(former)) return false;
  return !now.has_storage() || !Placement(former).difference(*now.unsafeGetTensorImpl()).empty();
}

void Watch::mirror(nb::object owner, nb::dict attributes) {
  mirrors_.push_back({std::move(owner), std::move(attributes)});
}

void Watch::reread(const Mirror& mirror) {
  for (const nb::handle name : mirror.attributes.keys()) {
    const nb::object now = nb::getattr(mirror.owner, name, nb::handle());
    if (now.is_valid()) {
      mirror.attributes[name] = now;
    } else {
      nb::del(mirror.attributes[name]);
    }
  }
}

void Watch::add_frozen(std::shared_ptr<FrozenWeights> weights, const FrozenWeights::Given& given) {
  if (std::ranges::find(frozen_, weights) != frozen_.end()) return;
  weights->for_each([&](size_t argument, const at::Tensor& memory) {
    add_tensor(given(argument), "");
    storages_.insert(memory.storage().unsafeGetStorageImpl());
    frozen_storages_.insert(memory.storage().unsafeGetStorageImpl());
  });
  for (const at::Tensor& constant : weights->constants()) ignore_tensor(constant);
  frozen_.push_back(std::move(weights));
}

std::optional<std::string> Watch::change() {
  if (!slotted_.empty()) drop_slotted();
  for (const Mirror& mirror : mirrors_) reread(mirror);
  for (const List& list : lists_) {
    const auto is_item = [&, i = Py_ssize_t{0}](const nb::object& item) mutable {
      return PyList_GET_ITEM(list.list.ptr(), i++) == item.ptr();
    };
    const bool same = PyList_GET_SIZE(list.list.ptr()) == std::ssize(list.items) &&
                      std::ranges::all_of(list.items, is_item);
    if (!same) return list.name + " has other items now";
  }
  for (size_t i = 0; i < dictionaries_.size(); ++i) {
    if (i + Placement::kAhead < dictionaries_.size()) {
      __builtin_prefetch(dictionaries_[i + Placement::kAhead].dict.ptr());
    }
    if (auto how = change_of(dictionaries_[i])) return how;
  }
  for (size_t i = 0; i < placed_.size(); ++i) {
    if (i + Placement::kAhead < placed_.size()) prefetch(slots_[placed_[i + Placement::kAhead]]);
    DictionarySlot& slot = slots_[placed_[i]];
    // It is a tensor: no need to ask, which is slow for a Parameter.
    const c10::TensorImpl* tensor = THPVariable_Unpack(slot.value.ptr()).unsafeGetTensorImpl();
    if (slot.placement->holds(*tensor)) continue;
    std::string how = difference(slot, slot.value.ptr());
    if (!how.empty()) return slot.name + " " + how;
  }
  for (size_t i = 0; i < tensors_.size(); ++i) {
    if (i + Placement::kAhead < tensors_.size()) {
      const Held& later = tensors_[i + Placement::kAhead];
      later.placement.prefetch(later.tensor._unsafe_get_target());
    }
    const Held& held = tensors_[i];
    // Not locked, which asks the interpreter: a tensor freed since has lost its storage,
    // and its sizes stay readable while there is a weak reference.
    if (held.tensor.expired()) continue;
    if (C10_LIKELY(held.placement.holds(*held.tensor._unsafe_get_target()))) continue;
    const auto how = held.placement.difference(*held.tensor._unsafe_get_target());
    if (!how.empty() && !held.tensor.expired())
      return "the tensor " + held.what + " " + std::string(how);
  }
  for (const auto& weights : frozen_) {
    if (auto how = weights->change(nullptr)) return how;
  }
  return std::nullopt;
}

// Whether the slots hold other objects now; what is new about the objects, change() looks at.
std::optional<std::string> Watch::change_of(Dictionary& dictionary) {
  const uint64_t version = version_of(dictionary.dict.ptr());
  if (C10_LIKELY(version == dictionary.version && version != kUnknown)) return std::nullopt;
  for (size_t i = dictionary.begin; i < dictionary.end; ++i) {
    PyObject* now = find(dictionary, slots_[i]);
    if (now == slots_[i].value.ptr()) continue;
    std::string how = difference(slots_[i], now);
    if (!how.empty()) return slots_[i].name + " " + how;
  }
  dictionary.version = version;
  return std::nullopt;
}

std::string Watch::difference(DictionarySlot& slot, PyObject* now) {
  if (now == nullptr) return "is gone";
  if (!slot.placement) {
    if (slot.value.is_none()) return "was None and is " + kind_of(now) + " now";
    if (PyBool_Check(slot.value.ptr())) {
      const bool value = PyObject_IsTrue(slot.value.ptr()) == 1;
      return value ? "was True and is False now" : "was False and is True now";
    }
    return "is another " + kind_of(now) + " now";
  }
  const c10::TensorImpl* tensor = tensor_of(now);
  if (tensor == nullptr) return "is " + kind_of(now) + " now";
  const auto how = slot.placement->difference(*tensor);
  if (now == slot.value.ptr()) return std::string(how);
  // What was folded from it is compared with the version counter of the former tensor.
  const auto* storage = slot.placement->storage().unsafeGetStorageImpl();
  if (!how.empty() || frozen_storages_.contains(storage)) return "is another tensor now";
  slot.value = nb::borrow(now);  // another object over the same memory
  slot.tensor = tensor;
  return {};
}

std::optional<std::string> Watch::refresh() {
  for (const auto& weights : frozen_) {
    if (auto how = weights->refresh()) return how;
  }
  return change();
}

int Watch::traverse(visitproc visit, void* arg) const {
  for (const Dictionary& dictionary : dictionaries_) Py_VISIT(dictionary.dict.ptr());
  for (const DictionarySlot& slot : slots_) {
    Py_VISIT(slot.key.ptr());
    Py_VISIT(slot.value.ptr());
  }
  for (const Mirror& mirror : mirrors_) {
    Py_VISIT(mirror.owner.ptr());
    Py_VISIT(mirror.attributes.ptr());
  }
  for (const List& list : lists_) {
    Py_VISIT(list.list.ptr());
    for (const nb::object& item : list.items) Py_VISIT(item.ptr());
  }
  return 0;
}

void Watch::clear() noexcept {
  placed_.clear();
  const std::vector<Dictionary> dictionaries = std::exchange(dictionaries_, {});
  const std::vector<DictionarySlot> slots = std::exchange(slots_, {});
  const std::vector<Mirror> mirrors = std::exchange(mirrors_, {});
  const std::vector<List> lists = std::exchange(lists_, {});
}

}  // namespace bringup::torch_ext::graphs
