// The registry of passes for bringup.passes: those of Python beside those of libraries.
#pragma once

#include <nanobind/nanobind.h>

#include "engine/run/creation.h"
#include "engine/run/pass.h"
#include "engine_core.h"

namespace bringup::python {

// An instance of a class of Python, whose hooks bringup.passes' session calls.
class PythonPass : public engine::Pass {
 public:
  explicit PythonPass(nanobind::object instance) : instance_(std::move(instance)) {}
  ~PythonPass() override;

  nanobind::handle instance() const { return instance_; }
  // `session`: a bringup.passes.run.session.Session over the graph of `core`.
  void run_in(nanobind::object session, GraphCore& core);

  int64_t run(engine::Graph& graph, engine::PassContext& context) override;
  std::vector<engine::PatternProgram> programs(engine::Graph& graph,
                                               engine::PassContext& context) override;
  bool meet_requirements(engine::Target& target, engine::PassContext& context) override;
  engine::GraphPtr replacement(engine::Target& target, engine::PassContext& context) override;

 private:
  nanobind::object instance_, session_;
  GraphCore* core_ = nullptr;
};

// One registered pass, or one that may be registered.
struct PassRegistration {
  engine::RegistrationPtr registration;
};

// Of a bringup.passes.PassDescriptor.
engine::PassDescriptor descriptor_of(nanobind::handle descriptor);
// The same, and its creator makes an instance of `pass_class`.
PassRegistration registration_of(nanobind::handle descriptor);
nanobind::list as_list(std::vector<engine::RegistrationPtr> registrations);

}  // namespace bringup::python
