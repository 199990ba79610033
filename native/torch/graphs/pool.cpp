#include "torch/graphs/pool.h"

#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "torch/graphs/recorder_key.h"
#include "torch/graphs/values.h"

namespace bringup::torch_ext::graphs {
namespace {

// Every pool's blocks by address. Never destroyed: tensors may die after static objects.
struct Registry {
  std::mutex mutex;
  std::unordered_map<const void*, Block*> blocks;

  Block* find(const void* address) {
    const std::lock_guard lock(mutex);
    const auto found = blocks.find(address);
    return found == blocks.end() ? nullptr : found->second;
  }
};

Registry& registry() {
  static auto* registry = new Registry;
  return *registry;
}

// A free block may be up to this much larger than what is asked for.
bool fits(const Block& block, size_t bytes, c10::Device device) {
  constexpr size_t kSlack = 4096;
  return block.device == device && block.capacity >= bytes &&
         block.capacity <= std::max(2 * bytes, bytes + kSlack);
}

}  // namespace

Pool::Pool() { add_raw_release(&Pool::release_raw); }

Pool::~Pool() {
  const std::lock_guard lock(registry().mutex);
  for (const auto& block : blocks_) registry().blocks.erase(block->data);
}

Block& Pool::fresh_block(size_t bytes, c10::Device device, c10::Allocator& base) {
  const c10::OptionalDeviceGuard guard(device.is_cpu() ? std::nullopt : std::optional(device));
  auto block = std::make_unique<Block>();
  block->memory = base.allocate(bytes);
  block->data = block->memory.get();
  block->capacity = bytes;
  block->device = block->memory.device();
  block->pool = this;
  const std::lock_guard lock(registry().mutex);
  registry().blocks.emplace(block->data, block.get());
  return *blocks_.emplace_back(std::move(block));
}

at::DataPtr Pool::allocate(size_t bytes, c10::Device device, c10::Allocator& base, Origin origin) {
  if (bytes == 0) return base.allocate(0);
  const std::lock_guard lock(mutex_);
  auto best = free_.end();
  for (auto candidate = free_.begin(); candidate != free_.end(); ++candidate) {
    if (!fits(**candidate, bytes, device)) continue;
    if (best == free_.end() || (*candidate)->capacity < (*best)->capacity) best = candidate;
  }
  Block* block = nullptr;
  if (best != free_.end()) {
    block = std::exchange(*best, free_.back());
    free_.pop_back();
  } else {
    block = &fresh_block(bytes, device, base);
  }
  block->bytes = bytes;
  block->holder = shared_from_this();
  block->origin = origin;
  block->written = false;
  block->parts.clear();
  block->alias = c10::Storage();
  return {block->data, block->data, &Pool::delete_address, block->device};
}

void Pool::give_back(Block& block) {
  const std::shared_ptr<Pool> pool = std::move(block.holder);  // dies after the lock
  const std::lock_guard lock(pool->mutex_);
  block.bytes = 0;
  pool->free_.push_back(&block);
}

void Pool::delete_address(void* address) { give_back(*registry().find(address)); }

bool Pool::release_raw(void* address) noexcept {
  Block* block = registry().find(address);
  if (block == nullptr) return false;
  // A replay only borrows the address: it may be a living tensor's by now.
  const bool replaying = dynamic_cast<ReplayInterceptor*>(current_interceptor()) != nullptr;
  if (!replaying && block->holder != nullptr) give_back(*block);
  return true;
}

Block* Pool::find(const c10::Storage& storage) const {
  const at::DataPtr& data = storage.data_ptr();
  if (data.get_deleter() != &Pool::delete_address) return nullptr;
  Block* block = registry().find(data.get_context());
  return block->pool == this ? block : nullptr;
}

std::vector<Block*> Pool::live_blocks() const {
  const std::lock_guard lock(mutex_);
  std::vector<Block*> live;
  for (const auto& block : blocks_) {
    if (block->holder != nullptr) live.push_back(block.get());
  }
  return live;
}

size_t Pool::reserved_bytes() const {
  const std::lock_guard lock(mutex_);
  size_t total = 0;
  for (const auto& block : blocks_) total += block->capacity;
  return total;
}

const c10::Storage& alias_storage(Block& block) {
  if (!block.alias) {
    at::DataPtr data(block.data, nullptr, &c10::detail::deleteNothing, block.device);
    block.alias = c10::Storage(c10::make_intrusive<c10::StorageImpl>(
        c10::StorageImpl::use_byte_size_t(), block.bytes, std::move(data), nullptr, false));
  }
  return block.alias;
}

void mark_written(Block& block, const at::Tensor& tensor, size_t writer) {
  const bool all_before = block.written && block.parts.empty();
  block.written = true;
  block.writer = writer;
  if (all_before) return;
  if (tensor.nbytes() == block.bytes && tensor.is_non_overlapping_and_dense()) {
    block.parts.clear();
  } else {
    block.parts.push_back(shallow_copy(tensor, alias_storage(block)));
  }
}

at::DataPtr RecordingInterceptor::allocate(size_t bytes, c10::Device device, c10::Allocator& base) {
  if (paused_) return base.allocate(bytes);
  Origin origin = origin_;
  if (!in_operator_) {
    // torch excludes these two while it turns Python data into a tensor.
    const bool is_host_data = c10::impl::tls_is_dispatch_key_excluded(kRecorderKey) &&
                              c10::impl::tls_is_dispatch_key_excluded(c10::DispatchKey::Python);
    origin = is_host_data ? Origin::kHostData : Origin::kUnseen;
  }
  at::DataPtr data = pool_->allocate(bytes, device, base, origin);
  if (list_ != nullptr) list_->push_back({data.get(), bytes, data.device()});
  return data;
}

at::DataPtr ReplayInterceptor::allocate(size_t bytes, c10::Device device, c10::Allocator& base) {
  if (next_ == end_) {
    missed_ = true;
    return base.allocate(bytes);
  }
  const Allocation& recorded = *next_++;
  if (C10_UNLIKELY(recorded.bytes != bytes || recorded.device.type() != device.type())) {
    missed_ = true;
    return base.allocate(bytes);
  }
  return {recorded.address, recorded.address, &c10::detail::deleteNothing, recorded.device};
}

}  // namespace bringup::torch_ext::graphs
