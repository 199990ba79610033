// Errors across the border: raising bringup's own exception classes from C++, and turning whatever
// C++ threw into the Python exception that the same failure has everywhere.
#pragma once

#include <string>

#include "engine/util/concat.h"
#include "python/errors.h"

namespace bringup::torch_ext {

// Throws an exception of bringup.errors as torch's python_error, which both the
// dispatcher and the autograd engine carry to Python unchanged. May be called without the GIL.
[[noreturn]] void raise_error(ErrorClass kind, const std::string& message);
template <class... Parts>
[[noreturn, gnu::cold, gnu::noinline]] void raise_error(ErrorClass kind, const Parts&... parts) {
  raise_error(kind, concat(parts...));
}

// Throws the Python exception that is set right now. Needs the GIL.
[[noreturn]] void raise_current_python_error();

// Inside a catch block: sets the Python exception for the C++ one in flight, without C++ frames in
// its text.
void set_python_error_from_current_exception();

// Inside a catch block that goes on: forgets what a python_error in flight may have left set.
void clear_python_error();

}  // namespace bringup::torch_ext
