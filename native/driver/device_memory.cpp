#include "driver/device_memory.h"

#include <algorithm>
#include <cstdio>
#include <set>

#include "driver/time_limits.h"

namespace bringup::driver {
namespace {

constexpr size_t kGranularity = 512;
constexpr auto kPatience = std::chrono::seconds(10);

void tell_of_waiting(int32_t device, size_t bytes) {
  std::fprintf(stderr,
               "bringup: an allocation on device %d waits for other streams: %zu bytes that they "
               "used (record_stream) are freed, but their events are not over. "
               "BRINGUP_WAIT_TIMEOUT makes such a wait end with an error\n",
               device, bytes);
}

bringup_stream handle(int64_t stream) {
  return reinterpret_cast<bringup_stream>(static_cast<intptr_t>(stream));
}

}  // namespace

DeviceMemory::DeviceMemory(const bringup_driver& driver, int32_t device, size_t alignment,
                           size_t pending_limit, HostWaits waits, size_t largest)
    : driver_(driver),
      device_(device),
      pending_limit_(pending_limit),
      waits_(std::move(waits)),
      largest_(largest != 0 ? largest : SIZE_MAX),
      pool_(device, std::max(kGranularity, alignment)) {}

DeviceMemory::~DeviceMemory() {
  for (const auto& [device, event] : idle_events_) driver_.event_destroy(event);
}

void DeviceMemory::release(uint64_t pool) {
  const std::lock_guard lock(mutex_);
  pool_.release(pool);
}

int32_t DeviceMemory::allocate(size_t requested, int64_t stream, Block** block, uint64_t pool) {
  if (pending_bytes() > pending_limit_) {
    const int32_t status = wait_for_some();
    if (status != BRINGUP_OK) return status;
  }
  const size_t bytes = pool_.round(requested);
  if (waiting_.load(std::memory_order_relaxed) != 0) collect_finished();
  {
    std::unique_lock lock(mutex_);
    Block* found = bytes != 0 ? pool_.find(stream, bytes, pool) : nullptr;
    if (found != nullptr && pool_.is_oversized(*found, bytes)) {
      const uint64_t until = clock_;
      lock.unlock();
      const int32_t status = give_back_oversized(found, bytes, stream, until);
      if (status != BRINGUP_OK) return status;
      lock.lock();
      found = pool_.find(stream, bytes, pool);
    }
    if (found != nullptr) {
      *block = hand_out(found, bytes, requested);
      return BRINGUP_OK;
    }
  }
  return allocate_segment(bytes, stream, block, requested, pool);
}

int32_t DeviceMemory::allocate_segment(size_t bytes, int64_t stream, Block** block,
                                       size_t requested, uint64_t pool) {
  void* address = nullptr;
  size_t got = 0;
  const int32_t status = bytes != 0 ? ask_driver(bytes, &address, &got) : BRINGUP_OUT_OF_MEMORY;
  const std::lock_guard lock(mutex_);
  if (status != BRINGUP_OK) {
    if (status == BRINGUP_OUT_OF_MEMORY) ++stats_.failures;
    return status;
  }
  Block* added = pool_.add_segment(stream, bytes, address, got, pool);
  ++stats_.driver_allocations;
  change(stats_.segment, added->segment->kind, 1);
  change(stats_.reserved_bytes, added->segment->kind, static_cast<int64_t>(got));
  *block = hand_out(added, bytes, requested);
  return BRINGUP_OK;
}

int32_t DeviceMemory::alloc_within_limit(size_t bytes, void** address) {
  if (const size_t limit = limit_; limit != SIZE_MAX) {
    const auto reserved = static_cast<size_t>(stats().reserved_bytes[0].current);
    if (bytes > limit || reserved > limit - bytes) return BRINGUP_OUT_OF_MEMORY;
  }
  return driver_.mem_alloc(device_, bytes, address);
}

// First what costs nothing: segments whose streams are idle. Then after waiting for everything, and
// at last no more than what was asked for.
int32_t DeviceMemory::ask_driver(size_t bytes, void** address, size_t* got) {
  if (bytes > largest_) return BRINGUP_OUT_OF_MEMORY;  // whatever is given back
  *got = std::min(pool_.segment_bytes(bytes), largest_ / pool_.granularity() * pool_.granularity());
  *got = std::max(*got, bytes);
  int32_t status = alloc_within_limit(*got, address);
  if (status != BRINGUP_OUT_OF_MEMORY) return status;
  {
    const std::lock_guard lock(mutex_);
    ++stats_.retries;
  }
  status = give_back_idle();
  if (status != BRINGUP_OK) return status;
  status = alloc_within_limit(*got, address);
  if (status != BRINGUP_OUT_OF_MEMORY) return status;
  status = empty();
  if (status != BRINGUP_OK) return status;
  status = alloc_within_limit(*got, address);
  if (status != BRINGUP_OUT_OF_MEMORY || *got == bytes) return status;
  *got = bytes;
  return alloc_within_limit(*got, address);
}

void DeviceMemory::free(Block* block) noexcept {
  // Nothing else knows of the block any more: its streams are read without the lock.
  std::vector<Waiting> marks;
  if (!block->used_by.empty()) {
    marks.reserve(block->used_by.size());
    for (const StreamOfDevice& stream : block->used_by) marks.push_back({mark(stream), block, 0});
  }
  const std::lock_guard lock(mutex_);
  const PoolKind kind = block->segment->kind;
  change(stats_.allocation, kind, -1);
  change(stats_.allocated_bytes, kind, -static_cast<int64_t>(block->bytes));
  change(stats_.requested_bytes, kind, -static_cast<int64_t>(block->requested));
  if (marks.empty()) return make_free(block, ++clock_);
  block->state = BlockState::kPending;
  block->pending_events = static_cast<int>(marks.size());
  pending_bytes_ += block->bytes;
  waiting_ += marks.size();
  ++clock_;
  for (size_t i = 0; i < marks.size(); ++i) {
    marks[i].number = clock_;
    queue_of(block->used_by[i]).entries.push_back(marks[i]);
  }
  block->used_by.clear();
}

void DeviceMemory::record(Block* block, StreamOfDevice stream) {
  const std::lock_guard lock(mutex_);
  if (stream == StreamOfDevice{device_, block->segment->stream}) return;
  if (std::ranges::find(block->used_by, stream) == block->used_by.end()) {
    block->used_by.push_back(stream);
  }
}

int32_t DeviceMemory::empty() {
  uint64_t until = 0;
  const int32_t status = wait_for_all(&until);
  if (status != BRINGUP_OK) return status;
  // What another thread frees in between may still be used by work that nothing waited for.
  return give_back([&](const Segment& segment) { return segment.freed_at <= until; });
}

// --- memory that goes back to the driver

// Takes the unused segments that are `chosen` (asked with the lock held) from the pool and frees
// them, up to the first failure. What the driver does not take back is the pool's again.
int32_t DeviceMemory::give_back(const std::function<bool(const Segment&)>& chosen) {
  const std::byte* done = nullptr;
  while (true) {
    std::unique_lock lock(mutex_);
    auto next = pool_.segments().upper_bound(done);
    for (; next != pool_.segments().end(); ++next) {
      const Block& first = *next->second->first;
      if (first.state == BlockState::kFree && first.is_whole_segment() && chosen(*next->second)) {
        break;
      }
    }
    if (next == pool_.segments().end()) return BRINGUP_OK;
    done = next->first;
    std::unique_ptr<Segment> segment = pool_.remove_segment(next->second.get());
    lock.unlock();
    const int32_t status = driver_.mem_free(device_, segment->address);
    lock.lock();
    if (status != BRINGUP_OK) {
      pool_.restore_segment(std::move(segment));
      return status;
    }
    ++stats_.driver_frees;
    change(stats_.segment, segment->kind, -1);
    change(stats_.reserved_bytes, segment->kind, -static_cast<int64_t>(segment->bytes));
  }
}

int32_t DeviceMemory::give_back_idle() {
  std::set<int64_t> streams;
  uint64_t until = 0;
  {
    const std::lock_guard lock(mutex_);
    until = clock_;
    for (const auto& [address, segment] : pool_.segments()) streams.insert(segment->stream);
  }
  std::erase_if(streams, [&](int64_t stream) {
    return driver_.stream_query(device_, handle(stream)) != BRINGUP_OK;
  });
  return give_back([&](const Segment& segment) {
    return segment.freed_at <= until && streams.contains(segment.stream);
  });
}

// A segment that is much larger than what is needed goes back to the driver, so that a smaller one
// takes its place, where that needs no waiting.
int32_t DeviceMemory::give_back_oversized(Block* block, size_t bytes, int64_t stream,
                                          uint64_t until) {
  if (driver_.stream_query(device_, handle(stream)) != BRINGUP_OK) return BRINGUP_OK;
  return give_back([&](const Segment& segment) {
    return segment.first == block && segment.stream == stream && segment.freed_at <= until &&
           pool_.is_oversized(*block, bytes);
  });
}

// --- memory that other streams use

bringup_event DeviceMemory::mark(StreamOfDevice stream) {
  bringup_event event = nullptr;
  {
    const std::lock_guard lock(mutex_);
    const auto fits = [&](const auto& idle) { return idle.first == stream.device; };
    const auto idle = std::ranges::find_if(idle_events_, fits);
    if (idle != idle_events_.end()) {
      event = idle->second;
      *idle = idle_events_.back();
      idle_events_.pop_back();
    }
  }
  if (event == nullptr && driver_.event_create(stream.device, 0, &event) != BRINGUP_OK) {
    return nullptr;
  }
  if (driver_.event_record(event, stream.device, handle(stream.stream)) == BRINGUP_OK) return event;
  const std::lock_guard lock(mutex_);
  idle_events_.emplace_back(stream.device, event);
  return nullptr;
}

// Asks the oldest event of each stream, and the next where it is over.
void DeviceMemory::collect_finished() {
  for (size_t i = 0;; ++i) {
    std::unique_lock lock(mutex_);
    if (i >= queues_.size()) return;
    Queue& queue = queues_[i];  // a deque: it stays where it is
    while (!queue.entries.empty()) {
      const Waiting oldest = queue.entries.front();
      if (oldest.event == nullptr) break;
      lock.unlock();
      const int32_t status = driver_.event_query(oldest.event);
      lock.lock();
      // Another thread may have been faster; the event is another block's then.
      const bool is_oldest =
          !queue.entries.empty() && queue.entries.front().number == oldest.number;
      if (!is_oldest) continue;
      if (status == BRINGUP_NOT_READY) break;
      if (status != BRINGUP_OK && status != BRINGUP_KERNEL_FAILED) {
        queue.entries.front().event = nullptr;  // it cannot tell when it is over
        break;
      }
      end_waiting_until(queue, oldest.number);
    }
  }
}

// An idle stream has nothing to wait for, whatever its events say.
void DeviceMemory::collect_idle_streams() {
  for (size_t i = 0;; ++i) {
    std::unique_lock lock(mutex_);
    if (i >= queues_.size()) return;
    Queue& queue = queues_[i];
    if (queue.entries.empty()) continue;
    const uint64_t until = clock_;
    lock.unlock();
    const StreamOfDevice of = queue.stream;
    if (driver_.stream_query(of.device, handle(of.stream)) != BRINGUP_OK) continue;
    lock.lock();
    end_waiting_until(queue, until);
  }
}

int32_t DeviceMemory::wait_for_all(uint64_t* until) {
  {
    const std::lock_guard lock(mutex_);
    ++stats_.device_waits;
    *until = clock_;
  }
  const int32_t status = waits_.for_device(device_);
  // A kernel that failed is reported by the wait that came to its end.
  if (status != BRINGUP_OK && status != BRINGUP_KERNEL_FAILED) return status;
  const std::lock_guard lock(mutex_);
  for (Queue& queue : queues_) {
    if (queue.stream.device == device_) end_waiting_until(queue, *until);
  }
  return status;
}

// Until no more than the limit waits for other streams, or the time for waits is over.
int32_t DeviceMemory::wait_for_some() {
  int32_t status = BRINGUP_OK;
  waits_.blocking([&] {
    const auto limit = wait_limit();
    const auto begin = Clock::now();
    bool told = false;
    int asked = 0;
    while (true) {
      collect_finished();
      if (pending_bytes() <= pending_limit_) return;
      collect_idle_streams();
      if (pending_bytes() <= pending_limit_) return;
      const auto waited = Clock::now() - begin;
      if (limit.count() != 0 && waited > limit) {
        status = BRINGUP_TIMEOUT;
        return;
      }
      if (limit.count() == 0 && !told && waited > kPatience) {
        told = true;
        tell_of_waiting(device_, pending_bytes());
      }
      pause_between_queries(asked);
    }
  });
  return status;
}

void DeviceMemory::end_waiting_until(Queue& queue, uint64_t number) {
  while (!queue.entries.empty() && queue.entries.front().number <= number) {
    const Waiting over = queue.entries.front();
    queue.entries.pop_front();
    --waiting_;
    if (over.event != nullptr) idle_events_.emplace_back(queue.stream.device, over.event);
    if (--over.block->pending_events != 0) continue;
    pending_bytes_ -= over.block->bytes;
    make_free(over.block, over.number);
  }
}

DeviceMemory::Queue& DeviceMemory::queue_of(StreamOfDevice stream) {
  for (Queue& queue : queues_) {
    if (queue.stream == stream) return queue;
  }
  return queues_.emplace_back(Queue{stream, {}});
}

// --- blocks and their statistics

Block* DeviceMemory::hand_out(Block* block, size_t bytes, size_t requested) {
  const PoolKind kind = block->segment->kind;
  const bool was_split = !block->is_whole_segment();
  if (was_split) change_inactive(kind, -1, -static_cast<int64_t>(block->bytes));
  Block* rest = nullptr;
  block = pool_.take(block, bytes, &rest);
  if (rest != nullptr) change_inactive(kind, 1, static_cast<int64_t>(rest->bytes));
  block->requested = requested;
  const auto size = static_cast<int64_t>(block->bytes);
  change(stats_.allocation, kind, 1);
  change(stats_.allocated_bytes, kind, size);
  change(stats_.requested_bytes, kind, static_cast<int64_t>(requested));
  change(stats_.active, kind, 1);
  change(stats_.active_bytes, kind, size);
  return block;
}

void DeviceMemory::make_free(Block* block, uint64_t at) {
  const PoolKind kind = block->segment->kind;
  change(stats_.active, kind, -1);
  change(stats_.active_bytes, kind, -static_cast<int64_t>(block->bytes));
  block->segment->freed_at = std::max(block->segment->freed_at, at);
  int absorbed = 0;
  size_t absorbed_bytes = 0;
  block = pool_.put(block, &absorbed, &absorbed_bytes);
  if (absorbed > 0) change_inactive(kind, -absorbed, -static_cast<int64_t>(absorbed_bytes));
  if (!block->is_whole_segment()) change_inactive(kind, 1, static_cast<int64_t>(block->bytes));
}

void DeviceMemory::change(MemoryStats& stats, PoolKind kind, int64_t amount) {
  stats[0].change(amount);
  stats[kind == PoolKind::kSmall ? 1 : 2].change(amount);
}

void DeviceMemory::change_inactive(PoolKind kind, int64_t blocks, int64_t bytes) {
  change(stats_.inactive_split, kind, blocks);
  change(stats_.inactive_split_bytes, kind, bytes);
}

DeviceMemoryStats DeviceMemory::stats() const {
  const std::lock_guard lock(mutex_);
  return stats_;
}

namespace {

template <class Visit>
void for_each_stat(DeviceMemoryStats& stats, Visit visit) {
  for (MemoryStats* one :
       {&stats.allocation, &stats.allocated_bytes, &stats.requested_bytes, &stats.active,
        &stats.active_bytes, &stats.segment, &stats.reserved_bytes, &stats.inactive_split,
        &stats.inactive_split_bytes}) {
    for (MemoryStat& stat : *one) visit(stat);
  }
}

}  // namespace

void DeviceMemory::reset_peaks() {
  const std::lock_guard lock(mutex_);
  for_each_stat(stats_, [](MemoryStat& stat) { stat.peak = stat.current; });
}

void DeviceMemory::reset_sums() {
  const std::lock_guard lock(mutex_);
  for_each_stat(stats_, [](MemoryStat& stat) { stat.allocated = stat.freed = 0; });
  stats_.retries = stats_.failures = stats_.device_waits = 0;
  stats_.driver_allocations = stats_.driver_frees = 0;
}

size_t DeviceMemory::largest_free_block() const {
  size_t largest = 0;
  for (const SegmentSnapshot& segment : snapshot()) {
    for (const BlockSnapshot& block : segment.blocks) {
      if (block.state == BlockState::kFree) largest = std::max(largest, block.bytes);
    }
  }
  return largest;
}

std::vector<SegmentSnapshot> DeviceMemory::snapshot() const {
  const std::lock_guard lock(mutex_);
  std::vector<SegmentSnapshot> segments;
  for (const auto& [address, segment] : pool_.segments()) {
    SegmentSnapshot& shown = segments.emplace_back(SegmentSnapshot{
        address, segment->bytes, segment->stream, segment->pool, segment->kind, {}});
    for (const Block* block = segment->first; block != nullptr; block = block->behind) {
      shown.blocks.push_back({block->address, block->bytes, block->requested, block->state});
    }
  }
  return segments;
}

const std::byte* DeviceMemory::segment_of(const void* address) const {
  const std::lock_guard lock(mutex_);
  return pool_.segment_of(address);
}

}  // namespace bringup::driver
