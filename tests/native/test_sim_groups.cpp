// The simulator's functions behind capability bits: begin and end, error detail, waits with a
// limit, reset, host memory, pointers; and priorities.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "check.h"
#include "run_again.h"
#include "sim_driver.h"

namespace {

using namespace sim_test;

constexpr int64_t kMilliseconds = 1'000'000;
constexpr int64_t kMinute = 60'000 * kMilliseconds;

bringup_pointer_info info_of(const void* address) {
  bringup_pointer_info info{};
  info.struct_size = sizeof info;
  CHECK_EQ(driver().pointer_info(address, &info), BRINGUP_OK);
  return info;
}

bringup_device_props props_of(int32_t device) {
  bringup_device_props props{};
  props.struct_size = sizeof props;
  CHECK_EQ(driver().device_props(device, &props), BRINGUP_OK);
  return props;
}

void hold(bringup_stream stream, Gate& gate) {
  REQUIRE(driver().host_func(0, stream, &Gate::wait, &gate) == BRINGUP_OK);
  gate.reached.wait(false);
}

TEST(properties_of_1_1_are_told) {
  const bringup_device_props props = props_of(0);
  CHECK_EQ(props.alignment, 256u);
  CHECK_EQ(props.dtypes, 0u);
  CHECK_EQ(props.greatest_priority, -2);
  CHECK_EQ(props.least_priority, 0);
  CHECK(std::memcmp(props.uuid, props_of(1).uuid, sizeof props.uuid) != 0);
  CHECK(std::memcmp(props.uuid, props_of(0).uuid, sizeof props.uuid) == 0);
  CHECK_EQ(std::string(props.driver_version), "1.1");
}

TEST(an_older_kit_gets_the_properties_that_it_knows) {
  bringup_device_props props;
  std::memset(&props, 0x5a, sizeof props);
  props.struct_size = offsetof(bringup_device_props, dtypes);
  CHECK_EQ(driver().device_props(0, &props), BRINGUP_OK);
  CHECK_EQ(props.runs_host_code, 1u);
  CHECK_EQ(props.alignment, 0x5a5a5a5au);
}

TEST(a_failed_kernel_has_a_detail_and_a_refused_call_has_none) {
  Memory memory(64);
  Stream stream;
  Launch launch(&fail, memory.get(), 1, 5, 4);
  CHECK_EQ(driver().launch(0, stream.get(), &launch.launch), BRINGUP_OK);
  CHECK_EQ(driver().stream_synchronize(0, stream.get()), BRINGUP_KERNEL_FAILED);
  bringup_error_detail detail{};
  detail.struct_size = sizeof detail;
  CHECK_EQ(driver().error_detail(&detail), BRINGUP_OK);
  CHECK_EQ(detail.code, 5);
  CHECK_EQ(detail.device, 0);
  CHECK(detail.stream == stream.get());
  CHECK_EQ(std::string(detail.kernel), "test::kernel");
  CHECK_EQ(std::string(detail.text), "block 0 of 4");
  CHECK_EQ(driver().mem_free(0, &launch), BRINGUP_INVALID);
  CHECK_EQ(driver().error_detail(&detail), BRINGUP_OK);
  CHECK_EQ(detail.code, 0);
  CHECK_EQ(detail.device, -1);
  CHECK_EQ(std::string(detail.kernel), "");
}

TEST(a_wait_with_a_limit_gives_up_and_the_work_goes_on) {
  Stream stream;
  Event event;
  Gate gate;
  hold(stream.get(), gate);
  CHECK_EQ(driver().event_record(event.get(), 0, stream.get()), BRINGUP_OK);
  CHECK_EQ(driver().stream_wait_for(0, stream.get(), kMilliseconds), BRINGUP_TIMEOUT);
  CHECK_EQ(driver().event_wait_for(event.get(), kMilliseconds), BRINGUP_TIMEOUT);
  CHECK_EQ(driver().stream_query(0, stream.get()), BRINGUP_NOT_READY);
  gate.release();
  CHECK_EQ(driver().event_wait_for(event.get(), kMinute), BRINGUP_OK);
  CHECK_EQ(driver().stream_wait_for(0, stream.get(), kMinute), BRINGUP_OK);
}

TEST(a_wait_with_a_limit_reports_what_failed) {
  Memory memory(64);
  Launch first(&fail, memory.get(), 1, 5);
  Launch second(&fail, memory.get(), 1, 6);
  Stream stream;
  Event event;
  CHECK_EQ(driver().launch(0, stream.get(), &first.launch), BRINGUP_OK);
  CHECK_EQ(driver().stream_wait_for(0, stream.get(), kMinute), BRINGUP_KERNEL_FAILED);
  CHECK_EQ(driver().stream_wait_for(0, stream.get(), kMinute), BRINGUP_OK);
  CHECK_EQ(driver().launch(0, stream.get(), &second.launch), BRINGUP_OK);
  CHECK_EQ(driver().event_record(event.get(), 0, stream.get()), BRINGUP_OK);
  CHECK_EQ(driver().event_wait_for(event.get(), kMinute), BRINGUP_KERNEL_FAILED);
}

TEST(a_reset_drops_what_is_queued_and_forgets_failures) {
  Memory memory(64);
  Stream stream;
  Stream waiting;
  Event event;
  Gate gate;
  Launch failing(&fail, memory.get(), 1, 5);
  Launch dropped(&add_number, memory.get(), 1, 7);
  const int64_t before = 40;
  CHECK_EQ(driver().copy_async(BRINGUP_HOST_TO_DEVICE, 0, memory.get(), 0, &before, 8, nullptr),
           BRINGUP_OK);
  CHECK_EQ(driver().stream_synchronize(0, nullptr), BRINGUP_OK);
  CHECK_EQ(driver().launch(0, stream.get(), &failing.launch), BRINGUP_OK);
  hold(stream.get(), gate);
  CHECK_EQ(driver().launch(0, stream.get(), &dropped.launch), BRINGUP_OK);
  CHECK_EQ(driver().event_record(event.get(), 0, stream.get()), BRINGUP_OK);
  CHECK_EQ(driver().event_wait(event.get(), 0, waiting.get()), BRINGUP_OK);
  // The host function runs already, so the reset waits for it; it opens once the reset has begun.
  std::thread opening([&] {
    while (driver().stream_query(0, waiting.get()) == BRINGUP_NOT_READY) std::this_thread::yield();
    gate.release();
  });
  CHECK_EQ(driver().device_reset(0), BRINGUP_OK);
  opening.join();
  CHECK_EQ(dropped.released.load(), 1);
  CHECK_EQ(driver().event_query(event.get()), BRINGUP_OK);
  CHECK_EQ(driver().device_synchronize(0), BRINGUP_OK);  // nothing is reported
  CHECK_EQ(read(memory, 1).at(0), 40);
  Launch again(&add_number, memory.get(), 1, 2);
  CHECK_EQ(driver().launch(0, stream.get(), &again.launch), BRINGUP_OK);
  CHECK_EQ(read(memory, 1, stream.get()).at(0), 42);
}

TEST(pointers_are_known_by_their_owner) {
  Memory memory(1000, 1);
  auto* inside = static_cast<std::byte*>(memory.get()) + 999;
  CHECK_EQ(info_of(inside).kind, BRINGUP_POINTER_DEVICE);
  CHECK_EQ(info_of(inside).device, 1);
  CHECK(info_of(inside).base == memory.get());
  CHECK_EQ(info_of(inside).bytes, 1024u);
  int local = 0;
  CHECK_EQ(info_of(&local).kind, BRINGUP_POINTER_UNKNOWN);
  CHECK_EQ(info_of(&local).device, -1);
  CHECK(info_of(&local).base == nullptr);
  void* pinned = nullptr;
  CHECK_EQ(driver().host_alloc(4096, &pinned), BRINGUP_OK);
  CHECK_EQ(info_of(static_cast<std::byte*>(pinned) + 4095).kind, BRINGUP_POINTER_HOST);
  CHECK_EQ(driver().host_free(pinned), BRINGUP_OK);
  CHECK_EQ(info_of(pinned).kind, BRINGUP_POINTER_UNKNOWN);
}

TEST(host_memory_is_registered_once_and_without_overlap) {
  std::vector<std::byte> memory(4096);
  CHECK_EQ(driver().host_register(memory.data() + 1024, 1024), BRINGUP_OK);
  CHECK_EQ(info_of(memory.data() + 1024).kind, BRINGUP_POINTER_HOST);
  CHECK_EQ(info_of(memory.data() + 2048).kind, BRINGUP_POINTER_UNKNOWN);
  for (const size_t begin : {0u, 1024u, 2047u}) {
    CHECK_EQ(driver().host_register(memory.data() + begin, 1025), BRINGUP_INVALID);
  }
  CHECK_EQ(driver().host_register(memory.data() + 2048, 1024), BRINGUP_OK);
  CHECK_EQ(driver().host_unregister(memory.data() + 1024), BRINGUP_OK);
  CHECK_EQ(driver().host_unregister(memory.data() + 1024), BRINGUP_INVALID);
  CHECK_EQ(driver().host_unregister(memory.data() + 2048), BRINGUP_OK);
}

// --- priorities

struct PriorityStream {
  explicit PriorityStream(int32_t priority) {
    CHECK_EQ(driver().stream_create(0, priority, &stream), BRINGUP_OK);
  }
  ~PriorityStream() { driver().stream_destroy(stream); }
  bringup_stream stream = nullptr;
};

std::atomic<bool> g_kernel_runs{false};
std::atomic<bool> g_kernel_may_end{false};

// A kernel, so work of the device, that ends when it is told to.
int32_t busy(void**, int32_t, const bringup_ctx*) {
  g_kernel_runs = true;
  g_kernel_runs.notify_all();
  g_kernel_may_end.wait(false);
  return 0;
}

std::mutex g_order_mutex;
std::vector<int64_t> g_order;
int32_t note(void** args, int32_t, const bringup_ctx*) {
  const std::lock_guard lock(g_order_mutex);
  g_order.push_back(*static_cast<const int64_t*>(args[1]));
  return 0;
}

TEST(work_of_a_more_urgent_stream_goes_first) {
  g_kernel_runs = g_kernel_may_end = false;
  g_order.clear();
  Memory memory(64);
  PriorityStream normal(0);
  PriorityStream urgent(-1);
  PriorityStream most_urgent(-2);
  Launch occupying(&busy, memory.get(), 1, 0);
  std::vector<std::unique_ptr<Launch>> notes;
  const auto give = [&](const PriorityStream& to, int64_t number) {
    notes.push_back(std::make_unique<Launch>(&note, memory.get(), 1, number));
    CHECK_EQ(driver().launch(0, to.stream, &notes.back()->launch), BRINGUP_OK);
  };
  CHECK_EQ(driver().launch(0, most_urgent.stream, &occupying.launch), BRINGUP_OK);
  g_kernel_runs.wait(false);
  for (int i = 0; i < 20; ++i) give(normal, 3);
  for (int i = 0; i < 20; ++i) give(urgent, 2);
  for (int i = 0; i < 20; ++i) give(most_urgent, 1);
  g_kernel_may_end = true;
  g_kernel_may_end.notify_all();
  CHECK_EQ(driver().device_synchronize(0), BRINGUP_OK);
  CHECK_EQ(g_order.size(), 60u);
  CHECK(std::is_sorted(g_order.begin(), g_order.end()));
}

TEST(an_urgent_stream_that_waits_for_a_normal_one_lets_it_go_on) {
  Memory memory(64);
  Memory other(64);
  PriorityStream normal(0);
  PriorityStream urgent(-2);
  Event event;
  Gate gate;
  hold(normal.stream, gate);
  CHECK_EQ(driver().event_record(event.get(), 0, normal.stream), BRINGUP_OK);
  CHECK_EQ(driver().event_wait(event.get(), 0, urgent.stream), BRINGUP_OK);
  Launch after(&add_number, memory.get(), 1, 0);
  Launch later(&add_number, other.get(), 1, 0);
  CHECK_EQ(driver().launch(0, urgent.stream, &after.launch), BRINGUP_OK);
  CHECK_EQ(driver().launch(0, normal.stream, &later.launch), BRINGUP_OK);
  gate.release();
  CHECK_EQ(driver().stream_wait_for(0, normal.stream, kMinute), BRINGUP_OK);
  CHECK_EQ(driver().stream_wait_for(0, urgent.stream, kMinute), BRINGUP_OK);
}

TEST(a_priority_that_there_is_not_is_refused) {
  bringup_stream stream = nullptr;
  for (const int32_t priority : {1, -3}) {
    CHECK_EQ(driver().stream_create(0, priority, &stream), BRINGUP_INVALID);
  }
}

TEST(after_shutdown_calls_are_refused_in_words) {
  const pid_t child = fork();
  if (child == 0) {  // a fresh process image, as the simulator of this one goes on
    setenv("SHUT_DOWN_HERE", "1", 1);
    run_again("shut_down_here");
  }
  int status = -1;
  waitpid(child, &status, 0);
  CHECK_EQ(status, 0);
}

// Run by the test above; on its own it does nothing.
TEST(shut_down_here) {
  if (getenv("SHUT_DOWN_HERE") == nullptr) return;
  CHECK_EQ(driver().init(), BRINGUP_OK);
  void* address = nullptr;
  CHECK_EQ(driver().mem_alloc(0, 64, &address), BRINGUP_OK);
  CHECK_EQ(driver().shutdown(), BRINGUP_OK);
  CHECK_EQ(driver().mem_alloc(0, 64, &address), BRINGUP_DEVICE_LOST);
  CHECK(last_error().find("was shut down") != std::string::npos);
}

}  // namespace
