// A refusal of the recorder, and its way to Python as bringup.errors.CaptureError.
#pragma once

#include <Python.h>
#include <c10/util/FunctionRef.h>

#include <optional>
#include <stdexcept>
#include <string>
#include <utility>

namespace bringup::torch_ext::graphs {

// Why a run cannot be captured. Must not leave this package as a C++ exception: see
// set_python_error.
class CaptureFailure : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// A value that the user reads on the host: described by the user's line, where there is
// one.
class HostRead : public CaptureFailure {
 public:
  // `op`: what read it, as far as the recorder knows. `tensor`: its description.
  HostRead(const std::string& op, std::string tensor)
      : CaptureFailure(op), tensor_(std::move(tensor)) {}
  const std::string& tensor() const { return tensor_; }

 private:
  std::string tensor_;
};

// Sets CaptureError(message, with the user's Python line) as this thread's Python error. Needs the
// GIL.
void set_python_error(const CaptureFailure& failure);

// Runs `body`; a CaptureFailure is thrown on as the exception that torch's own bindings turn into
// the Python error. For code that the dispatcher calls. Takes the GIL for the error only.
[[noreturn]] void throw_through_dispatcher(const CaptureFailure& failure);

// Runs operators; what they threw, in words: C++'s exceptions, and Python's where Python is between
// (a dispatch mode, a kernel in Python). None when they ran. CaptureFailure goes on.
std::optional<std::string> failure_of(c10::function_ref<void()> body);

}  // namespace bringup::torch_ext::graphs
