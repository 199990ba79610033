// The caching allocator of one device, over a driver's table: blocks of cached memory, the events
// that keep them back, statistics. No torch: what waits on the host is given to it.
//
// A freed block is free for its own stream at once: its next owner works in that stream too, after
// all work of the former owner. A block that other streams used (record) is free when the events
// recorded there at its end are over. No driver function is called with the lock held, because a
// driver may call back into free() (a launch that is released).
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <deque>
#include <functional>
#include <mutex>
#include <utility>
#include <vector>

#include "bringup/driver.h"
#include "driver/block_pool.h"

namespace bringup::driver {

// One number and its history.
struct MemoryStat {
  int64_t current = 0;
  int64_t peak = 0;
  int64_t allocated = 0;  // sum of all increases
  int64_t freed = 0;      // and of all decreases

  void change(int64_t amount) {
    current += amount;
    if (amount >= 0) {
      allocated += amount;
      if (current > peak) peak = current;
    } else {
      freed -= amount;
    }
  }
};

// Of all blocks, and of those in small and in large segments.
using MemoryStats = std::array<MemoryStat, 3>;

struct DeviceMemoryStats {
  MemoryStats allocation, allocated_bytes, requested_bytes;  // what tensors hold
  MemoryStats active, active_bytes;                          // and what waits for other streams
  MemoryStats segment, reserved_bytes;                       // of the driver
  MemoryStats inactive_split, inactive_split_bytes;          // free parts of segments in use
  int64_t retries = 0;  // allocations that the driver refused at first
  int64_t failures = 0;
  int64_t device_waits = 0;
  int64_t driver_allocations = 0;
  int64_t driver_frees = 0;
};

struct BlockSnapshot {
  const void* address;
  size_t bytes;
  size_t requested;
  BlockState state;
};
struct SegmentSnapshot {
  const void* address;
  size_t bytes;
  int64_t stream;
  uint64_t pool;
  PoolKind kind;
  std::vector<BlockSnapshot> blocks;  // by address, without gaps
};

// How the host waits. A holder of a lock that the awaited work may need releases it for the wait.
struct HostWaits {
  std::function<int32_t(int32_t device)> for_device;
  // Runs something that takes its time.
  std::function<void(const std::function<void()>&)> blocking;
};

class DeviceMemory {
 public:
  // `pending_limit`: so many bytes may wait for events of other streams before an allocation waits
  // for some of them. `largest`: the most bytes of one allocation of the driver; 0: unknown.
  DeviceMemory(const bringup_driver& driver, int32_t device, size_t alignment, size_t pending_limit,
               HostWaits waits, size_t largest = 0);
  ~DeviceMemory();  // what was not given back stays the driver's
  DeviceMemory& operator=(DeviceMemory&&) = delete;

  // BRINGUP_OUT_OF_MEMORY: the driver has no more, although unused segments were given back to it.
  // BRINGUP_TIMEOUT: too much memory waits for events that do not end. Any other status is the
  // driver's, and its words are for this thread.
  int32_t allocate(size_t bytes, int64_t stream, Block** block, uint64_t pool = 0);
  // See BlockPool.
  void release(uint64_t pool);
  void free(Block* block) noexcept;
  // The block is also used by work in `stream`, up to the point where it is freed.
  void record(Block* block, StreamOfDevice stream);
  // Gives every unused segment back to the driver, after waiting for all work of the device.
  int32_t empty();
  // From now on the driver has no more than this in all, for allocations.
  void set_limit(size_t bytes) { limit_ = bytes; }
  size_t limit() const { return limit_; }

  DeviceMemoryStats stats() const;
  void reset_peaks();
  void reset_sums();
  size_t pending_bytes() const { return pending_bytes_.load(std::memory_order_relaxed); }
  size_t pending_limit() const { return pending_limit_; }
  size_t largest() const { return largest_; }
  size_t largest_free_block() const;
  std::vector<SegmentSnapshot> snapshot() const;
  // Where the driver's allocation that holds an address begins; null: none does.
  const std::byte* segment_of(const void* address) const;

 private:
  // A block that waits for the end of what a stream had to do when it was freed. Without an event
  // (the driver could not record one) only a wait for the whole device ends it.
  struct Waiting {
    bringup_event event;
    Block* block;
    uint64_t number;  // when it was given back
  };
  struct Queue {
    StreamOfDevice stream;
    std::deque<Waiting> entries;
  };

  int32_t allocate_segment(size_t bytes, int64_t stream, Block** block, size_t requested,
                           uint64_t pool);
  int32_t ask_driver(size_t bytes, void** address, size_t* got);
  int32_t alloc_within_limit(size_t bytes, void** address);
  int32_t give_back_oversized(Block* block, size_t bytes, int64_t stream, uint64_t until);
  int32_t give_back(const std::function<bool(const Segment&)>& chosen);
  int32_t give_back_idle();
  int32_t wait_for_all(uint64_t* until);
  int32_t wait_for_some();
  void collect_finished();
  void collect_idle_streams();
  bringup_event mark(StreamOfDevice stream);

  // With the lock held.
  Block* hand_out(Block* block, size_t bytes, size_t requested);
  void make_free(Block* block, uint64_t at);
  void end_waiting_until(Queue& queue, uint64_t number);
  Queue& queue_of(StreamOfDevice stream);
  static void change(MemoryStats& stats, PoolKind kind, int64_t amount);
  void change_inactive(PoolKind kind, int64_t blocks, int64_t bytes);

  const bringup_driver& driver_;
  const int32_t device_;
  const size_t pending_limit_;
  const HostWaits waits_;
  const size_t largest_;

  mutable std::mutex mutex_;  // for all that follows
  BlockPool pool_;
  std::deque<Queue> queues_;
  std::vector<std::pair<int32_t, bringup_event>> idle_events_;  // with their devices
  DeviceMemoryStats stats_;
  uint64_t clock_ = 0;  // counts what is given back
  std::atomic<size_t> waiting_{0};
  std::atomic<size_t> pending_bytes_{0};
  std::atomic<size_t> limit_{SIZE_MAX};
};

}  // namespace bringup::driver
