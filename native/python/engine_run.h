// Running passes over graphs of bringup.ir: the engine's flow, whose steps Python does.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>

#include "engine/run/steps.h"

namespace bringup::python {

// The steps of a bringup.passes.run.session.Session. Called with the GIL.
std::unique_ptr<engine::SessionSteps> python_session(nanobind::object session,
                                                     engine::RegistrationPtr pass);

void bind_running(nanobind::module_& module);

}  // namespace bringup::python
