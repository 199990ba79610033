#include "python/engine_host.h"

#include <nanobind/nanobind.h>

#include "python/engine_handles.h"

namespace nb = nanobind;

namespace bringup::python {
namespace {

std::string utf8(PyObject* text) {
  Py_ssize_t size = 0;
  const char* start = PyUnicode_AsUTF8AndSize(text, &size);
  if (start == nullptr) throw PythonError();
  return std::string(start, static_cast<size_t>(size));
}

// A size or stride of a TensorDesc: an int, or a symbolic one, which its text stands for.
en::Dim dim_of(PyObject* size) {
  if (!PyLong_Check(size)) return {0, string_of(Ref::checked(PyObject_Str(size)).get())};
  const long long number = PyLong_AsLongLong(size);
  if (number == -1 && PyErr_Occurred()) throw PythonError();
  return {number, en::kNoString};
}

std::vector<en::Dim> dims_of(PyObject* sizes) {
  const Ref all = Ref::checked(PySequence_Tuple(sizes));
  std::vector<en::Dim> dims;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(all.get()); ++i) {
    dims.push_back(dim_of(PyTuple_GET_ITEM(all.get(), i)));
  }
  return dims;
}

struct Buffer {
  Py_buffer view{};
  ~Buffer() {
    if (!Py_IsInitialized()) return;  // the graph of a C++ program may outlive the interpreter
    const nb::gil_scoped_acquire acquired;
    PyBuffer_Release(&view);
  }
};

// From a bringup.ir.ConstantData.
en::ConstantData data_of(PyObject* given) {
  en::ConstantData data;
  data.dtype = string_of(attribute(given, "dtype").get());
  for (const en::Dim& dim : dims_of(attribute(given, "shape").get())) {
    data.sizes.push_back(dim.number);
  }
  auto buffer = std::make_shared<Buffer>();
  const Ref bytes = attribute(given, "data");
  if (PyObject_GetBuffer(bytes.get(), &buffer->view, PyBUF_SIMPLE) != 0) throw PythonError();
  data.bytes = {static_cast<const std::byte*>(buffer->view.buf),
                static_cast<size_t>(buffer->view.len)};
  data.owner = std::move(buffer);
  return data;
}

}  // namespace

Ref PythonHost::dialect() const {
  const Ref owner = owner_of(core_);
  if (!owner) return Ref();
  Ref found = attribute(owner.get(), "dialect");
  return found.get() == Py_None ? Ref() : std::move(found);
}

std::optional<en::TensorDesc> PythonHost::describe(const en::Graph&, en::ValueId value) {
  return with_gil([&]() -> std::optional<en::TensorDesc> {
    const Ref dialect = this->dialect();
    PyObject* meta = core_.meta(value);
    if (!dialect || meta == nullptr) return std::nullopt;
    const Ref desc = Ref::checked(PyObject_CallMethod(dialect.get(), "describe", "O", meta));
    if (desc.get() == Py_None) return std::nullopt;
    en::TensorDesc described;
    described.sizes = dims_of(attribute(attribute(desc.get(), "shape").get(), "dims").get());
    described.strides = dims_of(attribute(desc.get(), "strides").get());
    described.dtype = string_of(attribute(desc.get(), "dtype").get());
    described.device = string_of(attribute(desc.get(), "device").get());
    return described;
  });
}

std::optional<en::ConstantData> PythonHost::constant(const en::Graph&, en::NodeId node) {
  return with_gil([&]() -> std::optional<en::ConstantData> {
    const Ref dialect = this->dialect();
    const auto payload = core_.payloads.find(node);
    if (!dialect || payload == core_.payloads.end()) return std::nullopt;
    PyObject* held = payload->second.get();
    const Ref data = Ref::checked(PyObject_CallMethod(dialect.get(), "constant_data", "O", held));
    if (data.get() == Py_None) return std::nullopt;
    return data_of(data.get());
  });
}

bool PythonHost::draws_random(const en::Graph&, en::NodeId node) {
  return with_gil([&] {
    const Ref dialect = this->dialect();
    if (!dialect) return true;
    const Ref handle = node_handle(core_, node);
    const Ref drawn =
        Ref::checked(PyObject_CallMethod(dialect.get(), "draws_random", "O", handle.get()));
    const int truth = PyObject_IsTrue(drawn.get());
    if (truth < 0) throw PythonError();
    return truth != 0;
  });
}

bool PythonHost::has_object(const en::Graph&, uint32_t object) {
  const nb::gil_scoped_acquire acquired;
  return object < core_.objects.size();
}

en::StringId PythonHost::name(const en::Graph&, en::NodeId node) {
  return with_gil([&] {
    static PyObject* const key = PyUnicode_InternFromString("name");
    PyObject* mirrored = core_.mirrored ? core_.handle(node) : nullptr;
    if (mirrored == nullptr) return en::kNoString;
    return string_of(Ref::checked(PyObject_GetAttr(mirrored, key)).get());
  });
}

std::string PythonHost::text(const en::Graph&, uint32_t object) {
  return with_gil(
      [&] { return utf8(Ref::checked(PyObject_Repr(core_.objects.at(object))).get()); });
}

}  // namespace bringup::python
