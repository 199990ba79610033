// The caching allocator. Small requests are cut from segments in size classes, large ones are
// driver allocations of their own. A freed block waits in the free list of its device and *stream*:
// the next owner of a block works in the same stream, so it comes after all work of the former
// owner, without any waiting. A block that another stream used (record_stream) waits until the
// events recorded there at its end are over.
#include "torch/devices/allocator.h"

#include <c10/util/Exception.h>
#include <c10/util/llvmMathExtras.h>

#include <array>
#include <map>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "torch/common/allocation.h"

namespace bringup::torch_ext {
namespace {

using c10::CachingAllocator::Stat;
using c10::CachingAllocator::StatArray;
using c10::CachingAllocator::StatType;
using c10::CachingDeviceAllocator::DeviceStats;

constexpr size_t kSmallestClass = 512;
constexpr size_t kLargestSmall = size_t{64} << 10;
constexpr size_t kSegmentBytes = size_t{64} << 10;
constexpr size_t kBlocksPerSegment = 16;
constexpr size_t kMiddle = size_t{1} << 20;  // statistics call what is below "small"
constexpr size_t kLargeStep = size_t{2} << 20;

struct Segment;

struct Block {
  Segment* segment = nullptr;
  void* address = nullptr;
  size_t bytes = 0;
  size_t requested = 0;
  std::vector<c10::Stream> used_by;  // other streams, given by record_stream
  int pending_events = 0;
};

// One driver allocation, cut into blocks of one size.
struct Segment {
  c10::DeviceIndex device = 0;
  c10::StreamId stream = 0;
  void* address = nullptr;
  size_t bytes = 0;
  std::vector<Block> blocks;
  size_t free_blocks = 0;
};

// Sizes are rounded to four steps per power of two: at most a quarter is lost, and few different
// sizes exist.
size_t class_bytes(size_t bytes) {
  if (bytes <= kSmallestClass) return kSmallestClass;
  if (bytes > kMiddle) return (bytes + kLargeStep - 1) / kLargeStep * kLargeStep;
  const size_t step = size_t{1} << (c10::llvm::Log2_64(bytes - 1) - 2);
  return (bytes + step - 1) / step * step;
}

std::string readable(size_t bytes) {
  constexpr std::array<const char*, 4> kUnits = {"bytes", "KiB", "MiB", "GiB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 1024 && unit + 1 < kUnits.size()) {
    value /= 1024;
    ++unit;
  }
  std::array<char, 32> text;
  std::snprintf(text.data(), text.size(), unit == 0 ? "%.0f %s" : "%.2f %s", value, kUnits[unit]);
  return text.data();
}

struct FreeListKey {
  c10::StreamId stream;
  size_t bytes;
  bool operator==(const FreeListKey&) const = default;
};
struct FreeListHash {
  size_t operator()(const FreeListKey& key) const {
    return std::hash<uint64_t>()(static_cast<uint64_t>(key.stream) * 0x9e3779b97f4a7c15u ^
                                 key.bytes);
  }
};

class DeviceCache {
 public:
  explicit DeviceCache(c10::DeviceIndex device) : device_(device) {}

  Block* allocate(size_t requested, c10::StreamId stream) {
    const size_t bytes = class_bytes(requested);
    {
      std::lock_guard lock(mutex_);
      if (!waiting_.empty()) collect_finished();
      if (Block* block = pop(stream, bytes)) return hand_out(block, requested);
    }
    auto segment = make_segment(stream, bytes, requested);  // without the lock: others keep hitting
    std::lock_guard lock(mutex_);
    Block* block = adopt(std::move(segment));
    return hand_out(block, requested);
  }

  void free(Block* block) {
    std::lock_guard lock(mutex_);
    count_request(block, &Stat::decrease);
    report_to_profiler(block, -1);
    for (const c10::Stream& stream : block->used_by) {
      ++block->pending_events;
      waiting_.push_back({mark(stream), block});
    }
    block->used_by.clear();
    if (block->pending_events == 0) push(block);
  }

  void record(Block* block, const c10::Stream& stream) {
    std::lock_guard lock(mutex_);
    if (stream.id() == block->segment->stream) return;
    for (const c10::Stream& known : block->used_by) {
      if (known == stream) return;
    }
    block->used_by.push_back(stream);
  }

  // Gives every segment without a live block back to the driver, after the work that may still
  // touch it.
  void empty() {
    check_driver(wait_for_device(device_), "waiting for a device");
    std::lock_guard lock(mutex_);
    ++stats_.num_sync_all_streams;
    collect_finished();
    std::erase_if(segments_, [&](auto& entry) {
      Segment& segment = *entry.second;
      if (segment.free_blocks != segment.blocks.size()) return false;
      std::erase_if(free_[{segment.stream, segment.blocks.front().bytes}],
                    [&](const Block* block) { return block->segment == &segment; });
      count_segment(segment, &Stat::decrease);
      check_driver(active_driver()->mem_free(device_, segment.address), "freeing device memory");
      ++stats_.num_device_free;
      return true;
    });
  }

  DeviceStats stats() {
    std::lock_guard lock(mutex_);
    return stats_;
  }

  void reset_peak_stats() {
    std::lock_guard lock(mutex_);
    for_each_stat([](Stat& stat) { stat.reset_peak(); });
  }
  void reset_accumulated_stats() {
    std::lock_guard lock(mutex_);
    for_each_stat([](Stat& stat) { stat.reset_accumulated(); });
    stats_.num_alloc_retries = stats_.num_ooms = stats_.num_sync_all_streams = 0;
    stats_.num_device_alloc = stats_.num_device_free = 0;
  }

  bool holds(const void* address) {
    std::lock_guard lock(mutex_);
    auto segment = segments_.upper_bound(address);
    if (segment == segments_.begin()) return false;
    --segment;
    const auto* begin = static_cast<const std::byte*>(segment->first);
    return static_cast<const std::byte*>(address) < begin + segment->second->bytes;
  }

 private:
  struct Waiting {
    bringup_event event;
    Block* block;
  };
  using Change = void (Stat::*)(size_t);

  template <typename Visit>
  void for_each_stat(Visit visit) {
    for (StatArray* stats :
         {&stats_.allocation, &stats_.segment, &stats_.active, &stats_.allocated_bytes,
          &stats_.reserved_bytes, &stats_.active_bytes, &stats_.requested_bytes}) {
      for (Stat& stat : *stats) visit(stat);
    }
  }

  static void change(StatArray& stats, size_t block_bytes, size_t amount, Change by) {
    const auto pool = block_bytes < kMiddle ? StatType::SMALL_POOL : StatType::LARGE_POOL;
    (stats[static_cast<size_t>(StatType::AGGREGATE)].*by)(amount);
    (stats[static_cast<size_t>(pool)].*by)(amount);
  }
  void count_request(const Block* block, Change by) {
    change(stats_.allocation, block->bytes, 1, by);
    change(stats_.allocated_bytes, block->bytes, block->bytes, by);
    change(stats_.requested_bytes, block->bytes, block->requested, by);
  }
  // For profile(profile_memory=True): `sign` is 1 where a tensor takes a block, -1 where it ends.
  void report_to_profiler(const Block* block, int64_t sign) {
    if (C10_LIKELY(!c10::memoryProfilingEnabled())) return;
    const auto current = [](const StatArray& stats) {
      return static_cast<size_t>(stats[static_cast<size_t>(StatType::AGGREGATE)].current);
    };
    c10::reportMemoryUsageToProfiler(
        block->address, sign * static_cast<int64_t>(block->bytes), current(stats_.allocated_bytes),
        current(stats_.reserved_bytes), c10::Device(kDriverDevice, device_));
  }
  void count_active(const Block* block, Change by) {
    change(stats_.active, block->bytes, 1, by);
    change(stats_.active_bytes, block->bytes, block->bytes, by);
  }
  void count_segment(const Segment& segment, Change by) {
    change(stats_.segment, segment.blocks.front().bytes, 1, by);
    change(stats_.reserved_bytes, segment.blocks.front().bytes, segment.bytes, by);
  }

  Block* pop(c10::StreamId stream, size_t bytes) {
    const auto list = free_.find({stream, bytes});
    if (list == free_.end() || list->second.empty()) return nullptr;
    Block* block = list->second.back();
    list->second.pop_back();
    return block;
  }

  void push(Block* block) {
    count_active(block, &Stat::decrease);
    ++block->segment->free_blocks;
    free_[{block->segment->stream, block->bytes}].push_back(block);
  }

  Block* hand_out(Block* block, size_t requested) {
    --block->segment->free_blocks;
    block->requested = requested;
    count_request(block, &Stat::increase);
    count_active(block, &Stat::increase);
    report_to_profiler(block, 1);
    return block;
  }

  // A mark at the end of `stream`; null when the driver cannot give one.
  bringup_event mark(const c10::Stream& stream) {
    const bringup_driver& driver = *active_driver();
    bringup_event event = nullptr;
    if (!idle_events_.empty()) {
      event = idle_events_.back();
      idle_events_.pop_back();
    } else if (driver.event_create(device_, 0, &event) != BRINGUP_OK) {
      return nullptr;
    }
    if (driver.event_record(event, device_, native_stream(stream)) == BRINGUP_OK) return event;
    idle_events_.push_back(event);
    return nullptr;
  }

  // Blocks whose marks are over become free. One without a mark is never used again: nobody can say
  // when it is free.
  void collect_finished() {
    std::erase_if(waiting_, [&](const Waiting& waiting) {
      if (waiting.event == nullptr ||
          active_driver()->event_query(waiting.event) == BRINGUP_NOT_READY) {
        return false;
      }
      idle_events_.push_back(waiting.event);
      if (--waiting.block->pending_events == 0) push(waiting.block);
      return true;
    });
  }

  std::unique_ptr<Segment> make_segment(c10::StreamId stream, size_t block_bytes,
                                        size_t requested) {
    const size_t blocks =
        block_bytes <= kLargestSmall ? std::max(kBlocksPerSegment, kSegmentBytes / block_bytes) : 1;
    auto segment = std::make_unique<Segment>();
    segment->device = device_;
    segment->stream = stream;
    segment->bytes = block_bytes * blocks;
    segment->blocks.resize(blocks);
    segment->address = driver_allocate(segment->bytes, requested);
    for (size_t i = 0; i < blocks; ++i) {
      Block& block = segment->blocks[i];
      block.segment = segment.get();
      block.address = static_cast<std::byte*>(segment->address) + i * block_bytes;
      block.bytes = block_bytes;
    }
    return segment;
  }

  // Puts a new segment under management and returns its first block, taken out.
  Block* adopt(std::unique_ptr<Segment> segment) {
    ++stats_.num_device_alloc;
    count_segment(*segment, &Stat::increase);
    segment->free_blocks = segment->blocks.size();
    auto& list = free_[{segment->stream, segment->blocks.front().bytes}];
    for (size_t i = segment->blocks.size(); i-- > 1;) list.push_back(&segment->blocks[i]);
    Block* first = &segment->blocks.front();
    segments_.emplace(segment->address, std::move(segment));
    return first;
  }

  // From the driver; once more after giving back everything that is unused.
  void* driver_allocate(size_t bytes, size_t requested) {
    void* address = nullptr;
    int32_t status = active_driver()->mem_alloc(device_, bytes, &address);
    if (status == BRINGUP_OUT_OF_MEMORY) {
      empty();
      status = active_driver()->mem_alloc(device_, bytes, &address);
      std::lock_guard lock(mutex_);
      ++stats_.num_alloc_retries;
      if (status == BRINGUP_OUT_OF_MEMORY) raise_out_of_memory(requested);
    }
    check_driver(status, "allocating device memory");
    return address;
  }

  [[noreturn]] void raise_out_of_memory(size_t requested) {
    ++stats_.num_ooms;
    size_t free_bytes = 0;
    size_t total = 0;
    check_driver(active_driver()->mem_info(device_, &free_bytes, &total), "asking for free memory");
    const auto current = [](const StatArray& stats) {
      return static_cast<size_t>(stats[static_cast<size_t>(StatType::AGGREGATE)].current);
    };
    const size_t allocated = current(stats_.allocated_bytes);
    const size_t reserved = current(stats_.reserved_bytes);
    TORCH_CHECK_WITH(OutOfMemoryError, false, driver_facts().device_name,
                     " out of memory. Tried to allocate ", readable(requested), ". Device ",
                     static_cast<int>(device_), " has a total capacity of ", readable(total),
                     " of which ", readable(free_bytes), " is free. Tensors of this process hold ",
                     readable(allocated), "; ", readable(reserved - allocated),
                     " is reserved by the allocator but unused.");
  }

  const c10::DeviceIndex device_;
  std::mutex mutex_;
  std::unordered_map<FreeListKey, std::vector<Block*>, FreeListHash> free_;
  std::map<const void*, std::unique_ptr<Segment>> segments_;
  std::vector<Waiting> waiting_;
  std::vector<bringup_event> idle_events_;
  DeviceStats stats_;
};

// One cache a device; never destroyed, because tensors may be freed until the very end of the
// process.
DeviceCache& cache_of(c10::DeviceIndex device) {
  static auto* caches = [] {
    auto* all = new std::vector<std::unique_ptr<DeviceCache>>;
    for (int32_t index = 0; index < driver_facts().device_count; ++index) {
      all->push_back(std::make_unique<DeviceCache>(static_cast<c10::DeviceIndex>(index)));
    }
    return all;
  }();
  return *(*caches)[static_cast<size_t>(device)];
}

void free_block(void* context) {
  // A forked child owns none of the device's memory: its parent does.
  if (context == nullptr || in_forked_child()) return;
  auto* block = static_cast<Block*>(context);
  cache_of(block->segment->device).free(block);
}

// The memory behind a request that no interceptor wants; an interceptor gets it as its `base`.
class DirectAllocator final : public c10::Allocator {
 public:
  at::DataPtr allocate(size_t bytes) override { return allocate_block(bytes, current_device()); }
  // A block is known by its Block, not by its address, so there is no raw deleter.
  at::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* target, const void* source, size_t bytes) const override {
    const c10::DeviceIndex device = current_device();
    check_driver(active_driver()->copy_async(BRINGUP_DEVICE_TO_DEVICE, device, target, device,
                                             source, bytes, current_driver_stream(device)),
                 "copying device memory");
  }
};

DirectAllocator& direct_allocator() {
  static auto* allocator = new DirectAllocator;
  return *allocator;
}

class DriverAllocator final : public c10::DeviceAllocator {
 public:
  at::DataPtr allocate(size_t bytes) override {
    return allocate_intercepted(bytes, current_device());
  }
  at::DeleterFnPtr raw_deleter() const override { return direct_allocator().raw_deleter(); }
  void copy_data(void* target, const void* source, size_t bytes) const override {
    direct_allocator().copy_data(target, source, bytes);
  }
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t) override {
    for (int32_t device = 0; device < driver_facts().device_count; ++device) {
      cache_of(static_cast<c10::DeviceIndex>(device)).empty();
    }
  }
  void recordStream(const c10::DataPtr& data, c10::Stream stream) override {
    if (data.get_deleter() != &free_block || data.get_context() == nullptr) return;
    auto* block = static_cast<Block*>(data.get_context());
    cache_of(block->segment->device).record(block, stream);
  }
  DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    return cache_of(checked_device(device)).stats();
  }
  void resetAccumulatedStats(c10::DeviceIndex device) override {
    cache_of(checked_device(device)).reset_accumulated_stats();
  }
  void resetPeakStats(c10::DeviceIndex device) override {
    cache_of(checked_device(device)).reset_peak_stats();
  }
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex device) override {
    size_t free_bytes = 0;
    size_t total = 0;
    check_driver(active_driver()->mem_info(checked_device(device), &free_bytes, &total),
                 "asking for free memory");
    return {free_bytes, total};
  }
};

DriverAllocator& driver_allocator() {
  static auto* allocator = new DriverAllocator;
  return *allocator;
}

}  // namespace

c10::DeviceAllocator& device_allocator() { return driver_allocator(); }

at::DataPtr allocate_block(size_t bytes, c10::DeviceIndex device) {
  const c10::Device where(kDriverDevice, device);
  if (bytes == 0) return {nullptr, nullptr, &free_block, where};
  TORCH_CHECK(!in_forked_child(), "device '", driver_facts().device_name,
              "' cannot be used in a forked process: start the process with the 'spawn' method");
  Block* block = cache_of(device).allocate(bytes, current_stream(device).id());
  return {block->address, block, &free_block, where};
}

at::DataPtr allocate_intercepted(size_t bytes, c10::DeviceIndex device) {
  AllocationInterceptor* interceptor = current_interceptor();
  if (C10_LIKELY(interceptor == nullptr)) return allocate_block(bytes, device);
  return interceptor->allocate(bytes, c10::Device(kDriverDevice, device), direct_allocator());
}

c10::DeviceIndex device_of_address(const void* address) {
  for (int32_t device = 0; device < driver_facts().device_count; ++device) {
    if (cache_of(static_cast<c10::DeviceIndex>(device)).holds(address)) {
      return static_cast<c10::DeviceIndex>(device);
    }
  }
  TORCH_CHECK(false, "no device '", driver_facts().device_name, "' holds the address ", address);
}

void register_allocator() { c10::SetAllocator(kDriverDevice, &driver_allocator()); }

}  // namespace bringup::torch_ext
