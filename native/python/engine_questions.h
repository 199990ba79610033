// What Python's dialect asks the providers of a C++ program about a call.
#pragma once

#include <nanobind/nanobind.h>

#include "engine/graph/providers.h"
#include "python/engine_borrowed.h"

namespace bringup::python {

// The operators of one program, for one session; afterwards every question is an
// ExpiredHandleError. A call is put to the providers in a graph of its own, whose inputs look like
// what the call reads.
class HostOperators {
 public:
  HostOperators(en::Providers providers, Makers makers)
      : providers_(std::move(providers)), makers_(std::move(makers)) {}

  void expire() { providers_.reset(); }
  bool has_schemas() const { return static_cast<bool>(providers().schema); }
  bool has_shapes() const { return static_cast<bool>(providers().infer_shape); }
  bool has_support() const { return static_cast<bool>(providers().supports); }

  // (operator, arguments), overload chosen and defaults filled in.
  nanobind::tuple bind(const std::string& type, nanobind::handle arguments) const;
  // The description of every output, None for what is no tensor.
  nanobind::tuple infer(nanobind::handle op, nanobind::handle arguments, uint32_t outputs) const;
  // None, or why the call cannot be executed.
  nanobind::object refusal(nanobind::handle op, nanobind::handle arguments, uint32_t outputs) const;

 private:
  const en::Providers& providers() const;

  std::optional<en::Providers> providers_;
  Makers makers_;
};

}  // namespace bringup::python
