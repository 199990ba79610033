#include "torch/graphs/call_watch.h"

namespace nb = nanobind;

namespace bringup::torch_ext::graphs {

CallWatch::CallWatch(const nb::list& calls) {
  for (const nb::handle call : calls) {
    const auto row = nb::borrow<nb::tuple>(call);
    calls_.push_back({row[0], row[1], row[2]});
  }
}

void CallWatch::start() {
  const PyThreadState* thread = PyThreadState_Get();
  former_ = thread->c_profilefunc;
  former_object_ = nb::borrow(thread->c_profileobj);
  PyEval_SetProfile(&on_event, nb::find(this).ptr());
}

void CallWatch::stop() {
  if (PyThreadState_Get()->c_profilefunc == &on_event) {
    PyEval_SetProfile(former_, former_object_.ptr());
  }
  former_object_.reset();
}

int CallWatch::on_event(PyObject* self, PyFrameObject* frame, int what, PyObject* result) {
  CallWatch& watch = *nb::inst_ptr<CallWatch>(self);
  if (watch.former_ != nullptr &&
      watch.former_(watch.former_object_.ptr(), frame, what, result) != 0) {
    return -1;
  }
  if (what != PyTrace_CALL && what != PyTrace_RETURN) return 0;
  try {
    watch.tell(frame, what, result);
    return 0;
  } catch (nb::python_error& error) {
    error.restore();
    return -1;
  }
}

void CallWatch::tell(PyFrameObject* frame, int what, PyObject* result) {
  const nb::object code = nb::steal(reinterpret_cast<PyObject*>(PyFrame_GetCode(frame)));
  const nb::handle call(reinterpret_cast<PyObject*>(frame));
  for (const Watched& watched : calls_) {
    if (!watched.code.is(code)) continue;  // == would compare what is in them
    if (what == PyTrace_CALL) {
      watched.entered(call);
    } else {
      watched.left(call, result == nullptr ? nb::none() : nb::borrow(result), result == nullptr);
    }
  }
}

void bind_call_watch(nb::module_& module) {
  nb::class_<CallWatch>(module, "CallWatch")
      .def(nb::init<const nb::list&>(), nb::arg("calls"))
      .def("start", &CallWatch::start)
      .def("stop", &CallWatch::stop);
}

}  // namespace bringup::torch_ext::graphs
