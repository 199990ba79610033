#include "torch/graphs/memory_pool.h"

#include <c10/core/DeviceGuard.h>
#include <c10/util/flat_hash_map.h>

#include <algorithm>
#include <map>
#include <unordered_map>

#include "engine/util/forever.h"
#include "torch/graphs/errors.h"
#include "torch/graphs/values.h"

namespace bringup::torch_ext::graphs {
namespace {

// Every pool's memory by address. Never destroyed: tensors may die after static objects.
struct PoolRegistry {
  std::mutex mutex;
  ska::flat_hash_map<const void*, Block*> blocks;  // that a storage has
  std::map<const char*, const char*> segments;     // begin and end

  Block* find(const void* address) {
    const std::lock_guard lock(mutex);
    const auto found = blocks.find(address);
    return found == blocks.end() ? nullptr : found->second;
  }
  bool contains(const void* address) {
    const std::lock_guard lock(mutex);
    const auto* byte = static_cast<const char*>(address);
    auto after = segments.upper_bound(byte);
    return after != segments.begin() && byte < std::prev(after)->second;
  }
};

PoolRegistry& pool_registry() { return forever<PoolRegistry>(); }

// What allocators align to, so that a part of their memory is as good as all of it.
size_t alignment_of(c10::Device device) { return device.is_cpu() ? 64 : 512; }

// In the first capture of a pool a block may be up to this much larger than what is asked for: a
// small result in a large block would keep it from the next large tensor. Later captures ask for
// what an earlier one has asked for, mostly, and find that.
bool within_slack(size_t capacity, size_t bytes) {
  constexpr size_t kSlack = 4096;
  return capacity <= std::max(2 * bytes, bytes + kSlack);
}

Spans merged(Spans spans) {
  std::ranges::sort(spans);
  Spans apart;
  for (const auto& span : spans) {
    if (!apart.empty() && span.first <= apart.back().second) {
      apart.back().second = std::max(apart.back().second, span.second);
    } else {
      apart.push_back(span);
    }
  }
  return apart;
}

size_t total(const Spans& spans) {
  size_t bytes = 0;
  for (const auto& [first, last] : spans) bytes += static_cast<size_t>(last - first);
  return bytes;
}

const char* const kTwoAtOnce =
    "two threads replay this graph at once: one may have read the other's inputs, and both write "
    "the same results. Use graph.run(inputs), which is safe from any thread, or hold a lock around "
    "writing inputs, replay() and reading results";

}  // namespace

MemoryPool::~MemoryPool() {
  const std::lock_guard lock(pool_registry().mutex);
  for (const auto& segment : segments_) {
    pool_registry().segments.erase(static_cast<const char*>(segment->memory.get()));
  }
}

void MemoryPool::trim() {
  const auto living = graphs();
  std::vector<std::unique_ptr<Segment>> unused;  // goes after the locks
  const std::lock_guard lock(mutex_);
  const auto is_unused = [&](const std::unique_ptr<Segment>& segment) {
    size_t free = 0;
    for (const Range& range : free_) free += range.segment == segment.get() ? range.bytes : 0;
    return free == segment->bytes && std::ranges::none_of(living, [&](const auto& pool) {
             return pool->writes(segment->memory.get(), segment->bytes);
           });
  };
  const std::lock_guard registered(pool_registry().mutex);
  for (auto& segment : segments_) {
    if (!is_unused(segment)) continue;
    std::erase_if(free_, [&](const Range& range) { return range.segment == segment.get(); });
    pool_registry().segments.erase(static_cast<const char*>(segment->memory.get()));
    unused.push_back(std::move(segment));
  }
  std::erase(segments_, nullptr);
}

size_t MemoryPool::join(std::weak_ptr<Pool> pool, const std::string& name) {
  const std::lock_guard lock(mutex_);
  members_.emplace_back(std::move(pool), "graph " + std::to_string(members_.size() + 1) +
                                             " of the pool (" + name + ")");
  return members_.size() - 1;
}

// The smallest range that is large enough, or as much of it as is needed.
std::optional<MemoryPool::Range> MemoryPool::cut_free(size_t bytes, c10::Device device,
                                                      const c10::Allocator& base) {
  const bool is_first = members_.size() == 1;
  auto best = free_.end();
  for (auto range = free_.begin(); range != free_.end(); ++range) {
    const bool fits = range->bytes >= bytes && (!is_first || within_slack(range->bytes, bytes)) &&
                      range->segment->from == &base && range->segment->memory.device() == device;
    if (fits && (best == free_.end() || range->bytes < best->bytes)) best = range;
  }
  if (best == free_.end()) return std::nullopt;
  Range range = *best;
  const size_t step = alignment_of(device);
  const size_t used = (bytes + step - 1) / step * step;
  if (!is_first && range.bytes >= used + step) {
    *best = {range.data + used, range.bytes - used, range.segment};
    range.bytes = used;
  } else {
    *best = free_.back();
    free_.pop_back();
  }
  return range;
}

MemoryPool::Range MemoryPool::fresh(size_t bytes, c10::Device device, c10::Allocator& base) {
  const c10::OptionalDeviceGuard guard(device.is_cpu() ? std::nullopt : std::optional(device));
  auto segment = std::make_unique<Segment>(Segment{base.allocate(bytes), bytes, &base});
  auto* data = static_cast<char*>(segment->memory.get());
  const Range range{data, bytes, segment.get()};
  segments_.push_back(std::move(segment));
  const std::lock_guard lock(pool_registry().mutex);
  pool_registry().segments.emplace(data, data + bytes);
  return range;
}

// Neighbours become one again, where ranges are cut.
void MemoryPool::add_free(Range range) {
  for (size_t i = 0; members_.size() > 1 && i < free_.size();) {
    const Range& other = free_[i];
    const bool before = other.data + other.bytes == range.data;
    const bool behind = range.data + range.bytes == other.data;
    if (other.segment != range.segment || !(before || behind)) {
      ++i;
      continue;
    }
    range = {before ? other.data : range.data, range.bytes + other.bytes, range.segment};
    free_[i] = free_.back();
    free_.pop_back();
  }
  free_.push_back(range);
}

Block& MemoryPool::take(size_t bytes, c10::Device device, c10::Allocator& base,
                        std::shared_ptr<Pool> holder, Origin origin) {
  auto block = std::make_shared<Block>();
  const std::lock_guard lock(mutex_);
  const auto found = cut_free(bytes, device, base);
  const Range range = found ? *found : fresh(bytes, device, base);
  block->data = range.data;
  block->capacity = range.bytes;
  block->bytes = bytes;
  block->device = range.segment->memory.device();
  block->place = live_.size();
  block->holder = std::move(holder);
  block->origin = origin;
  ++changes_;
  live_.push_back({std::move(block), range.segment});
  const std::lock_guard registered(pool_registry().mutex);
  Block& taken = *live_.back().block;
  pool_registry().blocks.emplace(range.data, &taken);
  return taken;
}

Block* MemoryPool::take_registered(const void* address) {
  const std::lock_guard registered(pool_registry().mutex);
  const auto found = pool_registry().blocks.find(address);
  if (found == pool_registry().blocks.end()) return nullptr;
  Block* block = found->second;
  pool_registry().blocks.erase(found);
  return block;
}

void MemoryPool::give_back(const Block& block) {
  Live dying;  // after the lock, and the pool with it
  const std::lock_guard lock(mutex_);
  const size_t place = block.place;
  dying = std::exchange(live_[place], std::move(live_.back()));
  live_.pop_back();
  if (place < live_.size()) live_[place].block->place = place;
  ++changes_;
  add_free({dying.block->data, dying.block->capacity, dying.segment});
}

std::vector<std::shared_ptr<Block>> MemoryPool::live_blocks(const Pool& pool) const {
  const std::lock_guard lock(mutex_);
  std::vector<std::shared_ptr<Block>> live;
  for (const auto& [block, segment] : live_) {
    if (block->holder.get() == &pool) live.push_back(block);
  }
  std::ranges::sort(live, {}, [](const auto& block) { return block->data; });
  return live;
}

Block* MemoryPool::find(const c10::Storage& storage) {
  // Without the check that raises for what is overwritten.
  const at::DataPtr& data = storage.unsafeGetStorageImpl()->_mutable_data_ptr_no_checks();
  if (data.get_deleter() != &MemoryPool::delete_address) return nullptr;
  return pool_registry().find(data.get_context());
}

bool MemoryPool::overwritten(const c10::Storage& storage) {
  const Block* block = find(storage);
  return block != nullptr && block->overwritten;
}

void MemoryPool::delete_address(void* address) {
  const Block& block = *take_registered(address);
  const std::shared_ptr<MemoryPool> memory = block.holder->shared_memory();
  memory->give_back(block);
}

bool MemoryPool::release_raw(void* address, bool borrowed) noexcept {
  if (!pool_registry().contains(address)) return false;
  if (!borrowed && pool_registry().find(address) != nullptr) delete_address(address);
  return true;
}

std::string MemoryPool::name(size_t graph) const {
  const std::lock_guard lock(mutex_);
  return members_.at(graph).second;
}

std::string MemoryPool::at_once(size_t user, size_t refused) const {
  if (user == refused) return kTwoAtOnce;
  return name(user) + " and " + name(refused) +
         " share their memory, and were used at once: replays and captures of one pool come one "
         "after the other. Use graph.run(inputs), which takes turns, hold a lock around them, or "
         "capture without pool=";
}

void MemoryPool::begin_use(size_t graph) {
  const uint64_t user = (uint64_t{graph} + 1) << 32;
  uint64_t found = 0;
  while (!use_.compare_exchange_strong(found, user)) {
    // Reported to the other one too, unless it has just ended.
    const uint64_t told = found | (graph + 1);
    if (static_cast<uint32_t>(found) != 0 || use_.compare_exchange_strong(found, told)) {
      throw CaptureFailure(at_once((found >> 32) - 1, graph));
    }
    found = 0;
  }
}

std::optional<std::string> MemoryPool::end_use(size_t graph) noexcept {
  const auto refused = static_cast<uint32_t>(use_.exchange(0));
  if (refused == 0) return std::nullopt;
  return at_once(graph, refused - 1);
}

void MemoryPool::take_over(const Pool& writer) {
  std::vector<c10::intrusive_ptr<c10::StorageImpl>> held;  // go after the lock
  const std::lock_guard lock(mutex_);
  const std::pair now(writer.number(), changes_);
  if (members_.size() == 1 || taken_over_ == now) return;
  for (const auto& [living, segment] : live_) {
    Block& block = *living;
    Pool& owner = *block.holder;
    if (&owner == &writer || block.overwritten || !block.storage ||
        !writer.writes(block.data, block.bytes)) {
      continue;
    }
    auto storage = block.storage->lock();
    if (storage == nullptr) continue;  // it is being freed
    storage->release_data_and_set_meta_custom_data_ptr_error_msg_(
        "this tensor is a result of " + members_[owner.number()].second + ", and a replay of " +
        members_[writer.number()].second +
        " has overwritten it: they share their memory. Replay the former again before it is read, "
        "or copy what has to last longer (clone(), or the results of graph.run)");
    block.overwritten = true;
    owner.overwritten.store(true);
    held.push_back(std::move(storage));
  }
  taken_over_ = now;
}

void MemoryPool::restore(const Pool& writer) noexcept {
  std::vector<c10::intrusive_ptr<c10::StorageImpl>> held;
  const std::lock_guard lock(mutex_);
  for (const auto& [living, segment] : live_) {
    Block& block = *living;
    if (block.holder.get() != &writer || !block.overwritten) continue;
    block.overwritten = false;
    if (auto storage = block.storage->lock()) {
      storage->clear_data_ptr_access_error_msg_();
      held.push_back(std::move(storage));
    }
  }
}

size_t MemoryPool::reserved_bytes() const {
  const std::lock_guard lock(mutex_);
  size_t bytes = 0;
  for (const auto& segment : segments_) bytes += segment->bytes;
  return bytes;
}

std::vector<std::shared_ptr<Pool>> MemoryPool::graphs() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::shared_ptr<Pool>> living;
  for (const auto& [pool, name] : members_) {
    if (auto one = pool.lock()) living.push_back(std::move(one));
  }
  return living;
}

size_t MemoryPool::shared_bytes(const Pool& pool) const {
  Spans others;
  for (const auto& other : graphs()) {
    if (other.get() != &pool)
      others.insert(others.end(), other->spans().begin(), other->spans().end());
  }
  others = merged(std::move(others));
  Spans all = others;
  all.insert(all.end(), pool.spans().begin(), pool.spans().end());
  return total(others) + pool.bytes() - total(merged(std::move(all)));
}

std::shared_ptr<Pool> Pool::of(std::shared_ptr<MemoryPool> memory, const std::string& name) {
  std::shared_ptr<Pool> pool(new Pool(std::move(memory)));
  pool->number_ = pool->memory_->join(pool, name);
  return pool;
}

at::DataPtr Pool::allocate(size_t bytes, c10::Device device, c10::Allocator& base, Origin origin) {
  if (bytes == 0) return base.allocate(0);
  const Block& block = memory_->take(bytes, device, base, shared_from_this(), origin);
  spans_.emplace_back(block.data, block.data + block.capacity);
  return {block.data, block.data, &MemoryPool::delete_address, block.device};
}

Block* Pool::find(const c10::Storage& storage) const {
  Block* block = MemoryPool::find(storage);
  if (block == nullptr || block->holder.get() != this) return nullptr;
  if (!sealed_ && !block->storage) block->storage = storage.getWeakStorageImpl();
  return block;
}

void Pool::seal() {
  spans_ = merged(std::move(spans_));
  sealed_ = true;
}

bool Pool::writes(const void* data, size_t bytes) const {
  const auto* first = static_cast<const char*>(data);
  const auto after = std::ranges::upper_bound(spans_, first, {}, &Spans::value_type::second);
  return after != spans_.end() && after->first < first + bytes;
}

size_t Pool::bytes() const { return total(spans_); }

at::DataPtr memory_of(std::shared_ptr<Pool> pool, void* data, c10::Device device) {
  const auto drop = [](void* kept) { delete static_cast<std::shared_ptr<Pool>*>(kept); };
  return {data, new std::shared_ptr<Pool>(std::move(pool)), drop, device};
}

const c10::Storage& alias_storage(Block& block) {
  if (!block.alias) {
    at::DataPtr data = memory_of(block.holder, block.data, block.device);
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

}  // namespace bringup::torch_ext::graphs
