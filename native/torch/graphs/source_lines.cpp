#include "torch/graphs/source_lines.h"

#include <algorithm>

namespace bringup::torch_ext::graphs {

namespace nb = nanobind;

std::string SourceLine::text() const {
  if (function == nullptr) return {};
  return function->file + ":" + std::to_string(line) + " in " + function->name;
}

SourceLines::~SourceLines() {
  const nb::gil_scoped_acquire gil;
  codes_.clear();
}

SourceLine SourceLines::here() {
  const nb::gil_scoped_acquire gil;
  auto frame = nb::borrow(reinterpret_cast<PyObject*>(PyEval_GetFrame()));
  while (frame.is_valid()) {
    auto* raw = reinterpret_cast<PyFrameObject*>(frame.ptr());
    PyCodeObject* code = PyFrame_GetCode(raw);
    const auto& function = code_of(code).function;
    Py_DECREF(code);
    if (function != nullptr) return {function, PyFrame_GetLineNumber(raw)};
    frame = nb::steal(reinterpret_cast<PyObject*>(PyFrame_GetBack(raw)));
  }
  return {};
}

const SourceLines::Code& SourceLines::code_of(PyCodeObject* code) {
  const auto [known, fresh] = codes_.try_emplace(code);
  if (fresh) {
    const nb::handle object(reinterpret_cast<PyObject*>(code));
    const std::string file = nb::str(object.attr("co_filename")).c_str();
    known->second.held = nb::borrow(object);
    if (std::ranges::none_of(others_, [&](const auto& other) { return file.starts_with(other); })) {
      known->second.function = std::make_shared<SourceLine::Function>(
          file, std::string(nb::str(object.attr("co_name")).c_str()));
    }
  }
  return known->second;
}

}  // namespace bringup::torch_ext::graphs
