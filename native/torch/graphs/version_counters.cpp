#include "torch/graphs/version_counters.h"

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

void ReadVersions::add(const at::Tensor& tensor, const std::string& what) {
  const c10::VariableVersion& counter = tensor.unsafeGetTensorImpl()->version_counter();
  if (counter.enabled()) counters_.emplace_back(counter, what);
}

void ReadVersions::name(const at::Tensor& tensor, const std::string& name) {
  const c10::VariableVersion& named = tensor.unsafeGetTensorImpl()->version_counter();
  if (!named.enabled()) return;
  for (auto& [counter, what] : counters_) {
    if (version_identity(counter) == version_identity(named)) what = name;
  }
}

void ReadVersions::settle(const std::vector<at::Tensor>& without) {
  const auto identity = [](const auto& entry) { return version_identity(entry.first); };
  std::ranges::stable_sort(counters_, {}, identity);
  const auto repeated = std::ranges::unique(counters_, {}, identity);
  counters_.erase(repeated.begin(), repeated.end());
  std::erase_if(counters_, [&](const auto& entry) {
    const auto has = [&](const at::Tensor& tensor) {
      return version_identity(tensor.unsafeGetTensorImpl()->version_counter()) == identity(entry);
    };
    return entry.first.unique() || std::ranges::any_of(without, has);
  });
}

std::vector<uint32_t> ReadVersions::now() const {
  std::vector<uint32_t> versions;
  versions.reserve(counters_.size());
  for (const auto& [counter, what] : counters_) versions.push_back(counter.current_version());
  return versions;
}

std::vector<std::string> ReadVersions::written_since(const std::vector<uint32_t>& versions) const {
  std::vector<std::string> written;
  for (size_t i = 0; i < counters_.size(); ++i) {
    if (counters_[i].first.current_version() != versions.at(i)) {
      written.push_back(counters_[i].second);
    }
  }
  return written;
}

}  // namespace bringup::torch_ext::graphs
