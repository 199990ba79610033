#include "torch/ops/fast_call.h"

#include <ATen/PythonTorchFunctionTLS.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/python_variable.h>

#include <cstring>

#include "torch/common/errors.h"
#include "torch/common/torch_private.h"
#include "torch/ops/autograd.h"
#include "torch/ops/call.h"
#include "torch/ops/python_call.h"

namespace bringup::torch_ext {
namespace {

// A PyCFunction, so that Dynamo takes it for a builtin function, with attributes.
struct KernelFunction {
  PyCFunctionObject base;
  PyObject* attributes;
  const KernelOp* op;
  PyMethodDef method;
};

// --- Python objects into a frame. False: the slow path converts or refuses.

bool take_tensor(PyObject* object, int i, CallFrame& frame, c10::DispatchKeySet& keys) {
  if (!THPVariable_CheckExact(object)) return false;
  const at::Tensor& tensor = THPVariable_Unpack(object);
  keys = keys | tensor.key_set();
  frame.set_tensor(i, tensor);
  return true;
}

bool take_list(const Argument& argument, PyObject* object, int i, CallFrame& frame,
               c10::DispatchKeySet& keys) {
  if (!PyList_CheckExact(object) && !PyTuple_CheckExact(object)) return false;
  const Py_ssize_t size = PySequence_Fast_GET_SIZE(object);
  PyObject** items = PySequence_Fast_ITEMS(object);
  if (argument.kind == ArgumentKind::kTensorList ||
      argument.kind == ArgumentKind::kOptionalTensorList) {
    at::Tensor* data = frame.set_tensor_list(i, size);
    for (Py_ssize_t k = 0; k < size; ++k) {
      if (items[k] == Py_None && argument.kind == ArgumentKind::kOptionalTensorList) {
        frame.set_none_of(i, k);
        continue;
      }
      if (!THPVariable_CheckExact(items[k])) return false;
      data[k] = THPVariable_Unpack(items[k]);
      keys = keys | data[k].key_set();
    }
    return true;
  }
  if (argument.kind == ArgumentKind::kFloatList) {
    double* data = frame.set_list<double>(i, size);
    for (Py_ssize_t k = 0; k < size; ++k) {
      if (!as_float(items[k], data[k])) return false;
    }
    return true;
  }
  int64_t* data = frame.set_list<int64_t>(i, size);
  const bool bools = argument.kind == ArgumentKind::kBoolList;
  for (Py_ssize_t k = 0; k < size; ++k) {
    if (!(bools ? as_bool(items[k], data[k]) : as_int(items[k], data[k]))) return false;
  }
  return true;
}

bool take(const Argument& argument, PyObject* object, int i, CallFrame& frame,
          c10::DispatchKeySet& keys) {
  if (argument.kind == ArgumentKind::kTensor && C10_LIKELY(object != Py_None)) {
    return take_tensor(object, i, frame, keys);
  }
  if (object == Py_None) {
    frame.load(i, c10::IValue());
    return argument.optional;
  }
  int64_t integer = 0;
  double real = 0;
  switch (argument.kind) {
    case ArgumentKind::kInt:
      if (!as_int(object, integer)) return false;
      frame.set_int(i, integer);
      return true;
    case ArgumentKind::kFloat:
      if (!as_float(object, real)) return false;
      frame.set_float(i, real);
      return true;
    case ArgumentKind::kBool:
      if (!as_bool(object, integer)) return false;
      frame.set_int(i, integer);
      return true;
    case ArgumentKind::kDtype:
    case ArgumentKind::kLayout:
    case ArgumentKind::kMemoryFormat:
    case ArgumentKind::kDevice:
    case ArgumentKind::kGenerator: {
      const c10::IValue value = constant_of(argument.kind, object);
      if (!value.isNone()) frame.load(i, value);
      return !value.isNone();
    }
    case ArgumentKind::kNumber:
    case ArgumentKind::kComplex: {
      at::Scalar number;
      const bool wide = argument.kind == ArgumentKind::kComplex;
      if (!as_number(object, number) || (wide && !number.isComplex())) return false;
      frame.set_scalar(i, number);
      return true;
    }
    case ArgumentKind::kString: {
      Py_ssize_t size = 0;
      const char* text = as_text(object, size);
      // A NUL within it is refused by CallFrame::load.
      if (text == nullptr || std::strlen(text) != static_cast<size_t>(size)) return false;
      frame.set_string(i, text);
      return true;
    }
    default:
      return take_list(argument, object, i, frame, keys);
  }
}

// Whether a call gives every argument at its place, so that its vector is in the schema's order.
bool is_complete(const KernelOp& op, Py_ssize_t nargs, PyObject* kwnames) {
  const Py_ssize_t num_keywords = kwnames != nullptr ? PyTuple_GET_SIZE(kwnames) : 0;
  if (nargs > op.max_positional) return false;
  if (nargs + num_keywords != static_cast<Py_ssize_t>(op.arguments.size())) return false;
  for (Py_ssize_t k = 0; k < num_keywords; ++k) {
    if (op.arguments[nargs + k].interned_name != PyTuple_GET_ITEM(kwnames, k)) return false;
  }
  return true;
}

// --- Would the dispatcher come to our kernel, and through nothing but our kernels?

bool is_ours(const c10::KernelFunction* registered, const c10::KernelFunction& ours) {
  return registered == nullptr || registered->_equalsBoxedAndUnboxed(ours);
}

bool is_ours(const KernelOp& op, const Route& route) {
  return is_ours(route.autograd, op.autograd_trampoline) &&
         is_ours(route.inplace, op.inplace_trampoline) &&
         is_ours(route.backend, op.backend_trampoline);
}

// False: another library's kernel stands on the way.
bool find_route(const KernelOp& op, c10::DispatchKeySet keys, Route& route) {
  route = {keys};
  if (keys.highestFunctionalityKey() >= c10::DispatchKey::AutogradOther) {
    route.autograd = &op.entry.lookup(keys);
    if (!is_ours(route.autograd, op.autograd_trampoline)) return false;
    keys = keys & c10::after_autograd_keyset;
  }
  if (op.mutates && keys.has(c10::DispatchKey::ADInplaceOrView)) {
    route.inplace = &op.entry.lookup(keys);
    if (!is_ours(route.inplace, op.inplace_trampoline)) return false;
    keys = keys & c10::after_ADInplaceOrView_keyset;
  }
  route.backend = &op.entry.lookup(keys);
  return is_ours(route.backend, op.backend_trampoline);
}

bool dispatcher_would_run_kernel(const KernelOp& op, c10::DispatchKeySet keys) {
  const c10::DispatchKey top = keys.highestFunctionalityKey();
  if (C10_UNLIKELY(top > c10::DispatchKey::AutogradFunctionality)) return false;
  if (C10_LIKELY(op.route.keys == keys && op.route.backend != nullptr)) {
    return is_ours(op, op.route);
  }
  Route route;
  if (!find_route(op, keys, route)) return false;
  op.route = route;
  return true;
}

// What the tensors of a frame ask for beyond running the kernel.
struct Needs {
  bool grad = false;
  bool slow_path = false;  // tangents, gradients that only the autograd kernel deals with
  bool copies = false;     // inputs that the kernel takes contiguous only
  int64_t elements = 0;    // of all tensors
};

Needs needs_of(const KernelOp& op, const CallFrame& frame) {
  Needs needs;
  for (const int32_t i : op.tensor_arguments) {
    frame.for_each_tensor(i, [&](int, const at::Tensor& tensor) {
      needs.elements += tensor.numel();
      needs.copies |= !takes_layout_inline(op, static_cast<size_t>(i), tensor);
      // Neither gradients nor tangents without it, and most tensors have none.
      if (C10_LIKELY(tensor.unsafeGetTensorImpl()->autograd_meta() == nullptr)) return;
      needs.grad |= tensor.requires_grad();
      needs.slow_path |= has_tangent(tensor);
    });
  }
  needs.grad = needs.grad && at::GradMode::is_enabled();
  needs.slow_path |= needs.grad && op.mutates;
  return needs;
}

// Work worth letting other Python threads in: releasing and taking the GIL costs as much as a small
// kernel.
constexpr int64_t kElementsToReleaseGil = 1 << 14;

// Lets other threads in while a kernel runs, once its elements are worth it.
class GilPolicy {
 public:
  explicit GilPolicy(const CallFrame& frame)
      : declared_(frame.op().release_gil),
        waits_(frame.op().waits && !frame.device().is_cpu()) {}  // in settle

  void consider(int64_t elements) {
    elements_ += elements;
    const bool worth = declared_ == ReleaseGil::kAuto ? elements_ >= kElementsToReleaseGil
                                                      : declared_ == ReleaseGil::kAlways;
    if (worth || waits_) gil_.release();
  }

 private:
  const ReleaseGil declared_;
  const bool waits_;
  int64_t elements_ = 0;
  GilRelease gil_;
};

void run(CallFrame& frame, const Needs& needs) {
  GilPolicy gil(frame);
  gil.consider(needs.elements);
  run_call(frame, needs.copies, [&] {
    for (const at::Tensor& output : frame.outputs()) gil.consider(output.numel());
  });
}

// False: there is nothing to attach a gradient to, or no way to do it here.
bool run_with_grad(CallFrame& frame, const Needs& needs) {
  const KernelOp& op = frame.op();
  const Backward* backward = op.backward.load(std::memory_order_acquire);
  if (backward == nullptr) return false;
  const CallTensors tensors(frame);
  if (!receives_gradient(*backward, tensors)) {
    run(frame, needs);
    return true;
  }
  Constants constants;
  for (const int32_t i : backward->constants) constants.push_back(frame.value(i));
  const auto node = make_backward_node(op, *backward, tensors, std::move(constants));
  run(frame, needs);
  set_outputs(node, backward, frame.outputs());
  save_results(*backward, node, nullptr, frame.outputs());
  return true;
}

void bump_versions(const CallFrame& frame) {
  for (const int32_t i : frame.op().tensor_arguments) {
    if (!frame.op().arguments[i].mutated) continue;
    frame.for_each_tensor(i, [](int, const at::Tensor& tensor) {
      if (!tensor.is_inference()) tensor.unsafeGetTensorImpl()->bump_version();
    });
  }
}

// The arguments that were written; a list as a new one, as the dispatcher gives it.
PyObject* written_result(const KernelOp& op, PyObject* const* slots, Py_ssize_t i) {
  const int32_t argument = op.returns[i];
  if (slots[argument] == nullptr) return Py_NewRef(Py_None);
  const bool list = op.arguments[argument].kind == ArgumentKind::kTensorList;
  return list ? PySequence_List(slots[argument]) : Py_NewRef(slots[argument]);
}

PyObject* python_number(const at::Scalar& number) {
  if (number.isBoolean()) return PyBool_FromLong(number.toBool());
  if (number.isFloatingPoint()) return PyFloat_FromDouble(number.toDouble());
  return PyLong_FromLongLong(number.toLong());
}

PyObject* results_of_call(CallFrame& frame, PyObject* const* slots) {
  const KernelOp& op = frame.op();
  at::Tensor* next = frame.outputs().data();
  return results_of(static_cast<Py_ssize_t>(op.returns.size()), [&](Py_ssize_t i) {
    if (op.outputs.empty()) return written_result(op, slots, i);
    if (C10_UNLIKELY(op.outputs[i].number)) return python_number(number_in(*next++));
    if (C10_LIKELY(!op.outputs[i].list)) return THPVariable_Wrap(std::move(*next++));
    return list_of(frame.output_size(static_cast<int>(i)),
                   [&](Py_ssize_t) { return THPVariable_Wrap(std::move(*next++)); });
  });
}

// What torch.ops' callable does where no Python is to be asked: something wraps the kernel, such as
// the recorder of a capture.
PyObject* call_dispatcher(const CallFrame& frame, PyObject* const* slots) {
  const KernelOp& op = frame.op();
  std::vector<c10::IValue> stack;
  for (int i = 0; i < static_cast<int>(op.arguments.size()); ++i) stack.push_back(frame.value(i));
  {
    GilRelease no_gil;
    no_gil.release();
    op.handle.callBoxed(&stack);
  }
  return results_of(static_cast<Py_ssize_t>(op.returns.size()), [&](Py_ssize_t i) {
    if (op.outputs.empty()) return written_result(op, slots, i);
    if (stack[i].isTensor()) return THPVariable_Wrap(stack[i].toTensor());
    if (stack[i].isScalar()) return python_number(stack[i].toScalar());
    const auto tensors = stack[i].toTensorVector();
    return list_of(static_cast<Py_ssize_t>(tensors.size()),
                   [&](Py_ssize_t k) { return THPVariable_Wrap(tensors[k]); });
  });
}

constexpr c10::DispatchKeySet kPythonKeys({c10::DispatchKey::Python,
                                           c10::DispatchKey::PythonTLSSnapshot,
                                           c10::DispatchKey::PreDispatch});

// The fast call. Null without a Python exception: take the slow path; nothing has happened yet.
PyObject* call_fast(const KernelOp& op, PyObject* const* slots) {
  if (C10_UNLIKELY(at::impl::torch_function_mode_enabled())) return nullptr;
  // As the dispatcher asks; at::hasCallbacks() takes a lock.
  if (C10_UNLIKELY(at::getStepCallbacksUnlessEmpty(at::RecordScope::FUNCTION).has_value())) {
    return nullptr;
  }
  CallFrame frame(op);
  c10::DispatchKeySet keys;
  const int count = static_cast<int>(op.arguments.size());
  for (int i = 0; i < count; ++i) {
    const Argument& argument = op.arguments[i];
    if (C10_UNLIKELY(slots[i] == nullptr)) {
      frame.load(i, *argument.default_value);
    } else if (!take(argument, slots[i], i, frame, keys)) {
      return nullptr;
    }
  }
  keys = effective_keys(op.entry, keys);
  if (!dispatcher_would_run_kernel(op, keys)) {
    return keys.has_any(kPythonKeys) ? nullptr : call_dispatcher(frame, slots);
  }
  const Needs needs = needs_of(op, frame);
  if (needs.slow_path) return nullptr;
  check_contract(frame);
  if (C10_UNLIKELY(needs.grad)) {
    if (!run_with_grad(frame, needs)) return nullptr;
  } else {
    run(frame, needs);
    if (op.mutates) bump_versions(frame);
  }
  return results_of_call(frame, slots);
}

PyObject* kernel_function_call(PyObject* callable, PyObject* const* args, size_t nargsf,
                               PyObject* kwnames) {
  const KernelOp& op = *reinterpret_cast<KernelFunction*>(callable)->op;
  const Py_ssize_t nargs = PyVectorcall_NARGS(nargsf);
  PyObject* bound[kMaxArguments];
  const bool complete = is_complete(op, nargs, kwnames);
  PyObject* const* slots = complete ? args : bound;
  try {
    // That of a closed operator is for torch.ops' callable, which says why it was closed.
    if (C10_LIKELY(op.enabled.load(std::memory_order_relaxed)) &&
        (C10_LIKELY(complete) ||
         bind_arguments(op.arguments, op.max_positional, args, nargs, kwnames, bound))) {
      PyObject* result = call_fast(op, slots);
      if (C10_LIKELY(result != nullptr) || PyErr_Occurred() != nullptr) return result;
    }
  } catch (...) {
    set_python_error_from_current_exception();
    return nullptr;
  }
  return PyObject_Vectorcall(op.overload, args, nargsf & ~PY_VECTORCALL_ARGUMENTS_OFFSET, kwnames);
}

PyObject* repr(PyObject* self) {
  const KernelOp& op = *reinterpret_cast<KernelFunction*>(self)->op;
  return PyUnicode_FromFormat("<kernel operator %s>", op.name.c_str());
}

// By identity: a builtin function compares by its C function, which all our callables share.
PyObject* compare(PyObject* self, PyObject* other, int operation) {
  if (operation != Py_EQ && operation != Py_NE) Py_RETURN_NOTIMPLEMENTED;
  return PyBool_FromLong((self == other) == (operation == Py_EQ));
}

int traverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(reinterpret_cast<KernelFunction*>(self)->attributes);
  return PyCFunction_Type.tp_traverse(self, visit, arg);
}

int clear(PyObject* self) {
  Py_CLEAR(reinterpret_cast<KernelFunction*>(self)->attributes);
  return 0;
}

void deallocate(PyObject* self) {
  PyObject_GC_UnTrack(self);
  Py_CLEAR(reinterpret_cast<KernelFunction*>(self)->attributes);
  PyCFunction_Type.tp_dealloc(self);
}

PyGetSetDef kAttributes[] = {
    {"__dict__", PyObject_GenericGetDict, PyObject_GenericSetDict, nullptr, nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr},
};

PyTypeObject kernel_function_type() {
  PyTypeObject type = {PyVarObject_HEAD_INIT(nullptr, 0)};
  type.tp_name = "bringup.ops.KernelFunction";
  type.tp_base = &PyCFunction_Type;
  type.tp_basicsize = sizeof(KernelFunction);
  type.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL;
  type.tp_vectorcall_offset = offsetof(PyCFunctionObject, vectorcall);
  type.tp_call = PyVectorcall_Call;
  type.tp_dictoffset = offsetof(KernelFunction, attributes);
  type.tp_getattro = PyObject_GenericGetAttr;
  type.tp_setattro = PyObject_GenericSetAttr;
  type.tp_getset = kAttributes;
  type.tp_repr = repr;
  type.tp_richcompare = compare;
  type.tp_hash = [](PyObject* self) { return _Py_HashPointer(self); };
  type.tp_traverse = traverse;
  type.tp_clear = clear;
  type.tp_dealloc = deallocate;
  return type;
}

PyTypeObject g_type = kernel_function_type();

// Only there to say that the function takes its arguments as a vector; calls come through
// `vectorcall`.
PyObject* unbound_call(PyObject*, PyObject* const*, Py_ssize_t, PyObject*) {
  PyErr_SetString(PyExc_TypeError, "a kernel operator cannot be called without its callable");
  return nullptr;
}

}  // namespace

bool init_kernel_function_type() { return PyType_Ready(&g_type) == 0; }

PyObject* make_kernel_function(const KernelOp& op, const char* name, const char* doc) {
  auto* function = PyObject_GC_New(KernelFunction, &g_type);
  if (function == nullptr) return nullptr;
  function->method = {name, reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(unbound_call)),
                      METH_FASTCALL | METH_KEYWORDS, doc};
  function->base.m_ml = &function->method;
  function->base.m_self = nullptr;
  function->base.m_module = nullptr;
  function->base.m_weakreflist = nullptr;
  function->base.vectorcall = kernel_function_call;
  function->attributes = PyDict_New();
  function->op = &op;
  PyObject_GC_Track(function);
  return reinterpret_cast<PyObject*>(function);
}

const KernelOp& kernel_op_of(PyObject* callable) {
  if (Py_TYPE(callable) != &g_type) {
    PyErr_Format(PyExc_TypeError, "expected a kernel operator, got %R", callable);
    raise_current_python_error();
  }
  return *reinterpret_cast<KernelFunction*>(callable)->op;
}

}  // namespace bringup::torch_ext
