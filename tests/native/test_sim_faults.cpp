// The simulator breaks on demand: which call fails, how, what is counted, and that everything works
// again afterwards.
#include <chrono>
#include <functional>
#include <memory>
#include <thread>

#include "check.h"
#include "sim/faults_control.h"
#include "sim_driver.h"

using namespace sim_test;

namespace {

template <class Fn>
Fn exported(const char* name) {
  return reinterpret_cast<Fn>(dlsym(dlopen(SIM_DRIVER, RTLD_NOW | RTLD_LOCAL), name));
}

std::string refusal(const char* settings) {
  driver();
  char problem[1024] = "";
  const auto add = exported<decltype(&bringup_sim_add_faults)>("bringup_sim_add_faults");
  const uint64_t number = add(settings, problem, sizeof problem);
  if (number != 0) throw std::runtime_error(std::string("not refused: ") + settings);
  return problem;
}

class Faults {
 public:
  explicit Faults(const std::string& settings) {
    driver();
    char problem[1024] = "";
    const auto add = exported<decltype(&bringup_sim_add_faults)>("bringup_sim_add_faults");
    number_ = add(settings.c_str(), problem, sizeof problem);
    if (number_ == 0) throw std::runtime_error(problem);
  }
  ~Faults() {
    exported<decltype(&bringup_sim_remove_faults)>("bringup_sim_remove_faults")(number_);
  }
  Faults(const Faults&) = delete;
  Faults& operator=(const Faults&) = delete;

  std::string counts() const {
    const auto read = exported<decltype(&bringup_sim_fault_counts)>("bringup_sim_fault_counts");
    std::string text(read(number_, nullptr, 0), '\0');
    read(number_, text.data(), text.size());
    text.pop_back();
    return text;
  }

 private:
  uint64_t number_ = 0;
};

int32_t allocate(size_t bytes = 64) {
  void* address = nullptr;
  const int32_t status = driver().mem_alloc(0, bytes, &address);
  if (status == BRINGUP_OK) driver().mem_free(0, address);
  return status;
}

TEST(settings_that_cannot_be_read_are_refused_by_name) {
  CHECK(refusal("banana=1").find("'banana=1': expected KEY=VALUE with one of device, oom_after") ==
        0);
  CHECK_EQ(refusal("oom_after=x"), "'oom_after=x': expected a whole number from 0");
  CHECK_EQ(refusal("oom_after=-1"), "'oom_after=-1': expected a whole number from 0");
  CHECK_EQ(refusal("fail_every=0,fail=launch"), "'fail_every=0': expected a whole number from 1");
  CHECK_EQ(refusal("seed=1,seed=2"), "'seed=2': it is given twice");
  CHECK_EQ(refusal("seed=1"), "seed means nothing without reorder=random");
  CHECK_EQ(refusal("fail_after=1"), "fail_after means nothing without fail=FUNCTION");
  CHECK(refusal("fail=launch|lunch").find("'lunch' is no function of driver.h that can fail") !=
        std::string::npos);
  CHECK(refusal("fail=mem_alloc,fail_async=1").find("mem_alloc does no work in a stream") !=
        std::string::npos);
  CHECK(refusal("memory=2T").find("expected a number of bytes from 1 to 16384G") !=
        std::string::npos);
  CHECK_EQ(refusal("reorder=banana"), "'reorder=banana': expected one of eager, random, late");
  CHECK(refusal("hidden_dtypes=float64").find("set BRINGUP_SIM_FAULTS before") !=
        std::string::npos);
  CHECK(refusal("fail_status=banana,fail=launch").find("invalid, out_of_memory") !=
        std::string::npos);
}

TEST(memory_runs_out_after_so_many_allocations) {
  {
    const Faults faults("oom_after=2");
    CHECK_EQ(allocate(), BRINGUP_OK);
    CHECK_EQ(allocate(), BRINGUP_OK);
    CHECK_EQ(allocate(), BRINGUP_OUT_OF_MEMORY);
    CHECK_EQ(last_error(), "device 0 has no range of 64 bytes free (injected: out of memory)");
    CHECK_EQ(allocate(), BRINGUP_OUT_OF_MEMORY);
    CHECK_EQ(faults.counts(), "mem_free 2 0\nmem_alloc 4 2\n");
  }
  CHECK_EQ(allocate(), BRINGUP_OK);
}

TEST(memory_runs_out_after_so_many_bytes) {
  const Faults faults("oom_after_bytes=1K");
  CHECK_EQ(allocate(1000), BRINGUP_OK);
  CHECK_EQ(allocate(25), BRINGUP_OUT_OF_MEMORY);
  CHECK_EQ(allocate(24), BRINGUP_OK);
}

TEST(a_device_has_as_much_memory_as_is_said) {
  const Memory held(1 << 20);
  const Faults faults("memory=2M,device=0");
  size_t free_bytes = 0;
  size_t total = 0;
  CHECK_EQ(driver().mem_info(0, &free_bytes, &total), BRINGUP_OK);
  CHECK_EQ(total, size_t{2} << 20);
  CHECK_EQ(free_bytes, size_t{1} << 20);
  CHECK_EQ(allocate(1 << 20), BRINGUP_OK);
  CHECK_EQ(allocate((1 << 20) + 1), BRINGUP_OUT_OF_MEMORY);
  bringup_device_props props{};
  props.struct_size = sizeof props;
  CHECK_EQ(driver().device_props(0, &props), BRINGUP_OK);
  CHECK_EQ(props.total_memory, uint64_t{2} << 20);
  CHECK_EQ(driver().device_props(1, &props), BRINGUP_OK);
  CHECK(props.total_memory > uint64_t{2} << 20);
}

TEST(the_call_of_that_number_is_refused_and_its_launch_is_released) {
  const Memory memory(sizeof(int64_t));
  driver().fill_async(0, memory.get(), 0, sizeof(int64_t), nullptr);
  Launch first(add_number, memory.get(), 1, 1);
  Launch second(add_number, memory.get(), 1, 10);
  Launch third(add_number, memory.get(), 1, 100);
  const Faults faults("fail=launch,fail_after=1,fail_status=invalid");
  CHECK_EQ(driver().launch(0, nullptr, &first.launch), BRINGUP_OK);
  CHECK_EQ(driver().launch(0, nullptr, &second.launch), BRINGUP_INVALID);
  CHECK_EQ(last_error(), "injected failure of launch of operator 'test::kernel'");
  CHECK_EQ(second.released.load(), 1);
  CHECK_EQ(driver().launch(0, nullptr, &third.launch), BRINGUP_OK);
  CHECK_EQ(read(memory, 1), std::vector<int64_t>{101});
  CHECK_EQ(third.released.load(), 1);
}

TEST(every_call_of_that_multiple_fails) {
  const Faults faults("fail=mem_alloc,fail_every=3");
  std::vector<int32_t> statuses;
  for (int i = 0; i < 6; ++i) statuses.push_back(allocate());
  const int32_t no = BRINGUP_ERROR;
  CHECK_EQ(statuses, (std::vector<int32_t>{0, 0, no, 0, 0, no}));
}

TEST(only_so_many_calls_fail) {
  const Faults faults("fail_count=2,fail=mem_alloc,fail_every=1");
  std::vector<int32_t> statuses;
  for (int i = 0; i < 4; ++i) statuses.push_back(allocate());
  CHECK_EQ(statuses, (std::vector<int32_t>{BRINGUP_ERROR, BRINGUP_ERROR, 0, 0}));
}

TEST(only_launches_of_that_operator_fail) {
  const Memory memory(sizeof(int64_t));
  driver().fill_async(0, memory.get(), 0, sizeof(int64_t), nullptr);
  Launch other(add_number, memory.get(), 1, 1);
  other.launch.name = "test::other";
  Launch kernel(add_number, memory.get(), 1, 10);
  const Faults faults("fail=launch,operator=test::kernel");
  CHECK_EQ(driver().launch(0, nullptr, &other.launch), BRINGUP_OK);
  CHECK_EQ(driver().launch(0, nullptr, &kernel.launch), BRINGUP_ERROR);
  CHECK_EQ(read(memory, 1), std::vector<int64_t>{1});
}

TEST(a_launch_fails_in_its_stream_and_what_follows_runs) {
  const Stream stream;
  const Memory memory(sizeof(int64_t));
  driver().fill_async(0, memory.get(), 0, sizeof(int64_t), stream.get());
  Launch fails(add_number, memory.get(), 1, 1);
  Launch follows(add_number, memory.get(), 1, 10);
  const Faults faults("fail=launch,fail_async=1");
  CHECK_EQ(driver().launch(0, stream.get(), &fails.launch), BRINGUP_OK);
  CHECK_EQ(driver().launch(0, stream.get(), &follows.launch), BRINGUP_OK);
  CHECK_EQ(driver().stream_synchronize(0, stream.get()), BRINGUP_KERNEL_FAILED);
  CHECK(last_error().find("operator 'test::kernel' failed in stream ") == 0);
  CHECK(last_error().find(": injected failure") != std::string::npos);
  CHECK_EQ(fails.released.load(), 1);
  CHECK_EQ(read(memory, 1, stream.get()), std::vector<int64_t>{10});
}

TEST(copies_and_fills_fail_in_their_stream) {
  const Memory memory(sizeof(int64_t));
  int64_t value = 7;
  driver().fill_async(0, memory.get(), 0, sizeof(int64_t), nullptr);
  {
    const Faults faults("fail=copy_async|fill_async,fail_async=1,fail_every=1");
    CHECK_EQ(driver().copy_async(BRINGUP_HOST_TO_DEVICE, 0, memory.get(), 0, &value, sizeof value,
                                 nullptr),
             BRINGUP_OK);
    CHECK_EQ(driver().stream_synchronize(0, nullptr), BRINGUP_KERNEL_FAILED);
    CHECK_EQ(last_error(), "a copy of 8 bytes failed in stream 0 of device 0: injected failure");
    CHECK_EQ(driver().fill_async(0, memory.get(), 1, 8, nullptr), BRINGUP_OK);
    CHECK_EQ(driver().device_synchronize(0), BRINGUP_KERNEL_FAILED);
    CHECK_EQ(last_error(), "a fill of 8 bytes failed in stream 0 of device 0: injected failure");
  }
  CHECK_EQ(read(memory, 1), std::vector<int64_t>{0});
}

TEST(a_stream_that_waited_for_one_that_failed_reports_it_too) {
  const Memory memory(sizeof(int64_t));
  for (const bool late : {false, true}) {
    const Stream first;
    const Stream second;
    const Event event;
    {
      const Faults faults("fail=fill_async,fail_async=1");
      driver().fill_async(0, memory.get(), 1, 8, first.get());
      driver().event_record(event.get(), 0, first.get());
    }
    while (late && driver().event_query(event.get()) == BRINGUP_NOT_READY) {
      std::this_thread::yield();
    }
    driver().event_wait(event.get(), 0, second.get());
    CHECK_EQ(driver().stream_synchronize(0, second.get()), BRINGUP_KERNEL_FAILED);
    CHECK(last_error().find("a fill of 8 bytes failed in stream ") == 0);
    CHECK_EQ(driver().stream_synchronize(0, second.get()), BRINGUP_OK);
    CHECK_EQ(driver().stream_synchronize(0, first.get()), BRINGUP_KERNEL_FAILED);
    // Reported: it does not go on to streams that wait from now on.
    driver().event_wait(event.get(), 0, second.get());
    CHECK_EQ(driver().stream_synchronize(0, second.get()), BRINGUP_OK);
  }
}

TEST(a_graph_fails_as_a_whole_or_in_one_kernel) {
  const Memory memory(sizeof(int64_t));
  driver().fill_async(0, memory.get(), 0, sizeof(int64_t), nullptr);
  Launch first(add_number, memory.get(), 1, 1);
  Launch second(add_number, memory.get(), 1, 10);
  second.launch.name = "test::second";
  bringup_graph graph = nullptr;
  REQUIRE(driver().graph_create(0, &graph) == BRINGUP_OK);
  driver().graph_add_kernel(graph, &first.launch);
  driver().graph_add_kernel(graph, &second.launch);
  {
    const Faults faults("fail=graph_launch,fail_async=1");
    CHECK_EQ(driver().graph_launch(graph, nullptr), BRINGUP_OK);
    CHECK_EQ(driver().stream_synchronize(0, nullptr), BRINGUP_KERNEL_FAILED);
    CHECK_EQ(read(memory, 1), std::vector<int64_t>{0});
  }
  {
    const Faults faults("fail=graph_kernel,operator=test::second");
    CHECK_EQ(driver().graph_launch(graph, nullptr), BRINGUP_OK);
    CHECK_EQ(driver().stream_synchronize(0, nullptr), BRINGUP_KERNEL_FAILED);
    CHECK(last_error().find("operator 'test::second' failed in stream 0") == 0);
    CHECK_EQ(read(memory, 1), std::vector<int64_t>{1});
  }
  CHECK_EQ(driver().graph_launch(graph, nullptr), BRINGUP_OK);
  CHECK_EQ(read(memory, 1), std::vector<int64_t>{12});
  driver().graph_destroy(graph);
}

TEST(a_lost_device_refuses_everything_but_giving_back) {
  const Stream stream;
  const Memory memory(64);
  void* address = nullptr;
  REQUIRE(driver().mem_alloc(0, 64, &address) == BRINGUP_OK);
  {
    const Faults faults("lost_after=2,device=0");
    CHECK_EQ(driver().fill_async(0, memory.get(), 1, 64, stream.get()), BRINGUP_OK);
    CHECK_EQ(driver().stream_synchronize(0, stream.get()), BRINGUP_OK);
    CHECK_EQ(driver().stream_synchronize(0, stream.get()), BRINGUP_DEVICE_LOST);
    CHECK_EQ(last_error(), "device 0 is lost (injected) until it is reset");
    CHECK_EQ(driver().stream_query(0, stream.get()), BRINGUP_DEVICE_LOST);
    CHECK_EQ(allocate(), BRINGUP_DEVICE_LOST);
    CHECK_EQ(driver().mem_free(0, address), BRINGUP_OK);
    const Memory elsewhere(64, 1);  // the other device works
    CHECK_EQ(driver().fill_async(1, elsewhere.get(), 1, 64, nullptr), BRINGUP_OK);
    CHECK_EQ(driver().stream_synchronize(1, nullptr), BRINGUP_OK);
  }
  CHECK_EQ(driver().stream_synchronize(0, stream.get()), BRINGUP_OK);
}

// A device that comes back without a reset must not look as if the work had been done.
TEST(work_that_a_lost_device_never_ran_is_reported_when_the_device_is_back) {
  const Stream stream;
  const Event event;
  const Memory memory(64);
  Gate gate;
  driver().host_func(0, stream.get(), Gate::wait, &gate);
  gate.reached.wait(false);
  driver().fill_async(0, memory.get(), 1, 64, stream.get());
  driver().event_record(event.get(), 0, stream.get());
  driver().event_wait(event.get(), 1, nullptr);
  {
    const Faults faults("lost_after=0,device=0");
    CHECK_EQ(allocate(), BRINGUP_DEVICE_LOST);
    gate.release();
    CHECK_EQ(driver().stream_synchronize(1, nullptr), BRINGUP_KERNEL_FAILED);  // the event's
  }
  CHECK_EQ(driver().stream_synchronize(0, stream.get()), BRINGUP_KERNEL_FAILED);
  CHECK(last_error().find("device 0 was lost before all work of stream") == 0);
  CHECK_EQ(driver().stream_synchronize(0, stream.get()), BRINGUP_OK);
}

TEST(a_lost_device_works_again_when_it_was_reset) {
  const Stream stream;
  const Stream other;
  const Event event;
  const Memory memory(64);
  const Faults faults("lost_after=2,lost_event=1,device=0");
  driver().event_record(event.get(), 0, stream.get());
  driver().event_wait(event.get(), 0, other.get());
  CHECK_EQ(driver().fill_async(0, memory.get(), 1, 64, other.get()), BRINGUP_DEVICE_LOST);
  CHECK_EQ(driver().device_reset(0), BRINGUP_OK);
  CHECK_EQ(driver().event_query(event.get()), BRINGUP_OK);
  CHECK_EQ(driver().fill_async(0, memory.get(), 1, 64, other.get()), BRINGUP_OK);
  CHECK_EQ(driver().stream_synchronize(0, other.get()), BRINGUP_OK);
}

TEST(a_wait_that_the_loss_of_the_device_ends_says_so) {
  const Stream stream;
  Gate gate;
  const Faults faults("lost_after=2");
  driver().host_func(0, stream.get(), Gate::wait, &gate);
  gate.reached.wait(false);
  std::atomic<int32_t> status{-1};
  std::thread waits([&] { status = driver().stream_synchronize(0, stream.get()); });
  while (faults.counts().find("stream_synchronize") == std::string::npos) {
    std::this_thread::yield();
  }
  CHECK_EQ(allocate(), BRINGUP_DEVICE_LOST);
  gate.release();
  waits.join();
  CHECK_EQ(status.load(), BRINGUP_DEVICE_LOST);
}

TEST(a_lost_event_never_completes_while_the_fault_lasts) {
  const Stream first;
  const Stream second;
  const Event event;
  {
    const Faults faults("lost_event=1");
    driver().event_record(event.get(), 0, first.get());
    CHECK_EQ(driver().stream_synchronize(0, first.get()), BRINGUP_OK);
    CHECK_EQ(driver().event_query(event.get()), BRINGUP_NOT_READY);
    driver().event_wait(event.get(), 0, second.get());
    CHECK_EQ(driver().stream_query(0, second.get()), BRINGUP_NOT_READY);
    CHECK_EQ(driver().event_query(event.get()), BRINGUP_NOT_READY);
    CHECK(faults.counts().find("event_record 1 1\n") != std::string::npos);
  }
  CHECK_EQ(driver().stream_synchronize(0, second.get()), BRINGUP_OK);
  CHECK_EQ(driver().event_query(event.get()), BRINGUP_OK);
}

double milliseconds_of(const std::function<void()>& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  driver().stream_synchronize(0, nullptr);
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin)
      .count();
}

TEST(launches_and_copies_take_as_long_as_is_said) {
  const Memory memory(1 << 16);
  std::vector<char> host(1 << 16);
  Launch launch(add_number, memory.get(), 1, 1);
  const auto launched = [&] { driver().launch(0, nullptr, &launch.launch); };
  const auto copied = [&] {
    driver().copy_async(BRINGUP_HOST_TO_DEVICE, 0, memory.get(), 0, host.data(), host.size(),
                        nullptr);
  };
  {
    const Faults faults("launch_latency_us=30000");
    CHECK(milliseconds_of(launched) >= 30);
  }
  {
    const Faults faults("copy_latency_us=30000");
    CHECK(milliseconds_of(copied) >= 30);
  }
  {
    const Faults faults("copy_bandwidth=1M");  // 1/16 s
    CHECK(milliseconds_of(copied) >= 62);
  }
}

// What `second` reads when it does not wait for `first`, which writes.
int64_t read_without_waiting(bool ordered) {
  const Stream first;
  const Stream second;
  const Event event;
  const Memory memory(sizeof(int64_t));
  driver().fill_async(0, memory.get(), 0, sizeof(int64_t), nullptr);
  driver().stream_synchronize(0, nullptr);
  Launch launch(add_number, memory.get(), 1, 5);
  driver().launch(0, first.get(), &launch.launch);
  driver().event_record(event.get(), 0, first.get());
  if (ordered) driver().event_wait(event.get(), 0, second.get());
  const int64_t value = read(memory, 1, second.get())[0];
  driver().stream_synchronize(0, first.get());
  return value;
}

TEST(late_streams_show_that_nobody_waited_for_them) {
  const Faults faults("reorder=late");
  for (int i = 0; i < 20; ++i) {
    CHECK_EQ(read_without_waiting(false), 0);
    CHECK_EQ(read_without_waiting(true), 5);
  }
}

TEST(late_streams_run_for_a_wait_whose_event_was_recorded_again) {
  const Faults faults("reorder=late");
  const Stream first;
  const Stream second;
  const Stream third;
  const Event event;
  const Memory memory(64);
  driver().fill_async(0, memory.get(), 1, 64, first.get());
  driver().event_record(event.get(), 0, first.get());
  driver().event_wait(event.get(), 0, second.get());
  driver().event_record(event.get(), 0, third.get());
  CHECK_EQ(driver().stream_synchronize(0, second.get()), BRINGUP_OK);
}

TEST(late_streams_run_on_when_the_fault_ends) {
  const Stream stream;
  std::atomic<bool> ran{false};
  {
    const Faults faults("reorder=late");
    driver().host_func(
        0, stream.get(), [](void* flag) { *static_cast<std::atomic<bool>*>(flag) = true; }, &ran);
    CHECK(!ran.load());
  }
  while (!ran.load()) std::this_thread::yield();
}

TEST(late_streams_run_for_whoever_asks) {
  const Stream stream;
  const Event event;
  const Faults faults("reorder=late");
  const Memory memory(64);
  driver().fill_async(0, memory.get(), 1, 64, stream.get());
  while (driver().stream_query(0, stream.get()) == BRINGUP_NOT_READY) std::this_thread::yield();
  driver().fill_async(0, memory.get(), 1, 64, stream.get());
  driver().event_record(event.get(), 0, stream.get());
  while (driver().event_query(event.get()) == BRINGUP_NOT_READY) std::this_thread::yield();
  driver().event_record(event.get(), 0, stream.get());
  CHECK_EQ(driver().event_synchronize(event.get()), BRINGUP_OK);
}

TEST(random_order_keeps_that_of_one_stream) {
  const Faults faults("reorder=random,seed=3");
  const Stream stream;
  const Memory memory(8 * sizeof(int64_t));
  driver().fill_async(0, memory.get(), 0, 8 * sizeof(int64_t), stream.get());
  std::vector<std::unique_ptr<Launch>> launches;
  for (int i = 0; i < 50; ++i) {
    launches.push_back(std::make_unique<Launch>(add_number, memory.get(), 8, i, 3));
    driver().launch(0, stream.get(), &launches.back()->launch);
  }
  CHECK_EQ(read(memory, 8, stream.get()), std::vector<int64_t>(8, 49 * 25));
}

TEST(faults_of_several_threads_come_and_go_independently) {
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([] {
      for (int round = 0; round < 50; ++round) {
        const Faults outer("fail=mem_alloc,fail_after=1000000");
        const Faults inner("reorder=random,seed=1,oom_after=1000000");
        const Memory memory(sizeof(int64_t));
        driver().fill_async(0, memory.get(), 0, sizeof(int64_t), nullptr);
        CHECK_EQ(driver().stream_synchronize(0, nullptr), BRINGUP_OK);
        CHECK(!outer.counts().empty());
      }
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK_EQ(allocate(), BRINGUP_OK);
}

TEST(everything_but_giving_back_can_be_made_to_fail) {
  const Faults faults("fail=any,fail_every=1");
  void* pointer = nullptr;
  size_t bytes = 0;
  bringup_stream stream = nullptr;
  bringup_event event = nullptr;
  bringup_graph graph = nullptr;
  CHECK_EQ(driver().mem_alloc(0, 8, &pointer), BRINGUP_ERROR);
  CHECK_EQ(driver().mem_info(0, &bytes, &bytes), BRINGUP_ERROR);
  CHECK_EQ(driver().stream_create(0, 0, &stream), BRINGUP_ERROR);
  CHECK_EQ(driver().event_create(0, 0, &event), BRINGUP_ERROR);
  CHECK_EQ(driver().graph_create(0, &graph), BRINGUP_ERROR);
  CHECK_EQ(driver().host_alloc(8, &pointer), BRINGUP_ERROR);
  CHECK_EQ(driver().device_synchronize(0), BRINGUP_ERROR);
  CHECK_EQ(driver().module_load(0, "x", &pointer), BRINGUP_ERROR);
  CHECK_EQ(last_error(), "injected failure of module_load");
}

}  // namespace
