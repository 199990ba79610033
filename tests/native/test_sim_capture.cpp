// Captured streams of the simulator, and its native handles.
#include <cstring>
#include <string>
#include <vector>

#include "check.h"
#include "sim_driver.h"

using namespace sim_test;

namespace {

constexpr size_t kBytes = 64;

struct Graph {
  Graph() { driver().graph_create(0, &handle); }
  ~Graph() { destroy(); }
  void destroy() {
    if (handle != nullptr) driver().graph_destroy(handle);
    handle = nullptr;
  }
  bringup_graph handle = nullptr;
};

int32_t fill(const Memory& memory, uint8_t value, bringup_stream stream) {
  return driver().fill_async(0, memory.get(), value, kBytes, stream);
}

std::vector<uint8_t> content(const Memory& memory) {
  std::vector<uint8_t> bytes(kBytes);
  driver().copy_async(BRINGUP_DEVICE_TO_HOST, 0, bytes.data(), 0, memory.get(), kBytes, nullptr);
  driver().stream_synchronize(0, nullptr);
  return bytes;
}

std::vector<uint8_t> all(uint8_t value) { return std::vector<uint8_t>(kBytes, value); }

int32_t state(bringup_stream stream) {
  int32_t found = -1;
  CHECK_EQ(driver().stream_capture_query(0, stream, &found), BRINGUP_OK);
  return found;
}

}  // namespace

TEST(what_is_captured_runs_with_each_launch_of_the_graph) {
  const Memory memory(kBytes);
  const Stream stream;
  Graph graph;
  CHECK_EQ(fill(memory, 1, nullptr), BRINGUP_OK);
  CHECK_EQ(driver().stream_capture_begin(0, stream.get()), BRINGUP_OK);
  CHECK_EQ(fill(memory, 7, stream.get()), BRINGUP_OK);
  CHECK_EQ(driver().stream_capture_end(0, stream.get(), graph.handle), BRINGUP_OK);
  CHECK(content(memory) == all(1));
  for (int i = 0; i < 2; ++i) {
    CHECK_EQ(fill(memory, 1, stream.get()), BRINGUP_OK);
    CHECK_EQ(driver().graph_launch(graph.handle, stream.get()), BRINGUP_OK);
    CHECK_EQ(driver().stream_synchronize(0, stream.get()), BRINGUP_OK);
    CHECK(content(memory) == all(7));
  }
}

TEST(a_captured_launch_is_released_with_the_graph_or_by_an_abort) {
  int released = 0;
  bringup_launch launch{};
  launch.struct_size = sizeof launch;
  launch.fn = [](void**, int32_t, const bringup_ctx*) -> int32_t { return 0; };
  launch.grid = 1;
  launch.name = "test::nothing";
  launch.owner = &released;
  launch.release = [](void* owner) { ++*static_cast<int*>(owner); };
  const Stream stream;
  Graph graph;
  driver().stream_capture_begin(0, stream.get());
  CHECK_EQ(driver().launch(0, stream.get(), &launch), BRINGUP_OK);
  CHECK_EQ(driver().stream_capture_end(0, stream.get(), graph.handle), BRINGUP_OK);
  CHECK_EQ(released, 0);
  graph.destroy();
  CHECK_EQ(released, 1);
  driver().stream_capture_begin(0, stream.get());
  CHECK_EQ(driver().launch(0, stream.get(), &launch), BRINGUP_OK);
  CHECK_EQ(driver().stream_capture_abort(0, stream.get()), BRINGUP_OK);
  CHECK_EQ(released, 2);
}

TEST(a_kernel_that_fails_ends_its_launch_of_the_graph) {
  const Memory memory(kBytes);
  const Stream stream;
  Graph graph;
  bringup_launch launch{};
  launch.struct_size = sizeof launch;
  launch.fn = [](void**, int32_t, const bringup_ctx*) -> int32_t { return 3; };
  launch.grid = 1;
  launch.name = "test::refuses";
  fill(memory, 1, nullptr);
  driver().stream_synchronize(0, nullptr);
  driver().stream_capture_begin(0, stream.get());
  driver().launch(0, stream.get(), &launch);
  fill(memory, 9, stream.get());
  CHECK_EQ(driver().stream_capture_end(0, stream.get(), graph.handle), BRINGUP_OK);
  CHECK_EQ(driver().graph_launch(graph.handle, stream.get()), BRINGUP_OK);
  CHECK_EQ(driver().stream_synchronize(0, stream.get()), BRINGUP_KERNEL_FAILED);
  CHECK(last_error().find("test::refuses") != std::string::npos);
  CHECK(content(memory) == all(1));
}

TEST(waits_questions_events_and_graphs_break_a_capture) {
  const Memory memory(kBytes);
  const Event event;
  Graph graph;
  Graph other;
  const auto broken_by = [&](auto call) {
    const Stream stream;
    driver().stream_capture_begin(0, stream.get());
    CHECK_EQ(call(stream.get()), BRINGUP_INVALID);
    CHECK_EQ(state(stream.get()), BRINGUP_CAPTURE_BROKEN);
    CHECK_EQ(driver().stream_capture_end(0, stream.get(), graph.handle), BRINGUP_INVALID);
    CHECK_EQ(state(stream.get()), BRINGUP_CAPTURE_NONE);
    CHECK_EQ(driver().stream_synchronize(0, stream.get()), BRINGUP_OK);
  };
  broken_by([](bringup_stream stream) { return driver().stream_synchronize(0, stream); });
  broken_by([](bringup_stream stream) { return driver().stream_wait_for(0, stream, 1); });
  broken_by([](bringup_stream stream) { return driver().stream_query(0, stream); });
  broken_by([](bringup_stream) { return driver().device_synchronize(0); });
  broken_by([&](bringup_stream stream) { return driver().event_record(event.get(), 0, stream); });
  broken_by([&](bringup_stream stream) { return driver().graph_launch(other.handle, stream); });
}

TEST(a_capture_is_of_one_stream_and_not_of_the_default_one) {
  const Stream stream;
  Graph graph;
  CHECK_EQ(driver().stream_capture_begin(0, nullptr), BRINGUP_INVALID);
  CHECK_EQ(driver().stream_capture_begin(0, stream.get()), BRINGUP_OK);
  CHECK_EQ(driver().stream_capture_begin(0, stream.get()), BRINGUP_INVALID);
  CHECK_EQ(state(stream.get()), BRINGUP_CAPTURE_ACTIVE);
  CHECK_EQ(driver().stream_capture_end(0, stream.get(), graph.handle), BRINGUP_INVALID);
  CHECK(last_error().find("nothing was given") != std::string::npos);
  CHECK_EQ(driver().stream_capture_abort(0, stream.get()), BRINGUP_INVALID);
}

TEST(a_reset_drops_a_capture) {
  const Stream stream;
  driver().stream_capture_begin(0, stream.get());
  CHECK_EQ(driver().device_reset(0), BRINGUP_OK);
  CHECK_EQ(state(stream.get()), BRINGUP_CAPTURE_NONE);
}

TEST(native_handles_are_of_what_they_stand_for) {
  const Memory memory(kBytes);
  const Stream stream;
  void* handle = nullptr;
  CHECK_EQ(driver().native_handle(0, stream.get(), BRINGUP_NATIVE_QUEUE, &handle), BRINGUP_OK);
  CHECK(handle == static_cast<void*>(stream.get()));
  CHECK_EQ(driver().native_handle(1, nullptr, BRINGUP_NATIVE_DEVICE, &handle), BRINGUP_OK);
  CHECK_EQ(reinterpret_cast<uintptr_t>(handle), 1U);
  handle = static_cast<char*>(memory.get()) + 5;
  CHECK_EQ(driver().native_handle(0, nullptr, BRINGUP_NATIVE_MEMORY, &handle), BRINGUP_OK);
  CHECK(handle == memory.get());
  handle = &handle;
  CHECK_EQ(driver().native_handle(0, nullptr, BRINGUP_NATIVE_MEMORY, &handle), BRINGUP_UNSUPPORTED);
  CHECK_EQ(driver().native_handle(0, nullptr, 99, &handle), BRINGUP_UNSUPPORTED);
}
