// Tells of the calls of some functions of Python on one thread, where no hook could: hooks are the
// whole process's, and compilers in other threads take them for a part of what they compile.
#pragma once

#include <nanobind/nanobind.h>

#include <vector>

namespace bringup::torch_ext::graphs {

class CallWatch {
 public:
  // [(code object, entered(frame), left(frame, result, raised))].
  explicit CallWatch(const nanobind::list& calls);

  // On this thread, and stop() on the same one. A profiler that is there goes on; one that is
  // started in between and ended takes the watch with it.
  void start();
  void stop();

 private:
  static int on_event(PyObject* self, PyFrameObject* frame, int what, PyObject* result);
  void tell(PyFrameObject* frame, int what, PyObject* result);

  struct Watched {
    nanobind::object code;
    nanobind::object entered;
    nanobind::object left;
  };

  std::vector<Watched> calls_;
  Py_tracefunc former_ = nullptr;
  nanobind::object former_object_;
};

void bind_call_watch(nanobind::module_& module);

}  // namespace bringup::torch_ext::graphs
