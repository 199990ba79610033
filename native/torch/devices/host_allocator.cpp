#include "torch/devices/host_allocator.h"

#include <nanobind/nanobind.h>

#include <cstdlib>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/util/forever.h"
#include "torch/devices/state.h"

namespace bringup::torch_ext {
namespace {

constexpr size_t kAlignment = 64;

// An event; or, without one, what is known of the work instead.
struct OwnedEvent {
  // An event that cannot be queried counts as pending.
  bool over() const noexcept {
    return event != nullptr ? active_driver()->event_query(event.get()) == BRINGUP_OK : known_over;
  }

  EventPtr event;
  bool known_over = false;
};

// The end of what was given to a stream so far. Called where memory is freed, so it raises nothing:
// a driver that gives no event is waited for, and where that fails too it is never over.
OwnedEvent end_of(const c10::Stream& stream) noexcept {
  const bringup_driver& driver = *active_driver();
  const c10::DeviceIndex device = stream.device_index();
  EventPtr event;
  if (create_event(device, false, event) == BRINGUP_OK &&
      driver.event_record(event.get(), device, native_stream(stream)) == BRINGUP_OK) {
    return {std::move(event)};
  }
  const int32_t status = wait_for_stream(device, native_stream(stream));
  if (status == BRINGUP_KERNEL_FAILED) report_host_failure(device, driver_error_text(status));
  return {nullptr, status == BRINGUP_OK || status == BRINGUP_KERNEL_FAILED};
}

struct PinnedRange {
  size_t bytes = 0;
  bool registered = false;
  // Of a registered range: what was left to each stream is over when its event is.
  std::map<std::pair<c10::DeviceIndex, c10::StreamId>, OwnedEvent> uses;
};

// Every pinned and every registered range, for "is this address pinned?".
struct PinnedRanges {
  std::mutex mutex;
  std::map<const std::byte*, PinnedRange> ranges;

  // The range that holds an address. With the mutex held.
  std::map<const std::byte*, PinnedRange>::iterator find(const void* address) {
    const auto* byte = static_cast<const std::byte*>(address);
    auto range = ranges.upper_bound(byte);
    if (range == ranges.begin()) return ranges.end();
    --range;
    return byte < range->first + range->second.bytes ? range : ranges.end();
  }
};
PinnedRanges& pinned_ranges() { return forever<PinnedRanges>(); }

// torch's caching host allocator over the driver's host memory (ordinary memory without a
// driver's).
class PinnedCache final : public at::CachingHostAllocatorImpl<c10::Stream, OwnedEvent> {
 public:
  // Without the GIL, which torch's call has: a driver in Python needs it under the locks.
  void empty_cache() override {
    std::optional<nanobind::gil_scoped_release> no_gil;
    if (Py_IsInitialized() != 0 && PyGILState_Check() != 0) no_gil.emplace();
    const std::lock_guard alone(emptying_);
    for (void* address : take_refused()) give_back(address);
    CachingHostAllocatorImpl::empty_cache();
    const std::lock_guard lock(refused_mutex_);
    TORCH_CHECK(refused_.empty(), refusal_, ". The driver keeps ", refused_.size(),
                " ranges; emptying the cache again tries them again");
  }

 private:
  void allocate_host_memory(size_t bytes, void** address) override {
    const bringup_driver& driver = *active_driver();
    if (driver.host_alloc != nullptr && driver.host_free != nullptr) {
      check_driver(driver.host_alloc(bytes, address), "allocating pinned host memory");
    } else {
      *address = std::aligned_alloc(kAlignment, (bytes + kAlignment - 1) / kAlignment * kAlignment);
      TORCH_CHECK_WITH(OutOfMemoryError, *address != nullptr, "no host memory left for ", bytes,
                       " pinned bytes");
    }
    std::lock_guard lock(pinned_ranges().mutex);
    pinned_ranges().ranges[static_cast<const std::byte*>(*address)].bytes = bytes;
  }

  void free_block(at::HostBlock<c10::Stream>* block) override {
    {
      std::lock_guard lock(pinned_ranges().mutex);
      pinned_ranges().ranges.erase(static_cast<const std::byte*>(block->ptr_));
    }
    give_back(block->ptr_);
  }

  // Raises nothing: torch would forget the blocks that it has yet to free, and it also frees where
  // a tensor ends.
  void give_back(void* address) {
    const bringup_driver& driver = *active_driver();
    if (driver.host_alloc == nullptr || driver.host_free == nullptr) return std::free(address);
    const int32_t status = driver.host_free(address);
    if (status == BRINGUP_OK) return;
    std::string refusal = driver_failure_text(status, "freeing pinned host memory");
    const std::lock_guard lock(refused_mutex_);
    refused_.push_back(address);
    refusal_ = std::move(refusal);
  }

  std::vector<void*> take_refused() {
    const std::lock_guard lock(refused_mutex_);
    return std::exchange(refused_, {});
  }

  void record_stream(std::optional<std::vector<OwnedEvent>>& events, c10::Stream stream) override {
    events->push_back(end_of(stream));
  }
  bool query_event(OwnedEvent& event) override { return event.over(); }
  c10::Stream get_current_stream() const override { return current_stream(current_device()); }
  bool stream_is_capturing(c10::Stream) const override { return false; }

  std::mutex emptying_;
  std::mutex refused_mutex_;    // for what follows
  std::vector<void*> refused_;  // what the driver did not take back
  std::string refusal_;         // and why, the last time
};

void free_pinned(void* context);
using PinnedAllocator = at::CachingHostAllocatorInterface<PinnedCache, free_pinned>;

PinnedAllocator& pinned_allocator() { return forever<PinnedAllocator>(); }

void free_pinned(void* context) {
  if (!in_forked_child()) pinned_allocator().free(context);
}

}  // namespace

at::HostAllocator& host_allocator() { return pinned_allocator(); }

at::DataPtr pinned_or_nothing(size_t bytes) {
  try {
    return pinned_allocator().allocate(bytes);
  } catch (const c10::Error&) {
    return {};
  }
}

bool is_pinned_address(const void* address) {
  PinnedRanges& pinned = pinned_ranges();
  std::lock_guard lock(pinned.mutex);
  return pinned.find(address) != pinned.ranges.end();
}

bool record_host_use(void* address, const at::Storage& storage, const c10::Stream& stream) {
  PinnedRanges& pinned = pinned_ranges();
  {
    std::lock_guard lock(pinned.mutex);
    const auto range = pinned.find(address);
    if (range != pinned.ranges.end() && range->second.registered) {
      range->second.uses.insert_or_assign({stream.device_index(), stream.id()}, end_of(stream));
      return true;
    }
  }
  const at::DataPtr& memory = storage.data_ptr();
  return host_allocator().record_event(memory.get(), memory.get_context(), stream);
}

void register_host_memory(void* address, size_t bytes) {
  const bringup_driver& driver = *active_driver();
  TORCH_CHECK(driver.host_register != nullptr, "host memory cannot be registered with device '",
              driver_facts().device_name,
              "': its driver has no host_register (BRINGUP_HAS_HOST_MEMORY of bringup/driver.h). "
              "tensor.pin_memory() makes a pinned copy");
  PinnedRanges& pinned = pinned_ranges();
  const auto* begin = static_cast<const std::byte*>(address);
  std::lock_guard lock(pinned.mutex);
  const auto next = pinned.ranges.lower_bound(begin);
  const bool overlaps = pinned.find(address) != pinned.ranges.end() ||
                        (next != pinned.ranges.end() && next->first < begin + bytes);
  TORCH_CHECK(!overlaps, "the ", bytes, " bytes at ", address,
              " are pinned or registered already, or a part of them is");
  check_driver(driver.host_register(address, bytes), "registering host memory");
  PinnedRange& range = pinned.ranges[begin];
  range.bytes = bytes;
  range.registered = true;
}

void unregister_host_memory(void* address) {
  PinnedRanges& pinned = pinned_ranges();
  std::unique_lock lock(pinned.mutex);
  const auto found = pinned.ranges.find(static_cast<const std::byte*>(address));
  TORCH_CHECK(found != pinned.ranges.end() && found->second.registered,
              "no registered memory begins at ", address);
  // No longer pinned for others, but waited for without the lock.
  auto range = pinned.ranges.extract(found);
  lock.unlock();
  int32_t failed = BRINGUP_OK;
  std::string failure;
  for (const auto& [where, use] : range.mapped().uses) {
    const int32_t without_event = use.known_over ? BRINGUP_OK : BRINGUP_ERROR;
    const int32_t status = use.event != nullptr ? wait_for_event(use.event.get()) : without_event;
    if (status == BRINGUP_OK || failed != BRINGUP_OK) continue;
    failed = status;
    failure = driver_error_text(status);
  }
  if (failed != BRINGUP_OK && failed != BRINGUP_KERNEL_FAILED) {  // a copy may be pending still
    lock.lock();
    pinned.ranges.insert(std::move(range));
    TORCH_CHECK(false, "memory stays registered, as waiting for its copies failed: ", failure);
  }
  range.mapped().uses.clear();
  const int32_t status = active_driver()->host_unregister(address);
  if (status != BRINGUP_OK) {
    const std::string refusal = driver_failure_text(status, "unregistering host memory");
    lock.lock();
    pinned.ranges.insert(std::move(range));
    TORCH_CHECK(false, refusal, ". The memory stays registered", failure.empty() ? "" : "; ",
                failure);
  }
  TORCH_CHECK(failed == BRINGUP_OK, failure);
}

void register_host_allocator() { at::setHostAllocator(kDriverDevice, &pinned_allocator()); }

}  // namespace bringup::torch_ext
