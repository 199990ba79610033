// The base of the handles that `ops.adopt` gives: a call of such a handle goes to the dispatcher
// without Python in between.
#pragma once

#include <Python.h>

namespace bringup::torch_ext {

// The type, ready for Python classes to derive from, or null with a Python exception set; borrowed.
//
// A class that derives from it is called natively whatever its __call__ is, which therefore has to
// do the same: call the attribute `overload` with the arguments. A call that the native one does
// not know (other types than the schema's own, a torch-function mode) does just that.
//
//   _open(name, overload_name)  before the first native call; raises for an unknown operator
//   _close()                    from then on every call is one of the attribute `overload`
PyTypeObject* adopted_call_type();

}  // namespace bringup::torch_ext
