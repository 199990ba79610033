// A graph of a C++ program while Python passes see it: descriptions and data as Python has them.
#pragma once

#include <nanobind/nanobind.h>

#include <unordered_map>

#include "python/engine_core.h"

namespace bringup::python {

// What Python makes of things of the engine: attributes of bringup.passes.run.host_session.
struct Makers {
  nanobind::object desc;    // (sizes, dtype, strides, device); a symbolic size is its text
  nanobind::object data;    // (dtype, sizes, buffer)
  nanobind::object object;  // (number): stands for an object of the program
  nanobind::object symbol;  // (text)
};

// Made, used and destroyed with the GIL.
class BorrowedGraph {
 public:
  BorrowedGraph(en::Graph& graph, Makers makers);
  BorrowedGraph& operator=(BorrowedGraph&&) = delete;

  nanobind::object core() const { return core_; }  // attached to no ir.Graph yet
  // Lets Python know objects, values and constants of the graph, once it is attached to one.
  void describe();
  // EngineError for what a C++ program cannot read: Python's objects and attributes.
  void check() const;
  // Gives the graph back; what is new is described as the engine describes it.
  void give_back();

 private:
  template <class Visit>
  void for_each_value(Visit&& visit) const;
  void take_objects();
  PyObject* meta_of(uint64_t description, const en::TensorDesc& desc);
  uint64_t description_of(en::ValueId value);

  std::shared_ptr<en::Graph> graph_;
  std::shared_ptr<en::Host> former_;
  Makers makers_;
  nanobind::object core_;
  size_t objects_ = 0;                                    // how many are the program's
  std::unordered_map<uint64_t, nanobind::object> metas_;  // by the engine's description
  std::unordered_map<PyObject*, uint64_t> descriptions_;  // the opposite
};

nanobind::object python_desc(const en::TensorDesc& desc, const Makers& makers);
// Data that stay the engine's: Python reads them through a buffer that keeps them alive.
nanobind::object python_data(const en::ConstantData& data, const Makers& makers);

}  // namespace bringup::python
