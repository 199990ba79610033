#include "torch/graphs/versions.h"

#include <algorithm>
#include <utility>

#include "torch/common/torch_private.h"

namespace bringup::torch_ext::graphs {

void WrittenVersions::add(const at::Tensor& tensor) {
  const c10::VariableVersion& counter = tensor.unsafeGetTensorImpl()->version_counter();
  if (counter.enabled()) counters_.push_back(counter);
}

WrittenVersions WrittenVersions::living() && {
  std::ranges::sort(counters_, {}, version_identity);
  const auto repeated = std::ranges::unique(counters_, {}, version_identity);
  counters_.erase(repeated.begin(), repeated.end());
  std::erase_if(counters_, [](const c10::VariableVersion& counter) { return counter.unique(); });
  return std::move(*this);
}

void WrittenVersions::bump() {
  for (c10::VariableVersion& counter : counters_) counter.bump();
}

}  // namespace bringup::torch_ext::graphs
