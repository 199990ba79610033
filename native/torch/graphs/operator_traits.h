// What a capture must know about an operator.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

#include "torch/graphs/node.h"
#include "torch/graphs/out_variant.h"
#include "torch/graphs/random_numbers.h"

namespace bringup::torch_ext::graphs {

struct OperatorTraits {
  std::string name;        // "aten::add.Tensor"
  SchemaPtr schema;        // never null
  bool of_torch = false;   // one of the operators that torch defines
  bool composite = false;  // made of other operators wherever a backend has no kernel of its own
  bool random = false;     // draws numbers, and is made of operators that are given a generator
  bool view = false;       // gives only views, changes no data
  bool uninitialised = false;    // allocates and writes nothing
  bool resizes = false;          // gives a tensor other sizes, and memory where it needs more
  bool overwrites = false;       // writes all of its first argument, whatever that is
  bool host_data = false;        // marks data that came from Python
  bool host_result = false;      // its result is a host value that was read from tensors
  bool dynamic_shape = false;    // its result's shape depends on data
  bool of_allocator = false;     // tells an allocator about memory, which is the graph's own
  bool asserts = false;          // reads tensors and gives nothing back
  bool reads_values = false;     // of tensors on the host, in what it is made of
  int device = -1;               // an argument: on which a result is to be
  int beta = -1;                 // an argument of the addmm family
  int read_argument = -1;        // a tensor that it reads by address, where no operator is seen
  bool mutates = false;          // writes to an argument
  bool may_draw = false;         // random numbers; a kernel of ours does from a generator argument
  bool may_draw_unseen = false;  // and no tag says that it does not
  RandomTraits numbers;          // where it takes them from
  bool updatable = false;        // a handler declared arguments of it
  bool hooked = false;           // a handler takes part in its capture
  // Names of it by which a replay calls it eagerly.
  std::vector<std::string> splits;
  // Of the device: made of others by torch's own kernel; where another library's kernel comes from.
  bool made_of_others = false;
  std::optional<std::string> foreign;
  bool has_kernel = false;        // of ours, on every device
  std::optional<OutVariant> out;  // the overload that writes into given tensors

  // A call of it changes and makes no data: a capture makes no node of it.
  bool no_node() const { return view || uninitialised; }
  // A driver or a kernel makes it as a whole.
  bool is_copy() const {
    return name == "aten::copy_" || name == "aten::clone" || name == "aten::_to_copy";
  }
};

// `updatable`, `hooked`: names of operators whose handlers declared arguments, and of those whose
// handlers take part in a capture.
OperatorTraits look_up(const c10::OperatorHandle& op,
                       const std::unordered_set<std::string>& updatable = {},
                       const std::unordered_set<std::string>& hooked = {});

}  // namespace bringup::torch_ext::graphs
