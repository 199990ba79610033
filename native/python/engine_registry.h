// The registry of passes for bringup.passes: passes written in Python stand in it beside those of
// libraries.
#pragma once

#include <nanobind/nanobind.h>

#include "engine/creation.h"

namespace bringup::python {

// One registered pass, or one that may be registered.
struct PassRegistration {
  engine::RegistrationPtr registration;
};

nanobind::list as_list(std::vector<engine::RegistrationPtr> registrations);

void bind_registry(nanobind::module_& module);

}  // namespace bringup::python
