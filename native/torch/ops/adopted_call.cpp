#include "torch/ops/adopted_call.h"

#include <ATen/PythonTorchFunctionTLS.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/jit_type.h>
#include <torch/csrc/Size.h>
#include <torch/csrc/autograd/python_variable.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "torch/common/argument.h"
#include "torch/common/errors.h"
#include "torch/ops/python_call.h"

namespace bringup::torch_ext {
namespace {

// Whether `wrap` knows what an operator returns: it is asked before the call, as there is no other
// way after it.
bool is_wrapped(const c10::Type& type) {
  if (const auto* optional = type.castRaw<c10::OptionalType>()) {
    return is_wrapped(*optional->getElementType());
  }
  if (const auto* list = type.castRaw<c10::ListType>()) return is_wrapped(*list->getElementType());
  const bool is_symbolic = type.kind() == c10::TypeKind::SymIntType ||
                           type.kind() == c10::TypeKind::SymFloatType ||
                           type.kind() == c10::TypeKind::SymBoolType;
  if (is_symbolic) return false;
  switch (kind_of(type)) {
    case ArgumentKind::kTensor:
    case ArgumentKind::kInt:
    case ArgumentKind::kFloat:
    case ArgumentKind::kBool:
    case ArgumentKind::kString:
      return true;
    default:
      return false;
  }
}

struct AdoptedOp {
  // The dispatcher keeps an operator's entry as long as anything of its name is registered,
  // so `handle` stays valid when the operator goes.
  explicit AdoptedOp(const c10::OperatorHandle& found)
      : handle(found),
        name(c10::toString(found.operator_name())),
        held(c10::Dispatcher::singleton().registerName(found.operator_name())),
        arguments(arguments_of(found.schema())) {
    const c10::FunctionSchema& schema = found.schema();
    for (const Argument& argument : arguments) positional += argument.keyword_only ? 0 : 1;
    native = !schema.is_vararg();
    for (const c10::Argument& result : schema.returns()) native &= is_wrapped(*result.real_type());
  }

  const c10::OperatorHandle handle;
  const std::string name;
  const c10::RegistrationHandleRAII held;
  const std::vector<Argument> arguments;
  Py_ssize_t positional = 0;
  bool native = false;  // whether the native call knows all that it returns
  std::atomic<bool> removed{false};
};

// All that are open, so that each learns of the end of its operator. The dispatcher calls the
// listener under a lock of its own, which is therefore never taken under this one.
struct OpenOps {
  std::mutex mutex;
  std::unordered_set<AdoptedOp*> ops;
};

OpenOps& open_ops() {
  static OpenOps* const open = new OpenOps;  // outlives the dispatcher
  return *open;
}

class Removals final : public c10::OpRegistrationListener {
 public:
  void onOperatorRegistered(const c10::OperatorHandle&) override {}
  void onOperatorDeregistered(const c10::OperatorHandle& op) override {
    OpenOps& open = open_ops();
    const std::lock_guard lock(open.mutex);
    for (AdoptedOp* adopted : open.ops) {
      if (adopted->handle == op) adopted->removed.store(true, std::memory_order_release);
    }
  }
};

void listen_once() {
  static const auto* const listening = new c10::RegistrationHandleRAII(
      c10::Dispatcher::singleton().addRegistrationListener(std::make_unique<Removals>()));
  (void)listening;
}

// --- Python objects onto the stack. False: the slow path converts or refuses.

bool as_tensor(PyObject* object, at::Tensor& value) {
  if (!THPVariable_CheckExact(object)) return false;
  value = THPVariable_Unpack(object);
  return true;
}

bool as_optional_tensor(PyObject* object, std::optional<at::Tensor>& value) {
  if (object == Py_None) return true;
  return as_tensor(object, value.emplace());
}

template <class T>
bool push_list(PyObject* object, torch::jit::Stack& stack, bool (*as_item)(PyObject*, T&)) {
  // A torch.Size is a tuple in all that matters here.
  if (!PyList_CheckExact(object) && !PyTuple_CheckExact(object) && !THPSize_Check(object)) {
    return false;
  }
  const Py_ssize_t size = PySequence_Fast_GET_SIZE(object);
  PyObject** items = PySequence_Fast_ITEMS(object);
  c10::List<T> list;
  list.reserve(size);
  for (Py_ssize_t i = 0; i < size; ++i) {
    T item{};
    if (!as_item(items[i], item)) return false;
    list.push_back(std::move(item));
  }
  stack.emplace_back(std::move(list));
  return true;
}

template <class T>
bool push_item(PyObject* object, torch::jit::Stack& stack, bool (*as_item)(PyObject*, T&)) {
  T item{};
  if (!as_item(object, item)) return false;
  stack.emplace_back(std::move(item));
  return true;
}

bool push_string(PyObject* object, torch::jit::Stack& stack) {
  Py_ssize_t size = 0;
  const char* text = as_text(object, size);
  if (text == nullptr) return false;
  stack.emplace_back(std::string(text, static_cast<size_t>(size)));
  return true;
}

bool push(const Argument& argument, PyObject* object, torch::jit::Stack& stack) {
  if (object == Py_None) {
    stack.emplace_back();
    return argument.optional;
  }
  switch (argument.kind) {
    case ArgumentKind::kTensor:
      return push_item(object, stack, as_tensor);
    case ArgumentKind::kInt:
      return push_item(object, stack, as_int);
    case ArgumentKind::kFloat:
      return push_item(object, stack, as_float);
    case ArgumentKind::kBool:
      return push_item<bool>(object, stack, as_bool);
    case ArgumentKind::kNumber:
      return push_item(object, stack, as_number);
    case ArgumentKind::kString:
      return push_string(object, stack);
    case ArgumentKind::kTensorList:
      return push_list(object, stack, as_tensor);
    case ArgumentKind::kOptionalTensorList:
      return push_list(object, stack, as_optional_tensor);
    case ArgumentKind::kIntList:
      return push_list(object, stack, as_int);
    case ArgumentKind::kFloatList:
      return push_list(object, stack, as_float);
    case ArgumentKind::kBoolList:
      return push_list<bool>(object, stack, as_bool);
    default:
      stack.push_back(constant_of(argument.kind, object));
      return !stack.back().isNone();
  }
}

// All arguments in the schema's order. False: the call does not fit, or not natively.
bool push_arguments(const AdoptedOp& op, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames,
                    torch::jit::Stack& stack) {
  c10::SmallVector<PyObject*, 16> slots(op.arguments.size());
  if (!bind_arguments(op.arguments, op.positional, args, nargs, kwnames, slots.data())) {
    return false;
  }
  stack.reserve(slots.size());
  for (size_t i = 0; i < slots.size(); ++i) {
    const Argument& argument = op.arguments[i];
    if (slots[i] == nullptr) {
      stack.push_back(*argument.default_value);
    } else if (!push(argument, slots[i], stack)) {
      return false;
    }
  }
  return true;
}

// --- Results as the overload gives them. Null with a Python exception set when that fails.

PyObject* wrap(c10::IValue&& value) {
  if (C10_LIKELY(value.isTensor())) return THPVariable_Wrap(std::move(value).toTensor());
  if (value.isNone()) return Py_NewRef(Py_None);
  if (value.isBool()) return PyBool_FromLong(value.toBool());
  if (value.isInt()) return PyLong_FromLongLong(value.toInt());
  if (value.isDouble()) return PyFloat_FromDouble(value.toDouble());
  if (value.isString()) {
    const std::string& text = value.toStringRef();
    return PyUnicode_FromStringAndSize(text.data(), static_cast<Py_ssize_t>(text.size()));
  }
  if (value.isList()) {
    const c10::ArrayRef<c10::IValue> items = value.toListRef();
    return list_of(static_cast<Py_ssize_t>(items.size()),
                   [&](Py_ssize_t i) { return wrap(c10::IValue(items[i])); });
  }
  PyErr_Format(PyExc_RuntimeError, "an operator returned %s, which its schema does not say",
               value.tagKind().c_str());
  return nullptr;
}

struct AdoptedCall {
  PyObject_HEAD vectorcallfunc vectorcall;
  AdoptedOp* op;  // null until it is opened; freed with this, as a call may be in it
  bool closed;
};

// Null without a Python exception: take the slow path; nothing has happened yet.
PyObject* call_natively(const AdoptedOp& op, PyObject* const* args, Py_ssize_t nargs,
                        PyObject* kwnames) {
  if (C10_UNLIKELY(op.removed.load(std::memory_order_acquire))) {
    raise_error(ErrorClass::kExpiredHandle,
                op.name + " was removed by its definer; define it again, and adopt that");
  }
  if (C10_UNLIKELY(!op.native || at::impl::torch_function_mode_enabled())) return nullptr;
  torch::jit::Stack stack;
  if (!push_arguments(op, args, nargs, kwnames, stack)) return nullptr;
  {
    GilRelease gil;
    gil.release();  // as torch does around every call
    op.handle.callBoxed(stack);
  }
  return results_of(static_cast<Py_ssize_t>(stack.size()),
                    [&](Py_ssize_t i) { return wrap(std::move(stack[i])); });
}

PyObject* call_overload(PyObject* self, PyObject* const* args, size_t nargsf, PyObject* kwnames) {
  PyObject* overload = PyObject_GetAttrString(self, "overload");
  if (overload == nullptr) return nullptr;
  PyObject* result =
      PyObject_Vectorcall(overload, args, nargsf & ~PY_VECTORCALL_ARGUMENTS_OFFSET, kwnames);
  Py_DECREF(overload);
  return result;
}

PyObject* adopted_call(PyObject* self, PyObject* const* args, size_t nargsf, PyObject* kwnames) {
  auto* call = reinterpret_cast<AdoptedCall*>(self);
  if (C10_LIKELY(call->op != nullptr && !call->closed)) {
    try {
      PyObject* result = call_natively(*call->op, args, PyVectorcall_NARGS(nargsf), kwnames);
      if (C10_LIKELY(result != nullptr) || PyErr_Occurred() != nullptr) return result;
    } catch (...) {
      set_python_error_from_current_exception();
      return nullptr;
    }
  }
  return call_overload(self, args, nargsf, kwnames);
}

std::unique_ptr<AdoptedOp> open_op(const char* name, const char* overload_name) {
  listen_once();
  const auto handle = c10::Dispatcher::singleton().findSchemaOrThrow(name, overload_name);
  auto op = std::make_unique<AdoptedOp>(handle);
  OpenOps& open = open_ops();
  const std::lock_guard lock(open.mutex);
  open.ops.insert(op.get());
  // Removed by another thread before the listener knew of it.
  if (!handle.hasSchema()) op->removed.store(true, std::memory_order_release);
  return op;
}

PyObject* open_method(PyObject* self, PyObject* args) {
  const char* name = nullptr;
  const char* overload_name = nullptr;
  if (PyArg_ParseTuple(args, "ss:_open", &name, &overload_name) == 0) return nullptr;
  auto* call = reinterpret_cast<AdoptedCall*>(self);
  if (call->op != nullptr) {
    PyErr_SetString(PyExc_RuntimeError, "an adopted operator is opened once");
    return nullptr;
  }
  try {
    call->op = open_op(name, overload_name).release();
  } catch (...) {
    set_python_error_from_current_exception();
    return nullptr;
  }
  Py_RETURN_NONE;
}

PyObject* close_method(PyObject* self, PyObject*) {
  reinterpret_cast<AdoptedCall*>(self)->closed = true;
  Py_RETURN_NONE;
}

// Python takes the vector call from a class that has a __call__ of its own.
PyObject* init_subclass(PyObject* type, PyObject*) {
  reinterpret_cast<PyTypeObject*>(type)->tp_flags |= Py_TPFLAGS_HAVE_VECTORCALL;
  PyType_Modified(reinterpret_cast<PyTypeObject*>(type));
  Py_RETURN_NONE;
}

PyMethodDef kMethods[] = {
    {"_open", open_method, METH_VARARGS, "Looks the operator up. Calls are native from then on."},
    {"_close", close_method, METH_NOARGS, "Ends native calls. One that runs finishes."},
    {"__init_subclass__", init_subclass, METH_NOARGS | METH_CLASS, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

PyObject* make(PyTypeObject* type, PyObject*, PyObject*) {
  PyObject* self = type->tp_alloc(type, 0);
  if (self != nullptr) reinterpret_cast<AdoptedCall*>(self)->vectorcall = adopted_call;
  return self;
}

void deallocate(PyObject* self) {
  const std::unique_ptr<AdoptedOp> op(reinterpret_cast<AdoptedCall*>(self)->op);
  if (op != nullptr) {
    OpenOps& open = open_ops();
    const std::lock_guard lock(open.mutex);
    open.ops.erase(op.get());
  }
  Py_TYPE(self)->tp_free(self);
}

PyTypeObject make_type() {
  PyTypeObject type = {PyVarObject_HEAD_INIT(nullptr, 0)};
  type.tp_name = "bringup.ops.AdoptedCall";
  type.tp_basicsize = sizeof(AdoptedCall);
  type.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_VECTORCALL;
  type.tp_vectorcall_offset = offsetof(AdoptedCall, vectorcall);
  type.tp_call = PyVectorcall_Call;
  type.tp_methods = kMethods;
  type.tp_new = make;
  type.tp_dealloc = deallocate;
  return type;
}

PyTypeObject g_type = make_type();

}  // namespace

PyTypeObject* adopted_call_type() { return PyType_Ready(&g_type) == 0 ? &g_type : nullptr; }

}  // namespace bringup::torch_ext
