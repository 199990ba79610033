// The caching allocator over the simulator: memory that other streams use, running out, threads.
#include <chrono>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "driver/device_memory.h"
#include "driver/time_limits.h"
#include "sim_driver.h"

namespace {

namespace driver = bringup::driver;
using driver::Block;
using driver::BlockState;
using driver::DeviceMemory;
using driver::DeviceMemoryStats;

constexpr size_t kMiB = size_t{1} << 20;

int64_t id(bringup_stream stream) { return reinterpret_cast<int64_t>(stream); }

driver::HostWaits plain_waits(const bringup_driver& table) {
  return {[&table](int32_t device) { return table.device_synchronize(device); },
          [](const std::function<void()>& wait) { wait(); }};
}

struct Heap {
  DeviceMemory memory;

  explicit Heap(const bringup_driver& table = sim_test::driver(), size_t pending = 64 * kMiB)
      : memory(table, 0, 64, pending, plain_waits(table)) {}
  ~Heap() { memory.empty(); }

  Block* take(size_t bytes, bringup_stream stream = nullptr) {
    Block* block = nullptr;
    CHECK_EQ(memory.allocate(bytes, id(stream), &block), BRINGUP_OK);
    return block;
  }
};

int64_t reserved(const DeviceMemory& memory) { return memory.stats().reserved_bytes[0].current; }

// The simulator, with some functions that answer something else.
struct Faulty {
  bringup_driver table = sim_test::driver();
  inline static int refusals = 0;           // of mem_alloc, then it works
  inline static bool events_end = true;     // else event_query says "not yet"
  inline static bool streams_end = true;    // else stream_query does
  inline static bool events_record = true;  // else event_record fails
  inline static int free_failures = 0;
  inline static std::vector<size_t> asked;

  Faulty() {
    refusals = free_failures = 0;
    events_end = streams_end = events_record = true;
    asked.clear();
    table.mem_alloc = [](int32_t device, size_t bytes, void** address) -> int32_t {
      asked.push_back(bytes);
      if (refusals > 0) return --refusals, BRINGUP_OUT_OF_MEMORY;
      return sim_test::driver().mem_alloc(device, bytes, address);
    };
    table.mem_free = [](int32_t device, void* address) -> int32_t {
      if (free_failures > 0) return --free_failures, BRINGUP_ERROR;
      return sim_test::driver().mem_free(device, address);
    };
    table.event_query = [](bringup_event event) -> int32_t {
      return events_end ? sim_test::driver().event_query(event) : BRINGUP_NOT_READY;
    };
    table.stream_query = [](int32_t device, bringup_stream stream) -> int32_t {
      return streams_end ? sim_test::driver().stream_query(device, stream) : BRINGUP_NOT_READY;
    };
    table.event_record = [](bringup_event event, int32_t device, bringup_stream stream) {
      if (!events_record) return static_cast<int32_t>(BRINGUP_ERROR);
      return sim_test::driver().event_record(event, device, stream);
    };
  }
};

}  // namespace

TEST(a_freed_block_is_the_next_one_of_its_stream) {
  Heap heap;
  Block* first = heap.take(3'000);
  const std::byte* address = first->address;
  heap.memory.free(first);
  const sim_test::Stream other;
  Block* elsewhere = heap.take(3'000, other.get());
  CHECK(elsewhere->address != address);
  Block* again = heap.take(3'000);
  CHECK(again->address == address);
  heap.memory.free(elsewhere);
  heap.memory.free(again);
}

TEST(a_block_that_another_stream_uses_waits_for_it) {
  Heap heap;
  const sim_test::Stream side;
  sim_test::Gate gate;
  Block* block = heap.take(kMiB);
  const std::byte* address = block->address;
  sim_test::driver().host_func(0, side.get(), &sim_test::Gate::wait, &gate);
  heap.memory.record(block, {0, id(side.get())});
  heap.memory.free(block);
  CHECK_EQ(heap.memory.pending_bytes(), kMiB);
  Block* meanwhile = heap.take(kMiB);
  CHECK(meanwhile->address != address);
  gate.release();
  sim_test::driver().stream_synchronize(0, side.get());
  Block* after = heap.take(kMiB);
  CHECK(after->address == address);
  CHECK_EQ(heap.memory.pending_bytes(), 0);
  heap.memory.free(meanwhile);
  heap.memory.free(after);
}

TEST(the_default_stream_of_another_device_is_another_stream) {
  Heap heap;
  sim_test::Gate gate;
  Block* block = heap.take(kMiB);
  sim_test::driver().host_func(1, nullptr, &sim_test::Gate::wait, &gate);
  heap.memory.record(block, {1, 0});
  heap.memory.free(block);
  CHECK_EQ(heap.memory.pending_bytes(), kMiB);
  CHECK_EQ(heap.memory.empty(), BRINGUP_OK);  // a wait for device 0 says nothing of device 1
  CHECK_EQ(heap.memory.pending_bytes(), kMiB);
  gate.release();
  sim_test::driver().device_synchronize(1);
  heap.memory.free(heap.take(1));
  CHECK_EQ(heap.memory.pending_bytes(), 0);
}

TEST(a_hundred_mebibytes_do_not_stay_for_requests_of_one) {
  Heap heap;
  heap.memory.free(heap.take(100 * kMiB));
  std::vector<Block*> blocks;
  for (size_t i = 0; i < 50; ++i) blocks.push_back(heap.take(kMiB + i));
  int64_t live = 0;
  for (size_t i = 0; i < 50; ++i) live += static_cast<int64_t>(kMiB + i);
  CHECK(reserved(heap.memory) * 4 <= live * 5);
  for (Block* block : blocks) heap.memory.free(block);
}

TEST(while_the_stream_works_the_large_segment_is_split_instead) {
  Heap heap;
  const sim_test::Stream stream;
  heap.memory.free(heap.take(100 * kMiB, stream.get()));
  sim_test::Gate gate;
  sim_test::driver().host_func(0, stream.get(), &sim_test::Gate::wait, &gate);
  Block* part = heap.take(2 * kMiB, stream.get());
  CHECK_EQ(reserved(heap.memory), 100 * kMiB);
  gate.release();
  sim_test::driver().stream_synchronize(0, stream.get());
  heap.memory.free(part);
}

TEST(a_refused_allocation_is_tried_again_with_less_in_the_cache) {
  Faulty faulty;
  Heap heap(faulty.table);
  heap.memory.free(heap.take(30 * kMiB));
  Faulty::refusals = 1;
  Block* block = heap.take(50 * kMiB);
  CHECK_EQ(reserved(heap.memory), 50 * kMiB);
  CHECK_EQ(heap.memory.stats().retries, 1);
  CHECK_EQ(heap.memory.stats().device_waits, 0);
  CHECK_EQ(heap.memory.stats().failures, 0);
  heap.memory.free(block);
}

TEST(memory_that_waits_for_other_streams_is_waited_for_before_giving_up) {
  Faulty faulty;
  Heap heap(faulty.table);
  const sim_test::Stream side;
  sim_test::Gate gate;
  Block* block = heap.take(30 * kMiB);
  sim_test::driver().host_func(0, side.get(), &sim_test::Gate::wait, &gate);
  heap.memory.record(block, {0, id(side.get())});
  heap.memory.free(block);
  Faulty::refusals = 2;
  std::jthread opens([&] {
    gate.reached.wait(false);
    gate.release();
  });
  Block* next = heap.take(50 * kMiB);
  CHECK_EQ(reserved(heap.memory), 50 * kMiB);
  CHECK_EQ(heap.memory.pending_bytes(), 0);
  heap.memory.free(next);
}

TEST(at_last_no_more_is_asked_for_than_is_needed) {
  Faulty faulty;
  Heap heap(faulty.table);
  Faulty::refusals = 3;
  Block* block = heap.take(5 * kMiB);
  CHECK_EQ(Faulty::asked.back(), 5 * kMiB);
  CHECK_EQ(reserved(heap.memory), 5 * kMiB);
  heap.memory.free(block);
}

TEST(running_out_is_counted_and_leaves_everything_usable) {
  Faulty faulty;
  Heap heap(faulty.table);
  Block* live = heap.take(kMiB);
  Faulty::refusals = 4;
  Block* none = nullptr;
  CHECK_EQ(heap.memory.allocate(50 * kMiB, 0, &none), BRINGUP_OUT_OF_MEMORY);
  CHECK_EQ(heap.memory.allocate(~size_t{0}, 0, &none), BRINGUP_OUT_OF_MEMORY);
  CHECK_EQ(heap.memory.stats().failures, 2);
  CHECK_EQ(heap.memory.stats().allocated_bytes[0].current, kMiB);
  heap.memory.free(heap.take(50 * kMiB));
  heap.memory.free(live);
}

TEST(memory_that_the_driver_does_not_take_back_is_kept_and_freed_later) {
  Faulty faulty;
  Heap heap(faulty.table);
  heap.memory.free(heap.take(30 * kMiB));
  heap.memory.free(heap.take(60 * kMiB));
  Faulty::free_failures = 1;
  CHECK_EQ(heap.memory.empty(), BRINGUP_ERROR);
  CHECK_EQ(heap.memory.stats().segment[0].current, 2);
  CHECK_EQ(reserved(heap.memory), 90 * kMiB);
  CHECK_EQ(heap.memory.stats().driver_frees, 0);
  CHECK_EQ(heap.memory.empty(), BRINGUP_OK);
  CHECK_EQ(reserved(heap.memory), 0);
  CHECK_EQ(heap.memory.stats().driver_frees, 2);
}

TEST(memory_that_the_driver_does_not_take_back_is_used_again) {
  Faulty faulty;
  Heap heap(faulty.table);
  Block* first = heap.take(30 * kMiB);
  const std::byte* address = first->address;
  heap.memory.free(first);
  Faulty::free_failures = 1;
  CHECK_EQ(heap.memory.empty(), BRINGUP_ERROR);
  Block* again = heap.take(30 * kMiB);
  CHECK(again->address == address);
  heap.memory.free(again);
  CHECK_EQ(heap.memory.stats().inactive_split[0].current, 0);
}

TEST(events_that_never_end_hold_no_more_than_the_limit) {
  Faulty faulty;
  Heap heap(faulty.table, 8 * kMiB);
  const sim_test::Stream side;
  driver::set_wait_limit(0.05, false);
  Faulty::events_end = Faulty::streams_end = false;
  int32_t status = BRINGUP_OK;
  int taken = 0;
  for (; taken < 100 && status == BRINGUP_OK; ++taken) {
    Block* block = nullptr;
    status = heap.memory.allocate(kMiB, 0, &block);
    if (status != BRINGUP_OK) break;
    heap.memory.record(block, {0, id(side.get())});
    heap.memory.free(block);
  }
  CHECK_EQ(status, BRINGUP_TIMEOUT);
  CHECK_EQ(taken, 9);
  CHECK(heap.memory.pending_bytes() <= 9 * kMiB);
  Faulty::events_end = true;
  heap.memory.free(heap.take(kMiB));
  CHECK_EQ(heap.memory.pending_bytes(), 0);
  driver::set_wait_limit(0, false);
}

TEST(a_lost_event_holds_memory_only_until_its_stream_is_idle) {
  Faulty faulty;
  Heap heap(faulty.table, 2 * kMiB);
  const sim_test::Stream side;
  Faulty::events_end = false;
  for (int i = 0; i < 10; ++i) {
    Block* block = heap.take(kMiB);
    heap.memory.record(block, {0, id(side.get())});
    heap.memory.free(block);
  }
  CHECK(heap.memory.pending_bytes() <= 3 * kMiB);
}

TEST(without_an_event_memory_comes_back_when_the_device_was_waited_for) {
  Faulty faulty;
  Heap heap(faulty.table);
  const sim_test::Stream side;
  Block* block = heap.take(kMiB);
  heap.memory.record(block, {0, id(side.get())});
  Faulty::events_record = false;
  heap.memory.free(block);
  heap.memory.free(heap.take(1));
  CHECK_EQ(heap.memory.pending_bytes(), kMiB);
  CHECK_EQ(heap.memory.empty(), BRINGUP_OK);
  CHECK_EQ(heap.memory.pending_bytes(), 0);
  CHECK_EQ(reserved(heap.memory), 0);
}

TEST(statistics_are_the_sums_of_the_snapshot) {
  Heap heap;
  std::mt19937 random(7);
  const sim_test::Stream side;
  std::vector<Block*> live;
  for (int step = 0; step < 500; ++step) {
    if (live.size() < 5 || random() % 2 == 0) {
      live.push_back(heap.take(1 + random() % (size_t{1} << (random() % 23)),
                               random() % 2 == 0 ? side.get() : nullptr));
    } else {
      const size_t i = random() % live.size();
      if (random() % 3 == 0) heap.memory.record(live[i], {0, id(side.get())});
      heap.memory.free(live[i]);
      live.erase(live.begin() + static_cast<long>(i));
    }
    int64_t segments = 0, held = 0, active = 0, tensors = 0, inactive = 0;
    for (const driver::SegmentSnapshot& segment : heap.memory.snapshot()) {
      ++segments;
      held += static_cast<int64_t>(segment.bytes);
      for (const driver::BlockSnapshot& block : segment.blocks) {
        const auto bytes = static_cast<int64_t>(block.bytes);
        if (block.state == BlockState::kLive) tensors += bytes;
        if (block.state != BlockState::kFree) active += bytes;
        if (block.state == BlockState::kFree && segment.blocks.size() > 1) inactive += bytes;
      }
    }
    const DeviceMemoryStats stats = heap.memory.stats();
    CHECK_EQ(stats.segment[0].current, segments);
    CHECK_EQ(stats.reserved_bytes[0].current, held);
    CHECK_EQ(stats.active_bytes[0].current, active);
    CHECK_EQ(stats.allocated_bytes[0].current, tensors);
    CHECK_EQ(stats.inactive_split_bytes[0].current, inactive);
    CHECK_EQ(stats.allocation[0].current, live.size());
    CHECK_EQ(stats.reserved_bytes[0].current,
             stats.reserved_bytes[1].current + stats.reserved_bytes[2].current);
  }
  for (Block* block : live) heap.memory.free(block);
}

TEST(two_threads_never_get_one_block) {
  Heap heap(sim_test::driver(), 4 * kMiB);
  const sim_test::Stream side;
  // Each thread marks what it holds in device memory that only it may write.
  const auto work = [&](unsigned seed) {
    std::mt19937 random(seed);
    std::vector<std::pair<Block*, std::unique_ptr<int64_t>>> live;
    for (int step = 0; step < 2'000; ++step) {
      if (live.size() < 20) {
        Block* block = heap.take(8 + random() % (1 << (random() % 21)));
        void* view = nullptr;
        sim_test::driver().host_view(0, block->address, &view);
        *static_cast<int64_t*>(view) = static_cast<int64_t>(seed) << 32 | step;
        live.emplace_back(block, std::make_unique<int64_t>(int64_t{seed} << 32 | step));
        continue;
      }
      const size_t i = random() % live.size();
      void* view = nullptr;
      sim_test::driver().host_view(0, live[i].first->address, &view);
      CHECK_EQ(*static_cast<int64_t*>(view), *live[i].second);
      if (random() % 4 == 0) heap.memory.record(live[i].first, {0, id(side.get())});
      heap.memory.free(live[i].first);
      live.erase(live.begin() + static_cast<long>(i));
      if (step % 500 == 499) heap.memory.empty();
    }
    for (const auto& [block, value] : live) heap.memory.free(block);
  };
  std::jthread first(work, 1);
  std::jthread second(work, 2);
  first.join();
  second.join();
  CHECK_EQ(heap.memory.stats().allocation[0].current, 0);
  CHECK_EQ(heap.memory.empty(), BRINGUP_OK);
  CHECK_EQ(reserved(heap.memory), 0);
}

TEST(no_segment_is_larger_than_an_allocation_of_the_driver_can_be) {
  const Faulty faulty;
  DeviceMemory memory(faulty.table, 0, 64, 64 * kMiB, plain_waits(faulty.table), 3 * kMiB);
  Block* block = nullptr;
  CHECK_EQ(memory.allocate(2 * kMiB, 0, &block), BRINGUP_OK);
  CHECK_EQ(memory.allocate(3 * kMiB, 0, &block), BRINGUP_OK);
  CHECK((Faulty::asked == std::vector<size_t>{3 * kMiB, 3 * kMiB}));
  CHECK_EQ(memory.allocate(3 * kMiB + 1, 0, &block), BRINGUP_OUT_OF_MEMORY);
  CHECK_EQ(Faulty::asked.size(), 2U);
  CHECK_EQ(memory.stats().retries, 0);
}
