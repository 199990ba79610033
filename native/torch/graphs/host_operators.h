// Operators that have no kernel on the device run on the host inside a device graph: their
// arguments as the host sees them.
#pragma once

#include <ATen/core/ivalue.h>
#include <c10/core/Storage.h>

#include <string>
#include <unordered_map>

#include "torch/graphs/node.h"

namespace bringup::torch_ext::graphs {

class HostSide {
 public:
  // `lasting`: what it gives keeps the device's memory.
  explicit HostSide(bool lasting = true) : lasting_(lasting) {}

  // The call on CPU tensors over the same memory, for the CPU's kernel. CaptureFailure, naming the
  // operator, when the host does not see the device's memory or there is no CPU kernel.
  OperatorNode::Call translate(const std::string& name, OperatorNode::Call call);

  // A CPU tensor over the memory of a device tensor, any other tensor as it is. What is one storage
  // on the device is one storage here: kernels look for overlaps.
  at::Tensor view(const at::Tensor& tensor);

 private:
  struct Pair {
    c10::Storage device;
    c10::Storage host;
  };

  const bool lasting_;
  std::unordered_map<const c10::StorageImpl*, Pair> storages_;
};

}  // namespace bringup::torch_ext::graphs
