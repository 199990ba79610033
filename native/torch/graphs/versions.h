// The version counters of tensors that a graph writes: a replay moves them, so that autograd sees
// that what it saved was written, as it does after any operation in place.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace bringup::torch_ext::graphs {

class WrittenVersions {
 public:
  // A tensor that a node writes. Tensors without a counter (of inference mode) are left out.
  void add(const at::Tensor& tensor);
  // Each counter that something else still has, once.
  WrittenVersions living() &&;
  // Counts one write.
  void bump();

 private:
  std::vector<c10::VariableVersion> counters_;
};

}  // namespace bringup::torch_ext::graphs
