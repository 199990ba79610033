// bringup._native.<torch>._distributed. The one file with torch's pybind11: a c10d::Backend that
// was made in Python can be had in no other way.
#include <pybind11/chrono.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include "torch/distributed/backend.h"

namespace py = pybind11;
using bringup::distributed::BackendPtr;
using bringup::distributed::DeviceBackend;

namespace {

// `make` is Python's; the last owner may be a thread without the GIL.
DeviceBackend::MakeGloo with_gil(py::function make) {
  auto kept =
      std::shared_ptr<py::function>(new py::function(std::move(make)), [](py::function* function) {
        const py::gil_scoped_acquire gil;
        delete function;
      });
  return [kept](const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                std::chrono::milliseconds timeout) {
    const py::gil_scoped_acquire gil;
    return (*kept)(store, rank, size, timeout).cast<BackendPtr>();
  };
}

}  // namespace

PYBIND11_MODULE(_distributed, module) {
  module.def("use_driver", [](uintptr_t table, uintptr_t waits, bool host_sees_memory) {
    bringup::distributed::use_driver(reinterpret_cast<const bringup_driver*>(table),
                                     reinterpret_cast<bringup::distributed::ThreadSwitch>(waits),
                                     host_sees_memory);
  });
  module.def("is_pending", [](uintptr_t memory) {
    return bringup::distributed::is_pending(reinterpret_cast<const c10::StorageImpl*>(memory));
  });
  module.def("end_all", &bringup::distributed::DriverGroup::end_all,
             py::call_guard<py::gil_scoped_release>());
  py::class_<DeviceBackend::Options, c10::intrusive_ptr<DeviceBackend::Options>,
             c10d::Backend::Options>(module, "Options")
      .def(py::init([](std::chrono::milliseconds timeout) {
             return c10::make_intrusive<DeviceBackend::Options>("bringup", timeout);
           }),
           py::arg("timeout"))
      .def("__deepcopy__", [](const DeviceBackend::Options& self, const py::dict&) {
        return c10::make_intrusive<DeviceBackend::Options>(self);
      });
  py::class_<DeviceBackend, c10::intrusive_ptr<DeviceBackend>, c10d::Backend>(module, "Backend")
      .def(py::init([](const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                       const c10::intrusive_ptr<DeviceBackend::Options>& options,
                       py::function make_gloo, bool by_driver) {
             auto make = with_gil(std::move(make_gloo));
             const py::gil_scoped_release no_gil;
             return c10::make_intrusive<DeviceBackend>(store, rank, size, options, std::move(make),
                                                       by_driver);
           }),
           py::arg("store"), py::arg("rank"), py::arg("size"), py::arg("options"),
           py::arg("make_gloo"), py::arg("by_driver"))
      .def_property_readonly("options", &DeviceBackend::getBackendOptions)
      .def("perform_nocolor_split", [](DeviceBackend&, const py::object&) {});
}
