// The simulated NPU as a driver: memory, order of streams, events, asynchronous failures, graphs.
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <thread>

#include "check.h"
#include "run_again.h"
#include "sim_driver.h"

using namespace sim_test;

namespace {

TEST(another_abi_version_is_not_spoken) {
  const auto get = reinterpret_cast<bringup_driver_get_fn>(
      dlsym(dlopen(SIM_DRIVER, RTLD_NOW | RTLD_LOCAL), "bringup_driver_get"));
  CHECK(get(BRINGUP_DRIVER_ABI + 1) == nullptr);
  CHECK_EQ(get(BRINGUP_DRIVER_ABI)->struct_size, sizeof(bringup_driver));
}

TEST(properties_are_written_no_further_than_asked) {
  bringup_device_props props{};
  props.struct_size = offsetof(bringup_device_props, core_count);
  props.core_count = 77;
  REQUIRE(driver().device_props(0, &props) == BRINGUP_OK);
  CHECK_EQ(std::string(props.name), "Simulated NPU");
  CHECK_EQ(props.core_count, 77u);
}

TEST(an_unknown_device_is_refused) {
  void* address = nullptr;
  CHECK_EQ(driver().mem_alloc(2, 8, &address), BRINGUP_INVALID);
  CHECK_EQ(last_error(), "no simulated device 2: there are 2");
}

TEST(memory_is_counted_merged_and_aligned) {
  size_t before = 0;
  size_t after = 0;
  size_t total = 0;
  driver().mem_info(1, &before, &total);
  {
    const Memory first(100, 1);
    const Memory second(1 << 20, 1);
    CHECK_EQ(reinterpret_cast<uintptr_t>(first.get()) % 64, 0u);
    CHECK_EQ(reinterpret_cast<uintptr_t>(second.get()) % 64, 0u);
    driver().mem_info(1, &after, &total);
    CHECK(after <= before - (1 << 20) - 100);
  }
  driver().mem_info(1, &after, &total);
  CHECK_EQ(after, before);
  void* everything = nullptr;  // only possible when neighbours were merged
  CHECK_EQ(driver().mem_alloc(1, total, &everything), BRINGUP_OK);
  CHECK_EQ(driver().mem_free(1, everything), BRINGUP_OK);
}

TEST(too_much_memory_is_said_so) {
  void* address = nullptr;
  CHECK_EQ(driver().mem_alloc(0, size_t{1} << 50, &address), BRINGUP_OUT_OF_MEMORY);
  CHECK(last_error().find("has no range of 1125899906842624 bytes free") != std::string::npos);
}

TEST(a_copy_outside_an_allocation_is_refused) {
  const Memory memory(64);
  std::vector<char> host(1 << 16);
  CHECK_EQ(driver().copy_async(BRINGUP_HOST_TO_DEVICE, 0, memory.get(), 0, host.data(), host.size(),
                               nullptr),
           BRINGUP_INVALID);
  CHECK_EQ(last_error(),
           "the target of a copy of 65536 bytes is not within one allocation of device memory");
  CHECK_EQ(
      driver().copy_async(BRINGUP_DEVICE_TO_DEVICE, 0, memory.get(), 0, host.data(), 64, nullptr),
      BRINGUP_INVALID);
}

TEST(freeing_twice_is_refused) {
  void* address = nullptr;
  REQUIRE(driver().mem_alloc(0, 8, &address) == BRINGUP_OK);
  CHECK_EQ(driver().mem_free(0, address), BRINGUP_OK);
  CHECK_EQ(driver().mem_free(0, address), BRINGUP_INVALID);
}

TEST(work_of_one_stream_runs_in_order) {
  const Stream stream;
  const Memory memory(8 * sizeof(int64_t));
  driver().fill_async(0, memory.get(), 0, 8 * sizeof(int64_t), stream.get());
  std::vector<std::unique_ptr<Launch>> launches;
  for (int i = 0; i < 200; ++i) {
    launches.push_back(std::make_unique<Launch>(add_number, memory.get(), 8, i, 3));
    CHECK_EQ(driver().launch(0, stream.get(), &launches.back()->launch), BRINGUP_OK);
  }
  CHECK_EQ(read(memory, 8, stream.get()), std::vector<int64_t>(8, 199 * 100));
  for (const auto& launch : launches) CHECK_EQ(launch->released.load(), 1);
}

TEST(streams_overlap_and_query_says_so) {
  const Stream held;
  const Stream free;
  Gate gate;
  driver().host_func(0, held.get(), Gate::wait, &gate);
  gate.reached.wait(false);
  CHECK_EQ(driver().stream_query(0, held.get()), BRINGUP_NOT_READY);
  const Memory memory(sizeof(int64_t));
  driver().fill_async(0, memory.get(), 1, sizeof(int64_t), free.get());
  CHECK_EQ(driver().stream_synchronize(0, free.get()), BRINGUP_OK);  // not held up
  CHECK_EQ(driver().stream_query(0, free.get()), BRINGUP_OK);
  gate.release();
  CHECK_EQ(driver().stream_synchronize(0, held.get()), BRINGUP_OK);
  CHECK_EQ(driver().stream_query(0, held.get()), BRINGUP_OK);
}

TEST(a_stream_waits_for_an_event_of_another) {
  const Stream first;
  const Stream second;
  const Event event;
  const Memory memory(sizeof(int64_t));
  Gate gate;
  driver().fill_async(0, memory.get(), 0, sizeof(int64_t), first.get());
  driver().host_func(0, first.get(), Gate::wait, &gate);
  Launch five(add_number, memory.get(), 1, 5);
  driver().launch(0, first.get(), &five.launch);
  driver().event_record(event.get(), 0, first.get());
  driver().event_wait(event.get(), 0, second.get());
  const Memory copy(sizeof(int64_t));
  driver().copy_async(BRINGUP_DEVICE_TO_DEVICE, 0, copy.get(), 0, memory.get(), sizeof(int64_t),
                      second.get());
  CHECK_EQ(driver().event_query(event.get()), BRINGUP_NOT_READY);
  CHECK_EQ(driver().stream_query(0, second.get()), BRINGUP_NOT_READY);
  gate.release();
  CHECK_EQ(read(copy, 1, second.get()), std::vector<int64_t>{5});
  CHECK_EQ(driver().event_query(event.get()), BRINGUP_OK);
  driver().stream_synchronize(0, first.get());
}

TEST(a_wait_is_for_the_record_that_was_the_last_when_it_was_given) {
  const Stream first;
  const Stream second;
  const Stream third;
  const Event event;
  Gate gate;
  std::atomic<bool> went_on{false};
  driver().host_func(0, first.get(), Gate::wait, &gate);
  driver().event_record(event.get(), 0, first.get());
  driver().event_wait(event.get(), 0, second.get());
  driver().host_func(
      0, second.get(), [](void* flag) { *static_cast<std::atomic<bool>*>(flag) = true; }, &went_on);
  driver().event_record(event.get(), 0, third.get());  // once more, where nothing is pending
  CHECK_EQ(driver().event_synchronize(event.get()), BRINGUP_OK);
  CHECK_EQ(driver().stream_query(0, second.get()), BRINGUP_NOT_READY);
  CHECK(!went_on.load());
  gate.release();
  CHECK_EQ(driver().stream_synchronize(0, second.get()), BRINGUP_OK);
  CHECK(went_on.load());
}

TEST(an_event_that_was_never_recorded_is_done) {
  const Event event;
  CHECK_EQ(driver().event_query(event.get()), BRINGUP_OK);
  CHECK_EQ(driver().event_synchronize(event.get()), BRINGUP_OK);
}

TEST(events_measure_time) {
  const Event start(1);
  const Event end(1);
  double milliseconds = -1;
  CHECK_EQ(driver().event_elapsed(start.get(), end.get(), &milliseconds), BRINGUP_INVALID);
  CHECK_EQ(last_error(), "both events must be recorded to tell the time between them");
  driver().event_record(start.get(), 0, nullptr);
  driver().host_func(
      0, nullptr, [](void*) { std::this_thread::sleep_for(std::chrono::milliseconds(3)); },
      nullptr);
  driver().event_record(end.get(), 0, nullptr);
  CHECK_EQ(driver().event_synchronize(end.get()), BRINGUP_OK);
  CHECK_EQ(driver().event_elapsed(start.get(), end.get(), &milliseconds), BRINGUP_OK);
  CHECK(milliseconds >= 3);
  const Event untimed;
  CHECK_EQ(driver().event_elapsed(start.get(), untimed.get(), &milliseconds), BRINGUP_INVALID);
}

TEST(a_failure_is_reported_once_by_the_next_synchronisation_of_its_stream) {
  const Stream bad;
  const Stream good;
  const Memory memory(sizeof(int64_t));
  Launch failing(fail, memory.get(), 1, 9);
  CHECK_EQ(driver().launch(0, bad.get(), &failing.launch), BRINGUP_OK);
  CHECK_EQ(driver().stream_synchronize(0, good.get()), BRINGUP_OK);
  CHECK_EQ(driver().stream_synchronize(0, bad.get()), BRINGUP_KERNEL_FAILED);
  CHECK(last_error().find("operator 'test::kernel' failed in stream ") == 0);
  CHECK(last_error().find(" of device 0: the kernel returned 9: the number is wrong") !=
        std::string::npos);
  CHECK_EQ(driver().stream_synchronize(0, bad.get()), BRINGUP_OK);
  CHECK_EQ(failing.released.load(), 1);
}

TEST(waiting_for_an_event_reports_the_failure_before_it) {
  const Stream stream;
  const Event event;
  const Memory memory(sizeof(int64_t));
  Launch failing(fail, memory.get(), 1, 4);
  driver().launch(0, stream.get(), &failing.launch);
  driver().event_record(event.get(), 0, stream.get());
  CHECK_EQ(driver().event_synchronize(event.get()), BRINGUP_KERNEL_FAILED);
  CHECK_EQ(driver().device_synchronize(0), BRINGUP_OK);
}

TEST(waiting_for_the_device_waits_for_every_stream_and_reports) {
  const Stream bad;
  const Stream slow;
  const Memory memory(sizeof(int64_t));
  driver().fill_async(0, memory.get(), 0, sizeof(int64_t), slow.get());
  Launch failing(fail, memory.get(), 1, 1);
  Launch adding(add_number, memory.get(), 1, 3);
  driver().launch(0, bad.get(), &failing.launch);
  driver().launch(0, slow.get(), &adding.launch);
  CHECK_EQ(driver().device_synchronize(0), BRINGUP_KERNEL_FAILED);
  CHECK_EQ(adding.released.load(), 1);
}

TEST(a_host_pointer_in_a_launch_is_caught) {
  int64_t on_host = 0;
  Launch launch(add_number, &on_host, 1, 1);
  CHECK_EQ(driver().launch(0, nullptr, &launch.launch), BRINGUP_OK);
  CHECK_EQ(driver().stream_synchronize(0, nullptr), BRINGUP_KERNEL_FAILED);
  CHECK(last_error().find("argument 0 is a tensor outside this device's memory") !=
        std::string::npos);
  CHECK_EQ(on_host, 0);
}

TEST(a_kernel_that_throws_fails_its_stream_only) {
  const Memory memory(sizeof(int64_t));
  Launch launch(
      [](void**, int32_t, const bringup_ctx*) -> int32_t { throw std::runtime_error("oops"); },
      memory.get(), 1, 0);
  driver().launch(0, nullptr, &launch.launch);
  CHECK_EQ(driver().stream_synchronize(0, nullptr), BRINGUP_KERNEL_FAILED);
  CHECK(last_error().find("the kernel threw: oops") != std::string::npos);
}

TEST(a_refused_launch_is_released_too) {
  const Memory memory(sizeof(int64_t));
  Launch launch(add_number, memory.get(), 1, 0, 0);
  CHECK_EQ(driver().launch(0, nullptr, &launch.launch), BRINGUP_INVALID);
  CHECK_EQ(last_error(), "a launch over less than one block");
  CHECK_EQ(launch.released.load(), 1);
}

TEST(kernels_get_workspace_and_cover_a_parallel_range_once) {
  const Memory memory(4 * sizeof(int64_t));
  const auto kernel = [](void** args, int32_t, const bringup_ctx* ctx) -> int32_t {
    auto* first = static_cast<int64_t*>(ctx->workspace(ctx, 1000));
    auto* second = static_cast<int64_t*>(ctx->workspace(ctx, 100000));
    if (first == nullptr || second == nullptr || first == second) return 1;
    if (reinterpret_cast<uintptr_t>(first) % 64 != 0) return 2;
    first[0] = 0;
    ctx->parallel_for(
        ctx, 1000, 10,
        [](int64_t begin, int64_t end, void* sum) { *static_cast<int64_t*>(sum) += end - begin; },
        first);
    auto* data = static_cast<int64_t*>(static_cast<DLTensor*>(args[0])->data);
    data[ctx->block_index] = first[0] + ctx->block_count;
    return 0;
  };
  Launch launch(kernel, memory.get(), 4, 0, 4);
  driver().launch(0, nullptr, &launch.launch);
  CHECK_EQ(read(memory, 4), std::vector<int64_t>(4, 1004));
}

TEST(device_code_comes_from_a_module) {
  void* module = nullptr;
  bringup_kernel_fn fn = nullptr;
  CHECK_EQ(driver().module_load(0, "/nowhere.so", &module), BRINGUP_INVALID);
  CHECK(last_error().find("/nowhere.so") != std::string::npos);
  REQUIRE(driver().module_load(0, TEST_KERNELS "/add_one.so", &module) == BRINGUP_OK);
  CHECK_EQ(driver().get_function(module, "missing", &fn), BRINGUP_INVALID);
  CHECK_EQ(last_error(), "the module exports no function 'missing'");
  CHECK_EQ(driver().get_function(module, "run", &fn), BRINGUP_OK);
  CHECK(fn != nullptr);
  CHECK_EQ(driver().module_unload(module), BRINGUP_OK);
}

TEST(a_graph_runs_its_nodes_in_order_and_again_with_new_arguments) {
  const Memory memory(2 * sizeof(int64_t));
  const Memory copy(2 * sizeof(int64_t));
  driver().fill_async(0, memory.get(), 0, 2 * sizeof(int64_t), nullptr);
  int host_calls = 0;
  Launch adding(add_number, memory.get(), 2, 2);
  bringup_graph graph = nullptr;
  REQUIRE(driver().graph_create(0, &graph) == BRINGUP_OK);
  CHECK_EQ(driver().graph_add_kernel(graph, &adding.launch), BRINGUP_OK);
  CHECK_EQ(driver().graph_add_copy(graph, BRINGUP_DEVICE_TO_DEVICE, copy.get(), memory.get(),
                                   2 * sizeof(int64_t)),
           BRINGUP_OK);
  CHECK_EQ(driver().graph_add_host_func(
               graph, [](void* n) { ++*static_cast<int*>(n); }, &host_calls),
           BRINGUP_OK);
  driver().graph_launch(graph, nullptr);
  driver().graph_launch(graph, nullptr);
  CHECK_EQ(read(copy, 2), (std::vector<int64_t>{4, 4}));
  adding.number = 10;  // the graph has its own copy
  driver().graph_launch(graph, nullptr);
  CHECK_EQ(read(copy, 2), (std::vector<int64_t>{6, 6}));
  CHECK_EQ(driver().graph_update_kernel(graph, 0, &adding.launch), BRINGUP_OK);
  driver().graph_launch(graph, nullptr);
  CHECK_EQ(read(copy, 2), (std::vector<int64_t>{16, 16}));
  CHECK_EQ(host_calls, 4);
  CHECK_EQ(driver().graph_update_kernel(graph, 1, &adding.launch), BRINGUP_INVALID);
  CHECK_EQ(last_error(), "the graph has 1 kernels, so none of number 1");
  CHECK_EQ(adding.released.load(), 0);
  CHECK_EQ(driver().graph_destroy(graph), BRINGUP_OK);
  CHECK_EQ(adding.released.load(), 1);
}

TEST(launches_before_an_update_run_with_what_the_kernel_had) {
  const Stream stream;
  const Memory memory(sizeof(int64_t));
  driver().fill_async(0, memory.get(), 0, sizeof(int64_t), nullptr);
  driver().stream_synchronize(0, nullptr);
  Gate gate;
  Launch adding(add_number, memory.get(), 1, 1);
  bringup_graph graph = nullptr;
  driver().graph_create(0, &graph);
  driver().graph_add_host_func(graph, Gate::wait, &gate);
  driver().graph_add_kernel(graph, &adding.launch);
  for (const int64_t number : {1, 20, 300}) {
    adding.number = number;
    CHECK_EQ(driver().graph_update_kernel(graph, 0, &adding.launch), BRINGUP_OK);
    driver().graph_launch(graph, stream.get());
  }
  gate.release();
  driver().stream_synchronize(0, stream.get());
  CHECK_EQ(read(memory, 1), std::vector<int64_t>{321});
  driver().graph_destroy(graph);
  CHECK_EQ(adding.released.load(), 1);
}

TEST(a_graph_destroyed_while_it_runs_is_released_afterwards) {
  const Stream stream;
  const Memory memory(sizeof(int64_t));
  Gate gate;
  Launch adding(add_number, memory.get(), 1, 1);
  bringup_graph graph = nullptr;
  driver().graph_create(0, &graph);
  driver().graph_add_host_func(graph, Gate::wait, &gate);
  driver().graph_add_kernel(graph, &adding.launch);
  driver().graph_launch(graph, stream.get());
  gate.reached.wait(false);
  driver().graph_destroy(graph);
  CHECK_EQ(adding.released.load(), 0);
  gate.release();
  driver().stream_synchronize(0, stream.get());
  CHECK_EQ(adding.released.load(), 1);
}

TEST(a_failing_node_stops_its_graph_and_is_reported) {
  const Memory memory(sizeof(int64_t));
  driver().fill_async(0, memory.get(), 0, sizeof(int64_t), nullptr);
  Launch failing(fail, memory.get(), 1, 3);
  Launch adding(add_number, memory.get(), 1, 1);
  bringup_graph graph = nullptr;
  driver().graph_create(0, &graph);
  driver().graph_add_kernel(graph, &failing.launch);
  driver().graph_add_kernel(graph, &adding.launch);
  driver().graph_launch(graph, nullptr);
  CHECK_EQ(driver().stream_synchronize(0, nullptr), BRINGUP_KERNEL_FAILED);
  CHECK_EQ(read(memory, 1), std::vector<int64_t>{0});
  driver().graph_destroy(graph);
}

TEST(a_host_function_that_waits_for_its_own_stream_is_refused) {
  int32_t status = BRINGUP_OK;
  driver().host_func(
      0, nullptr,
      [](void* out) { *static_cast<int32_t*>(out) = driver().stream_synchronize(0, nullptr); },
      &status);
  driver().stream_synchronize(0, nullptr);
  CHECK_EQ(status, BRINGUP_INVALID);
}

TEST(many_threads_share_streams_and_memory) {
  const Stream stream;
  const Memory memory(sizeof(int64_t));
  driver().fill_async(0, memory.get(), 0, sizeof(int64_t), stream.get());
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 100; ++i) {
        const Memory scratch(256);
        const Event event;
        Launch adding(add_number, memory.get(), 1, 1);
        if (driver().launch(0, stream.get(), &adding.launch) != BRINGUP_OK) ++wrong;
        driver().fill_async(0, scratch.get(), 1, 256, stream.get());
        driver().event_record(event.get(), 0, stream.get());
        if (driver().event_synchronize(event.get()) != BRINGUP_OK) ++wrong;
        if (adding.released.load() != 1) ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK_EQ(wrong.load(), 0);
  CHECK_EQ(read(memory, 1, stream.get()), std::vector<int64_t>{400});
}

TEST(a_forked_child_is_refused_in_words_and_ends_cleanly) {
  const Memory memory(sizeof(int64_t));
  driver().fill_async(0, memory.get(), 0, sizeof(int64_t), nullptr);
  driver().stream_synchronize(0, nullptr);
  const pid_t child = fork();
  if (child == 0) {
    const int32_t status = driver().stream_synchronize(0, nullptr);
    const bool refused =
        status == BRINGUP_ERROR && last_error().find("forked process") != std::string::npos;
    _exit(refused ? 0 : 1);
  }
  int status = -1;
  waitpid(child, &status, 0);
  CHECK_EQ(status, 0);
}

TEST(a_process_that_ends_with_pending_work_ends_cleanly) {
  const pid_t child = fork();
  if (child == 0) {
    // A fresh process image, because a forked one may not use the driver.
    run_again("end_with_pending_work");
  }
  int status = -1;
  waitpid(child, &status, 0);
  CHECK_EQ(status, 0);
}

// Run by the test above; on its own it only leaves work behind.
TEST(end_with_pending_work) {
  static bringup_stream waiting = nullptr;
  static bringup_stream busy = nullptr;
  static bringup_event never = nullptr;
  driver().stream_create(0, 0, &waiting);
  driver().stream_create(0, 0, &busy);
  driver().event_create(0, 0, &never);
  for (int i = 0; i < 50; ++i) {
    driver().host_func(
        0, busy, [](void*) { std::this_thread::sleep_for(std::chrono::milliseconds(1)); }, nullptr);
  }
  driver().event_record(never, 0, busy);
  driver().event_wait(never, 0, waiting);
  CHECK_EQ(driver().stream_query(0, waiting), BRINGUP_NOT_READY);
}

}  // namespace
