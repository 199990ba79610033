// The Python program behind a graph: its dialect answers what the engine asks.
#pragma once

#include "python/engine_core.h"

namespace bringup::python {

// Takes the GIL for every question. A Python error comes out as nanobind's python_error.
class PythonHost : public en::Host {
 public:
  explicit PythonHost(GraphCore& core) : core_(core) {}

  std::optional<en::TensorDesc> describe(const en::Graph& graph, en::ValueId value) override;
  std::optional<en::ConstantData> constant(const en::Graph& graph, en::NodeId node) override;
  bool draws_random(const en::Graph& graph, en::NodeId node) override;
  bool has_object(const en::Graph& graph, uint32_t object) override;
  en::StringId name(const en::Graph& graph, en::NodeId node) override;
  std::string text(const en::Graph& graph, uint32_t object) override;

 private:
  Ref dialect() const;  // none: null
  GraphCore& core_;
};

}  // namespace bringup::python
