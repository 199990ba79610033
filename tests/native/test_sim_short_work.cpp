// Short copies, fills, launches and events of a stream of the simulator that has nothing else to
// do: the caller performs them, with the order and the failures that they have on the stream's
// worker.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "check.h"
#include "sim_driver.h"

namespace {

using namespace sim_test;

constexpr size_t kShort = size_t{4} << 20;

struct Values {
  explicit Values(size_t bytes) : memory(bytes), bytes(bytes) {}
  void fill(uint8_t value, bringup_stream stream) const {
    CHECK_EQ(driver().fill_async(0, memory.get(), value, bytes, stream), BRINGUP_OK);
  }
  // What the host sees there, whatever streams have to do.
  uint8_t last() const {
    void* view = nullptr;
    CHECK_EQ(driver().host_view(0, memory.get(), &view), BRINGUP_OK);
    return static_cast<uint8_t*>(view)[bytes - 1];
  }
  Memory memory;
  size_t bytes;
};

TEST(short_work_of_an_idle_stream_is_over_when_the_call_returns) {
  const Stream stream;
  const Event event;
  const Values values(kShort);
  for (uint8_t round = 1; round < 100; ++round) {
    values.fill(round, stream.get());
    CHECK_EQ(values.last(), round);
    uint8_t copy = 0;
    CHECK_EQ(driver().copy_async(BRINGUP_DEVICE_TO_HOST, 0, &copy, 0, values.memory.get(), 1,
                                 stream.get()),
             BRINGUP_OK);
    CHECK_EQ(copy, round);
    CHECK_EQ(driver().event_record(event.get(), 0, stream.get()), BRINGUP_OK);
    CHECK_EQ(driver().event_query(event.get()), BRINGUP_OK);
    CHECK_EQ(driver().stream_query(0, stream.get()), BRINGUP_OK);
  }
}

TEST(short_rows_and_patterns_of_an_idle_stream_are_over_too) {
  const Stream stream;
  const Values values(8);
  const uint32_t pattern = 0x07070707;
  driver().fill_wide_async(0, values.memory.get(), &pattern, 4, 2, stream.get());
  CHECK_EQ(values.last(), 7);
  uint8_t rows[4] = {};
  driver().copy_2d_async(BRINGUP_DEVICE_TO_HOST, 0, rows, 3, 0, values.memory.get(), 4, 1, 2,
                         stream.get());
  CHECK_EQ(rows[0], 7);
  CHECK_EQ(rows[1], 0);
  CHECK_EQ(rows[3], 7);
}

TEST(short_work_waits_for_what_its_stream_was_given_before) {
  const Stream stream;
  const Event event;
  const Values values(64);
  values.fill(1, stream.get());
  Gate gate;
  driver().host_func(0, stream.get(), Gate::wait, &gate);
  values.fill(2, stream.get());
  driver().event_record(event.get(), 0, stream.get());
  gate.reached.wait(false);  // nothing is queued before it any more, but it runs
  values.fill(3, stream.get());
  CHECK_EQ(values.last(), 1);
  CHECK_EQ(driver().event_query(event.get()), BRINGUP_NOT_READY);
  gate.release();
  CHECK_EQ(driver().stream_synchronize(0, stream.get()), BRINGUP_OK);
  CHECK_EQ(values.last(), 3);
}

TEST(an_event_at_once_still_carries_the_failure_before_it) {
  const Stream failing;
  const Stream waiting;
  const Event event;
  const Memory memory(sizeof(int64_t));
  Launch bad(fail, memory.get(), 1, 7);
  driver().launch(0, failing.get(), &bad.launch);
  while (driver().stream_query(0, failing.get()) == BRINGUP_NOT_READY) std::this_thread::yield();
  driver().event_record(event.get(), 0, failing.get());
  CHECK_EQ(driver().event_query(event.get()), BRINGUP_OK);
  driver().event_wait(event.get(), 0, waiting.get());
  CHECK_EQ(driver().stream_synchronize(0, waiting.get()), BRINGUP_KERNEL_FAILED);
  driver().stream_synchronize(0, failing.get());
}

std::atomic<bool> g_runs{false};
std::atomic<bool> g_may_end{false};
int32_t busy(void**, int32_t, const bringup_ctx*) {
  g_runs = true;
  g_runs.notify_all();
  g_may_end.wait(false);
  return 0;
}

TEST(short_work_stands_back_for_a_more_urgent_stream) {
  bringup_stream urgent = nullptr;
  REQUIRE(driver().stream_create(0, -1, &urgent) == BRINGUP_OK);
  const Stream normal;
  const Values values(64);
  values.fill(1, normal.get());
  Launch occupying(&busy, values.memory.get(), 1, 0);
  driver().launch(0, urgent, &occupying.launch);
  g_runs.wait(false);
  values.fill(2, normal.get());
  CHECK_EQ(values.last(), 1);
  g_may_end = true;
  g_may_end.notify_all();
  CHECK_EQ(driver().stream_synchronize(0, normal.get()), BRINGUP_OK);
  CHECK_EQ(values.last(), 2);
  driver().stream_destroy(urgent);
}

// The worker and callers take turns at one stream; ThreadSanitizer sees it where they do not.
TEST(callers_and_the_worker_never_run_work_of_one_stream_at_once) {
  const Stream stream;
  const Memory memory(sizeof(int64_t));
  const Memory copy(sizeof(int64_t));
  driver().fill_async(0, memory.get(), 0, sizeof(int64_t), stream.get());
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      std::vector<std::unique_ptr<Launch>> launches;
      for (int i = 0; i < 200; ++i) {
        launches.push_back(std::make_unique<Launch>(add_number, memory.get(), 1, 1));
        driver().launch(0, stream.get(), &launches.back()->launch);
        if (i % 3 == 0) driver().stream_synchronize(0, stream.get());
        driver().copy_async(BRINGUP_DEVICE_TO_DEVICE, 0, copy.get(), 0, memory.get(),
                            sizeof(int64_t), stream.get());
        if (i % 5 == 0) driver().stream_synchronize(0, stream.get());
      }
      driver().stream_synchronize(0, stream.get());
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK_EQ(read(memory, 1, stream.get()), std::vector<int64_t>{800});
  CHECK_EQ(read(copy, 1, stream.get()), std::vector<int64_t>{800});
}

// --- launches

// A launch that says it waits for nothing.
struct Short : Launch {
  Short(bringup_kernel_fn fn, void* data, int64_t size, int64_t value, int64_t grid = 1)
      : Launch(fn, data, size, value, grid) {
    launch.flags = BRINGUP_LAUNCH_WAITS_FOR_NOTHING;
  }
};

std::thread::id g_thread;
int32_t note_thread(void**, int32_t, const bringup_ctx*) {
  g_thread = std::this_thread::get_id();
  return 0;
}

// The thread that a launch given to an idle stream ran in.
bool runs_in_the_call(const bringup_launch& launch) {
  const Stream stream;
  CHECK_EQ(driver().launch(0, stream.get(), &launch), BRINGUP_OK);
  CHECK_EQ(driver().stream_synchronize(0, stream.get()), BRINGUP_OK);
  return g_thread == std::this_thread::get_id();
}

TEST(a_short_launch_of_an_idle_stream_is_over_and_released_when_the_call_returns) {
  const Stream stream;
  const Memory memory(sizeof(int64_t));
  driver().fill_async(0, memory.get(), 0, sizeof(int64_t), stream.get());
  Short launch(add_number, memory.get(), 1, 5);
  CHECK_EQ(driver().launch(0, stream.get(), &launch.launch), BRINGUP_OK);
  CHECK_EQ(launch.released.load(), 1);
  CHECK_EQ(driver().stream_query(0, stream.get()), BRINGUP_OK);
  CHECK_EQ(read(memory, 1, stream.get()), std::vector<int64_t>{5});
}

TEST(a_launch_is_short_by_the_bytes_of_its_tensors) {
  constexpr int64_t kMost = (int64_t{16} << 10) / static_cast<int64_t>(sizeof(int64_t));
  const Memory memory((kMost + 1) * sizeof(int64_t));
  CHECK(runs_in_the_call(Short(note_thread, memory.get(), kMost, 0).launch));
  CHECK(!runs_in_the_call(Short(note_thread, memory.get(), kMost + 1, 0).launch));
  CHECK(runs_in_the_call(Short(note_thread, memory.get(), 0, 0).launch));
  Short large(note_thread, memory.get(), 1, 0);
  int64_t sizes[3] = {INT64_MAX, INT64_MAX, 2};
  int64_t strides[3] = {0, 0, 0};
  large.tensor.ndim = 3;
  large.tensor.shape = sizes;
  large.tensor.strides = strides;
  CHECK(!runs_in_the_call(large.launch));
  sizes[2] = 0;
  CHECK(runs_in_the_call(large.launch));
}

TEST(tensors_of_a_list_count_for_how_short_a_launch_is) {
  const Memory memory(sizeof(int64_t));
  Short launch(note_thread, memory.get(), int64_t{1} << 10, 0);
  DLTensor* items[3] = {&launch.tensor, &launch.tensor, &launch.tensor};
  bringup_list list{items, 2};
  launch.args[0] = &list;
  launch.kinds[0] = BRINGUP_ARG_TENSOR_LIST;
  CHECK(runs_in_the_call(launch.launch));
  list.size = 3;
  CHECK(!runs_in_the_call(launch.launch));
}

TEST(a_launch_that_promises_nothing_runs_on_the_worker) {
  const Memory memory(sizeof(int64_t));
  Launch plain(note_thread, memory.get(), 1, 0);
  CHECK(!runs_in_the_call(plain.launch));
  // Nor is a flag read that lies behind what the caller knows of.
  plain.launch.flags = BRINGUP_LAUNCH_WAITS_FOR_NOTHING;
  plain.launch.struct_size = offsetof(bringup_launch, flags);
  CHECK(!runs_in_the_call(plain.launch));
  CHECK_EQ(plain.released.load(), 2);
}

TEST(a_short_launch_waits_for_what_its_stream_was_given_before) {
  const Stream stream;
  const Values values(sizeof(int64_t));
  values.fill(0, stream.get());
  Gate gate;
  driver().host_func(0, stream.get(), Gate::wait, &gate);
  gate.reached.wait(false);
  Launch queued(add_number, values.memory.get(), 1, int64_t{2} << 56);
  Short launch(add_number, values.memory.get(), 1, int64_t{3} << 56);
  driver().launch(0, stream.get(), &queued.launch);
  driver().launch(0, stream.get(), &launch.launch);
  CHECK_EQ(values.last(), 0);
  CHECK_EQ(launch.released.load(), 0);
  gate.release();
  CHECK_EQ(driver().stream_synchronize(0, stream.get()), BRINGUP_OK);
  CHECK_EQ(values.last(), 5);
}

TEST(a_short_launch_that_fails_is_reported_by_the_next_wait) {
  const Stream stream;
  const Memory memory(sizeof(int64_t));
  Short bad(fail, memory.get(), 1, 7);
  CHECK_EQ(driver().launch(0, stream.get(), &bad.launch), BRINGUP_OK);
  CHECK_EQ(bad.released.load(), 1);
  CHECK_EQ(driver().stream_synchronize(0, stream.get()), BRINGUP_KERNEL_FAILED);
  CHECK_EQ(driver().stream_synchronize(0, stream.get()), BRINGUP_OK);
}

// What the kernel below is given to do, and what it was answered.
bringup_stream g_stream = nullptr;
Launch* g_next = nullptr;
int32_t g_waited = BRINGUP_OK;
int32_t gives_work(void**, int32_t, const bringup_ctx*) {
  driver().launch(0, g_stream, &g_next->launch);
  g_waited = driver().stream_synchronize(0, g_stream);
  return 0;
}

TEST(a_short_launch_may_give_its_stream_work_and_may_not_wait_for_it) {
  const Stream stream;
  const Memory memory(sizeof(int64_t));
  driver().fill_async(0, memory.get(), 0, sizeof(int64_t), stream.get());
  Short next(add_number, memory.get(), 1, 5);
  g_stream = stream.get();
  g_next = &next;
  Short launch(gives_work, memory.get(), 1, 0);
  CHECK_EQ(driver().launch(0, stream.get(), &launch.launch), BRINGUP_OK);
  CHECK_EQ(driver().stream_synchronize(0, stream.get()), BRINGUP_OK);  // the caller may wait again
  CHECK_EQ(g_waited, BRINGUP_INVALID);
  CHECK_EQ(read(memory, 1, stream.get()), std::vector<int64_t>{5});
}

TEST(work_given_while_a_short_launch_runs_comes_after_it) {
  const Stream stream;
  const Values values(sizeof(int64_t));
  values.fill(0, stream.get());
  g_runs = false;
  g_may_end = false;
  Short launch(&busy, values.memory.get(), 1, 0);  // so long that another thread gives work
  std::thread caller([&] { driver().launch(0, stream.get(), &launch.launch); });
  g_runs.wait(false);
  values.fill(4, stream.get());
  CHECK_EQ(values.last(), 0);
  CHECK_EQ(driver().stream_query(0, stream.get()), BRINGUP_NOT_READY);
  g_may_end = true;
  g_may_end.notify_all();
  CHECK_EQ(driver().stream_synchronize(0, stream.get()), BRINGUP_OK);
  CHECK_EQ(values.last(), 4);
  caller.join();
}

TEST(a_stream_that_is_destroyed_waits_for_a_short_launch) {
  bringup_stream stream = nullptr;
  REQUIRE(driver().stream_create(0, 0, &stream) == BRINGUP_OK);
  const Memory memory(sizeof(int64_t));
  g_runs = false;
  g_may_end = false;
  Short launch(&busy, memory.get(), 1, 0);
  std::thread caller([&] { driver().launch(0, stream, &launch.launch); });
  g_runs.wait(false);
  std::atomic<bool> asked{false};
  std::thread opener([&] {
    asked.wait(false);
    g_may_end = true;
    g_may_end.notify_all();
  });
  asked = true;
  asked.notify_all();
  CHECK_EQ(driver().stream_destroy(stream), BRINGUP_OK);
  CHECK_EQ(launch.released.load(), 1);
  caller.join();
  opener.join();
}

TEST(threads_that_launch_in_the_call_never_run_work_of_one_stream_at_once) {
  const Stream stream;
  const Memory memory(sizeof(int64_t));
  driver().fill_async(0, memory.get(), 0, sizeof(int64_t), stream.get());
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      std::vector<std::unique_ptr<Launch>> launches;
      for (int i = 0; i < 300; ++i) {
        if ((i + t) % 4 == 0) {
          launches.push_back(std::make_unique<Launch>(add_number, memory.get(), 1, 1));
        } else {
          launches.push_back(std::make_unique<Short>(add_number, memory.get(), 1, 1));
        }
        driver().launch(0, stream.get(), &launches.back()->launch);
        if (i % 7 == 0) driver().stream_synchronize(0, stream.get());
      }
      driver().stream_synchronize(0, stream.get());
      for (const auto& launch : launches) CHECK_EQ(launch->released.load(), 1);
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK_EQ(read(memory, 1, stream.get()), std::vector<int64_t>{1200});
}

TEST(longer_work_reaches_its_memory_through_the_worker) {
  const Stream stream;
  const Values values(kShort + 1);
  values.fill(9, stream.get());
  CHECK_EQ(driver().stream_synchronize(0, stream.get()), BRINGUP_OK);
  CHECK_EQ(values.last(), 9);
}

}  // namespace
