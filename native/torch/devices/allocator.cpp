// torch's allocator of device memory, over the blocks of native/driver: errors in words, statistics
// in torch's form, the profiler, the allocation interceptor.
#include "torch/devices/allocator.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <memory>
#include <utility>
#include <vector>

#include "driver/device_memory.h"
#include "driver/time_limits.h"
#include "engine/util/forever.h"
#include "torch/common/allocation.h"
#include "torch/devices/memory_history.h"

namespace bringup::torch_ext {
namespace {

using c10::CachingDeviceAllocator::DeviceStats;
using driver::Block;
using driver::DeviceMemory;
using driver::DeviceMemoryStats;

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

std::unique_ptr<DeviceMemory> new_device_memory(c10::DeviceIndex device) {
  // A share of the device may wait for other streams; more is a sign that their events never end.
  constexpr size_t kShare = 8;
  constexpr size_t kLeast = size_t{64} << 20;
  const bringup_device_props props = device_props(device);
  driver::HostWaits waits{
      [](int32_t index) { return wait_for_device(static_cast<c10::DeviceIndex>(index)); },
      [](const std::function<void()>& wait) { wait_without_gil(wait); }};
  return std::make_unique<DeviceMemory>(*active_driver(), device, props.alignment,
                                        std::max<size_t>(props.total_memory / kShare, kLeast),
                                        std::move(waits), props.max_allocation);
}

// One for each device; never destroyed, because tensors may be freed until the very end of the
// process.
DeviceMemory& memory_of(c10::DeviceIndex device) {
  static auto* all = [] {
    auto* made = new std::vector<std::unique_ptr<DeviceMemory>>;
    for (int32_t index = 0; index < driver_facts().device_count; ++index) {
      made->push_back(new_device_memory(static_cast<c10::DeviceIndex>(index)));
    }
    return made;
  }();
  return *(*all)[static_cast<size_t>(device)];
}

c10::DeviceIndex device_of(const Block* block) {
  return static_cast<c10::DeviceIndex>(block->segment->device);
}

// For profile(profile_memory=True): `bytes` is positive where a tensor takes a block, negative
// where it ends.
void report_to_profiler(void* address, int64_t bytes, c10::DeviceIndex device) {
  const DeviceMemoryStats stats = memory_of(device).stats();
  c10::reportMemoryUsageToProfiler(
      address, bytes, static_cast<size_t>(stats.allocated_bytes[0].current),
      static_cast<size_t>(stats.reserved_bytes[0].current), c10::Device(kDriverDevice, device));
}

void free_block(void* context) {
  // A forked child owns none of the device's memory: its parent does.
  if (context == nullptr || in_forked_child()) return;
  auto* block = static_cast<Block*>(context);
  const c10::DeviceIndex device = device_of(block);
  void* address = block->address;
  const auto bytes = static_cast<int64_t>(block->bytes);
  if (C10_UNLIKELY(records_memory_history())) {
    note_memory(false, device, block->segment->stream, address, block->bytes);
  }
  memory_of(device).free(block);
  if (C10_UNLIKELY(c10::memoryProfilingEnabled())) report_to_profiler(address, -bytes, device);
}

[[noreturn]] void raise_out_of_memory(size_t requested, c10::DeviceIndex device) {
  const DeviceMemory& memory = memory_of(device);
  const DeviceMemoryStats stats = memory.stats();
  size_t free_bytes = 0;
  size_t total = 0;
  const bool known = active_driver()->mem_info(device, &free_bytes, &total) == BRINGUP_OK;
  const auto allocated = static_cast<size_t>(stats.allocated_bytes[0].current);
  const auto reserved = static_cast<size_t>(stats.reserved_bytes[0].current);
  const std::string capacity = known ? " has a total capacity of " + readable(total) +
                                           " of which " + readable(free_bytes) + " is free."
                                     : " cannot say how much memory it has.";
  const std::string largest =
      requested <= memory.largest()
          ? ""
          : " One allocation has at most " + readable(memory.largest()) +
                " (max_allocation of the driver's properties): use smaller tensors.";
  const std::string limit = memory.limit() == SIZE_MAX
                                ? ""
                                : " This process may take " + readable(memory.limit()) +
                                      " (set_per_process_memory_fraction).";
  const std::string pending = memory.pending_bytes() == 0 ? ""
                                                          : " " + readable(memory.pending_bytes()) +
                                                                " of it waits for other streams.";
  TORCH_CHECK_WITH(OutOfMemoryError, false, driver_facts().device_name,
                   " out of memory. Tried to allocate ", readable(requested), ". Device ",
                   static_cast<int>(device), capacity, " Tensors of this process hold ",
                   readable(allocated), "; ", readable(reserved - allocated),
                   " is reserved by the allocator but unused.", pending, largest, limit,
                   " The largest free block has ", readable(memory.largest_free_block()), ".");
}

[[noreturn]] void raise_allocation_failure(int32_t status, size_t requested,
                                           c10::DeviceIndex device) {
  if (status == BRINGUP_OUT_OF_MEMORY) raise_out_of_memory(requested, device);
  const DeviceMemory& memory = memory_of(device);
  TORCH_CHECK(status != BRINGUP_TIMEOUT, "no memory is allocated on device '",
              driver_facts().device_name, ":", static_cast<int>(device),
              "': ", readable(memory.pending_bytes()),
              " of freed memory wait for other streams that used them (record_stream), and their "
              "events have not ended after ",
              static_cast<double>(driver::wait_limit().count()) / 1e9,
              " s (BRINGUP_WAIT_TIMEOUT); at most ", readable(memory.pending_limit()), " may wait");
  check_driver(status, "allocating device memory");
  TORCH_CHECK(false, "allocating device memory failed without a status");
}

// torch's form of the statistics.
c10::CachingAllocator::StatArray torch_stats(const driver::MemoryStats& stats) {
  using c10::CachingAllocator::StatType;
  c10::CachingAllocator::StatArray result;
  constexpr std::array<StatType, 3> kOrder = {StatType::AGGREGATE, StatType::SMALL_POOL,
                                              StatType::LARGE_POOL};
  for (size_t i = 0; i < kOrder.size(); ++i) {
    c10::CachingAllocator::Stat& stat = result[static_cast<size_t>(kOrder[i])];
    stat.current = stats[i].current;
    stat.peak = stats[i].peak;
    stat.allocated = stats[i].allocated;
    stat.freed = stats[i].freed;
  }
  return result;
}

DeviceStats torch_stats(const DeviceMemoryStats& stats) {
  DeviceStats result;
  result.allocation = torch_stats(stats.allocation);
  result.allocated_bytes = torch_stats(stats.allocated_bytes);
  result.requested_bytes = torch_stats(stats.requested_bytes);
  result.active = torch_stats(stats.active);
  result.active_bytes = torch_stats(stats.active_bytes);
  result.segment = torch_stats(stats.segment);
  result.reserved_bytes = torch_stats(stats.reserved_bytes);
  result.inactive_split = torch_stats(stats.inactive_split);
  result.inactive_split_bytes = torch_stats(stats.inactive_split_bytes);
  result.num_alloc_retries = stats.retries;
  result.num_ooms = stats.failures;
  result.num_sync_all_streams = stats.device_waits;
  result.num_device_alloc = stats.driver_allocations;
  result.num_device_free = stats.driver_frees;
  return result;
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

// Of this thread, from which pool it allocates on each device.
thread_local std::vector<uint64_t> t_pools;

DirectAllocator& direct_allocator() { return forever<DirectAllocator>(); }

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
      check_driver(memory_of(static_cast<c10::DeviceIndex>(device)).empty(),
                   "giving unused device memory back");
    }
  }
  void recordStream(const c10::DataPtr& data, c10::Stream stream) override {
    if (data.get_deleter() != &free_block || data.get_context() == nullptr) return;
    auto* block = static_cast<Block*>(data.get_context());
    memory_of(device_of(block)).record(block, {stream.device_index(), stream.id()});
  }
  DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    return torch_stats(memory_of(checked_device(device)).stats());
  }
  void resetAccumulatedStats(c10::DeviceIndex device) override {
    memory_of(checked_device(device)).reset_sums();
  }
  void resetPeakStats(c10::DeviceIndex device) override {
    memory_of(checked_device(device)).reset_peaks();
  }
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex device) override {
    size_t free_bytes = 0;
    size_t total = 0;
    check_driver(active_driver()->mem_info(checked_device(device), &free_bytes, &total),
                 "asking for free memory");
    return {free_bytes, total};
  }
};

}  // namespace

c10::DeviceAllocator& device_allocator() { return forever<DriverAllocator>(); }

at::DataPtr allocate_block(size_t bytes, c10::DeviceIndex device) {
  const c10::Device where(kDriverDevice, device);
  if (bytes == 0) return {nullptr, nullptr, &free_block, where};
  TORCH_CHECK(!in_forked_child(), "device '", driver_facts().device_name,
              "' cannot be used in a forked process: start the process with the 'spawn' method");
  Block* block = nullptr;
  const auto index = static_cast<size_t>(device);
  const uint64_t pool = index < t_pools.size() ? t_pools[index] : 0;
  const int32_t status =
      memory_of(device).allocate(bytes, current_stream(device).id(), &block, pool);
  if (C10_UNLIKELY(status != BRINGUP_OK)) raise_allocation_failure(status, bytes, device);
  if (C10_UNLIKELY(c10::memoryProfilingEnabled())) {
    report_to_profiler(block->address, static_cast<int64_t>(block->bytes), device);
  }
  if (C10_UNLIKELY(records_memory_history())) {
    note_memory(true, device, block->segment->stream, block->address, block->bytes);
  }
  return {block->address, block, &free_block, where};
}

at::DataPtr allocate_intercepted(size_t bytes, c10::DeviceIndex device) {
  AllocationInterceptor* interceptor = current_interceptor();
  if (C10_LIKELY(interceptor == nullptr)) return allocate_block(bytes, device);
  return interceptor->allocate(bytes, c10::Device(kDriverDevice, device), direct_allocator());
}

const std::byte* segment_of_address(c10::DeviceIndex device, const void* address) {
  return memory_of(device).segment_of(address);
}

c10::DeviceIndex device_of_address(const void* address) {
  for (int32_t device = 0; device < driver_facts().device_count; ++device) {
    if (segment_of_address(static_cast<c10::DeviceIndex>(device), address) != nullptr) {
      return static_cast<c10::DeviceIndex>(device);
    }
  }
  // Memory that did not come from here: of a library of the vendor's, wrapped by from_blob.
  const auto info = driver_pointer_info(address);
  if (info && info->kind == BRINGUP_POINTER_DEVICE) {
    return static_cast<c10::DeviceIndex>(info->device);
  }
  TORCH_CHECK(false, "no device '", driver_facts().device_name, "' holds the address ", address);
}

void set_memory_limit(c10::DeviceIndex device, size_t bytes) {
  memory_of(checked_device(device)).set_limit(bytes);
}

uint64_t set_memory_pool(c10::DeviceIndex device, uint64_t pool) {
  const auto index = static_cast<size_t>(checked_device(device));
  if (index >= t_pools.size()) t_pools.resize(index + 1);
  return std::exchange(t_pools[index], pool);
}

void release_memory_pool(uint64_t pool) {
  for (int32_t device = 0; device < driver_facts().device_count; ++device) {
    memory_of(static_cast<c10::DeviceIndex>(device)).release(pool);
  }
}

std::vector<driver::SegmentSnapshot> device_memory_snapshot(c10::DeviceIndex device) {
  return memory_of(checked_device(device)).snapshot();
}

void register_allocator() {
  // Made now: it asks the driver, and who is first to use it may have the GIL, which a driver in
  // Python needs for its answer to another thread.
  memory_of(0);
  c10::SetAllocator(kDriverDevice, &device_allocator());
}

}  // namespace bringup::torch_ext
