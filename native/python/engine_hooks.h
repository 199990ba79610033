// Hooks of passes over graphs of Python.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>

#include "engine/graph/providers.h"
#include "engine/run/creation.h"
#include "engine/run/pass.h"
#include "engine_copier.h"

namespace bringup::python {

// What the engine asks of `answers`, a LibraryHost, while a library edits a graph of Python.
class Answers {
 public:
  Answers(GraphCore& core, nanobind::object answers);

  const en::Providers& providers() const { return providers_; }
  // Attributes of nodes may have changed since the hook before.
  void forget() { copier_.forget(); }

 private:
  const en::Operator* bind(en::StringId type, en::ArgumentList& arguments);
  std::optional<std::string> supports(en::NodeId node);
  void make_constant(en::NodeId node, const en::ConstantData& data);
  en::NodeId copy(const en::CopiedNode& copied);

  GraphCore& core_;
  nanobind::object answers_;
  Copier copier_{core_, nullptr};
  en::Providers providers_;
};

en::Options options_of(nanobind::dict given);

// An instance of a library's pass whose hooks are called without the GIL, for a session over the
// graph of `core`: what they make becomes patterns and graphs of Python by `answers`.
std::unique_ptr<en::Pass> library_pass(const en::Registration& pass, GraphCore& core,
                                       nanobind::object session, nanobind::object answers);

}  // namespace bringup::python
