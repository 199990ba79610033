// The version counters of tensors that a graph writes: a replay moves them, so that autograd sees
// that what it saved was written, as it does after any operation in place.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <utility>
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

// The same of tensors that a graph reads: what was written since some moment.
class ReadVersions {
 public:
  void add(const at::Tensor& tensor, const std::string& what);
  // Calls what shares the tensor's counter by this name.
  void name(const at::Tensor& tensor, const std::string& name);
  // Has each counter once, without those that nothing else has or one of these tensors has.
  void settle(const std::vector<at::Tensor>& without);

  std::vector<uint32_t> now() const;
  std::vector<std::string> written_since(const std::vector<uint32_t>& versions) const;

 private:
  std::vector<std::pair<c10::VariableVersion, std::string>> counters_;
};

}  // namespace bringup::torch_ext::graphs
