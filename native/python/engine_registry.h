// The registry of passes for bringup.passes: passes written in Python stand in it beside those of
// libraries.
#pragma once

#include <nanobind/nanobind.h>

#include "engine/run/creation.h"
#include "engine/run/pass.h"

namespace bringup::python {

// An instance of a class that is written in Python. Sessions over graphs of Python call its hooks
// (engine_run.cpp); over others it has none.
class PythonPass : public engine::Pass {
 public:
  explicit PythonPass(nanobind::object instance) : instance_(std::move(instance)) {}
  ~PythonPass() override {
    const nanobind::gil_scoped_acquire acquired;
    instance_.reset();
  }
  nanobind::handle instance() const { return instance_; }

 private:
  nanobind::object instance_;
};

// One registered pass, or one that may be registered.
struct PassRegistration {
  engine::RegistrationPtr registration;
};

// From a bringup.passes.PassDescriptor: its creator makes an instance of `pass_class`.
PassRegistration registration_of(nanobind::handle descriptor);
nanobind::list as_list(std::vector<engine::RegistrationPtr> registrations);

void bind_registry(nanobind::module_& module);

}  // namespace bringup::python
