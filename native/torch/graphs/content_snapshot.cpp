#include "torch/graphs/content_snapshot.h"

#include <utility>

#include "torch/graphs/frozen_weights.h"
#include "torch/graphs/memory_pool.h"
#include "torch/graphs/outside_capture.h"
#include "torch/graphs/values.h"

namespace bringup::torch_ext::graphs {
namespace {

constexpr size_t kCopied = size_t{64} << 20;

// Of memory that this process can read.
bool has_content(const at::Tensor& tensor) {
  return tensor.has_storage() && !is_subclass(tensor) && tensor.storage().nbytes() > 0 &&
         !MemoryPool::overwritten(tensor.storage()) && tensor.storage().data() != nullptr &&
         (tensor.is_cpu() || tensor.is_privateuseone());
}

}  // namespace

size_t Contents::remember(const at::Tensor& tensor, std::string name, size_t most) {
  if (!has_content(tensor)) return 0;
  names_.try_emplace(tensor.unsafeGetTensorImpl(), name);
  const c10::Storage& storage = tensor.storage();
  const size_t size = storage.nbytes();
  if (size > most) return 0;
  if (contents_.contains(storage.unsafeGetStorageImpl())) return 0;
  const OutsideCapture outside;
  Content content{storage, "'" + std::move(name) + "' (" + describe(tensor) + ")",
                  tensor.unsafeGetTensorImpl()->version_counter()};
  if (content.versions.enabled()) content.version = content.versions.current_version();
  const at::Tensor bytes = bytes_of(storage);
  const bool copies = copied_ + size <= kCopied;
  if (copies) {
    content.copy = bytes.clone();
  } else {
    content.hash = content_hash(bytes);
  }
  // A capture, of this or another thread, may have written it by now.
  if (Restorer::any_remembers(storage)) return 0;
  if (copies) copied_ += size;
  contents_.emplace(storage.unsafeGetStorageImpl(), std::move(content));
  return size;
}

bool Contents::is_same(const Content& content) {
  const at::Tensor now = bytes_of(content.storage);
  if (!content.copy.defined()) return content_hash(now) == content.hash;
  return now.numel() == content.copy.numel() && now.cpu().equal(content.copy.cpu());
}

bool Contents::written_by_operators(const Content& content) {
  return content.versions.enabled() && content.versions.current_version() != content.version;
}

std::optional<std::string> Contents::changed(bool may_be_own, Restorer* eager) const {
  const OutsideCapture outside;
  for (const auto& [storage, content] : contents_) {
    if (is_same(content) || Restorer::any_remembers(content.storage)) continue;
    if (!may_be_own && written_by_operators(content)) continue;
    if (is_same(content)) continue;  // a capture has put it back since
    const bool can_restore = eager != nullptr && content.copy.defined();
    if (!can_restore || !eager->remember(content.storage, content.copy)) return content.what;
  }
  return std::nullopt;
}

void Contents::restore() const {
  const OutsideCapture outside;
  for (const auto& [storage, content] : contents_) {
    if (!content.copy.defined() || is_same(content)) continue;
    if (Restorer::any_remembers(content.storage) || written_by_operators(content)) continue;
    const at::Tensor now = bytes_of(content.storage);
    if (now.numel() == content.copy.numel()) now.copy_(content.copy);
  }
}

void Contents::name_tensors(Watch& watch) const {
  for (const auto& [tensor, name] : names_) watch.name_tensor(tensor, name);
}

}  // namespace bringup::torch_ext::graphs
