// The simulator's launches with plain values: every thread once, what is refused, graphs.
#include <cfenv>
#include <stdexcept>
#include <thread>
#include <vector>

#include "bringup/device.h"
#include "check.h"
#include "sim_driver.h"

using namespace sim_test;

namespace {

// out[i] += number for the thread's own i; the ints check sign and size.
void add(const bringup_position* at, int64_t* out, int8_t sign, uint16_t size, double number) {
  const uint32_t block =
      (at->block_idx.z * at->grid_dim.y + at->block_idx.y) * at->grid_dim.x + at->block_idx.x;
  const uint32_t thread =
      (at->thread_idx.z * at->block_dim.y + at->thread_idx.y) * at->block_dim.x + at->thread_idx.x;
  const uint32_t threads = at->block_dim.x * at->block_dim.y * at->block_dim.z;
  out[block * threads + thread] += static_cast<int64_t>(number) * sign + size;
}

// Each thread leaves its number, passes a barrier, and reads its neighbour's. Odd ones return early
// in a second round.
void neighbours(const bringup_position* at, int64_t* out) {
  auto* shared = static_cast<int64_t*>(at->shared);
  const uint32_t i = at->thread_idx.x;
  const uint32_t n = at->block_dim.x;
  shared[i] = i + 1;
  at->barrier(at);
  int64_t sum = shared[(i + 1) % n];
  at->barrier(at);
  shared[i] = sum;
  if (i % 2 == 0) {
    at->barrier(at);
    sum = 100 * shared[(i + 1) % n] + sum;
  }
  out[at->block_idx.x * n + i] = sum;
}

std::thread::id g_ran_on;
void note_thread(const bringup_position*, int64_t* out) {
  g_ran_on = std::this_thread::get_id();
  ++*out;
}

void fail(const bringup_position*) { throw std::runtime_error("always"); }

void wrong_barrier(const bringup_position* at) {
  bringup_position copy = *at;
  at->barrier(&copy);
}

template <class Function>
struct Launch {
  Launch(Function function, bringup_dim3 grid, bringup_dim3 block) {
    args.struct_size = sizeof args;
    args.fn = reinterpret_cast<bringup_kernel_fn>(reinterpret_cast<void*>(function));
    args.grid = grid;
    args.block = block;
    args.name = "test::values";
  }
  Launch& address(void* given) { return put({BRINGUP_VALUE_ADDRESS, 8, {.address = given}}); }
  Launch& integer(int64_t given, uint32_t size) {
    return put({BRINGUP_VALUE_INT, size, {.integer = given}});
  }
  Launch& number(double given) { return put({BRINGUP_VALUE_FLOAT, 8, {.number = given}}); }
  Launch& put(bringup_value value) {
    values.push_back(value);
    args.values = values.data();
    args.nvalues = static_cast<int32_t>(values.size());
    return *this;
  }
  std::vector<bringup_value> values;
  bringup_launch_values_args args{};
};

struct Zeros : Memory {
  explicit Zeros(size_t count) : Memory(count * sizeof(int64_t)) {
    driver().fill_async(0, get(), 0, count * sizeof(int64_t), nullptr);
    driver().stream_synchronize(0, nullptr);
  }
};

Launch<decltype(&add)> adding(void* out, double number = 5, bringup_dim3 grid = {2, 1, 1}) {
  Launch launch(&add, grid, {3, 1, 1});
  launch.address(out).integer(-2, 1).integer(65535, 2).number(number);
  return launch;
}

TEST(a_wait_performs_what_the_worker_has_not_begun) {
  const Zeros out(1);
  const Stream stream;
  int here = 0;
  for (int64_t round = 1; round <= 200 || (here == 0 && round <= 200'000); ++round) {
    Launch launch(&note_thread, {1, 1, 1}, {1, 1, 1});
    launch.address(out.get());
    CHECK_EQ(driver().launch_values(0, stream.get(), &launch.args), BRINGUP_OK);
    CHECK_EQ(driver().stream_synchronize(0, stream.get()), BRINGUP_OK);
    CHECK_EQ(*static_cast<int64_t*>(out.get()), round);
    here += g_ran_on == std::this_thread::get_id() ? 1 : 0;
  }
  CHECK(here > 0);  // a worker that is always first has no time to wake up
}

TEST(a_few_independent_launches_behind_a_wait_are_over_when_their_calls_return) {
  constexpr int kFew = 8;
  const Zeros out(1);
  const Stream stream;
  const auto runs_here = [&](uint32_t work_items) {
    Launch launch(&note_thread, {1, 1, 1}, {1, 1, 1});
    launch.address(out.get());
    if (work_items > 0) launch.args.work_items = {work_items, 1, 1};
    CHECK_EQ(driver().launch_values(0, stream.get(), &launch.args), BRINGUP_OK);
    while (driver().stream_query(0, stream.get()) == BRINGUP_NOT_READY) std::this_thread::yield();
    return g_ran_on == std::this_thread::get_id();
  };
  CHECK(!runs_here(1));  // nobody has waited yet
  for (int round = 0; round < 2; ++round) {
    CHECK_EQ(driver().stream_synchronize(0, stream.get()), BRINGUP_OK);
    CHECK(!runs_here(0));
    for (int i = 0; i < kFew; ++i) CHECK(runs_here(1));
    CHECK(!runs_here(1));
  }
}

void divide(const bringup_position*, double* out) {
  volatile double three = 3;
  *out = 1 / three;
}

TEST(numbers_do_not_depend_on_how_the_caller_rounds) {
  const Zeros out(1);
  const Stream stream;
  for (int round = 0; round < 100; ++round) {
    Launch launch(&divide, {1, 1, 1}, {1, 1, 1});
    launch.address(out.get());
    std::fesetround(FE_UPWARD);  // the first one begins the worker
    driver().launch_values(0, stream.get(), &launch.args);
    driver().stream_synchronize(0, stream.get());
    CHECK_EQ(std::fegetround(), FE_UPWARD);
    std::fesetround(FE_TONEAREST);
    CHECK_EQ(*static_cast<double*>(out.get()), 1.0 / 3.0);
  }
}

TEST(a_wait_leaves_host_functions_to_the_worker) {
  const Stream stream;
  driver().host_func(
      0, stream.get(), [](void*) { g_ran_on = std::this_thread::get_id(); }, nullptr);
  CHECK_EQ(driver().stream_synchronize(0, stream.get()), BRINGUP_OK);
  CHECK(g_ran_on != std::this_thread::get_id());
}

TEST(every_thread_of_every_block_runs_once_with_its_values) {
  const Zeros memory(2 * 3 * 2 * 4 * 2 * 2);
  Launch launch(&add, {2, 3, 2}, {4, 2, 2});
  launch.address(memory.get()).integer(-2, 1).integer(65535, 2).number(5);
  CHECK_EQ(driver().launch_values(0, nullptr, &launch.args), BRINGUP_OK);
  launch.values[3].value.number = 1000;  // it was read
  CHECK_EQ(read(memory, 2 * 3 * 2 * 4 * 2 * 2), std::vector<int64_t>(2 * 3 * 2 * 4 * 2 * 2, 65525));
}

TEST(threads_of_a_block_meet_at_barriers_and_those_that_returned_are_not_waited_for) {
  constexpr uint32_t kThreads = 8;
  const Zeros memory(2 * kThreads);
  Launch launch(&neighbours, {2, 1, 1}, {kThreads, 1, 1});
  launch.address(memory.get());
  launch.args.shared_bytes = kThreads * sizeof(int64_t);
  CHECK_EQ(driver().launch_values(0, nullptr, &launch.args), BRINGUP_OK);
  std::vector<int64_t> expected;
  for (uint32_t block = 0; block < 2; ++block) {
    for (uint32_t i = 0; i < kThreads; ++i) {
      const int64_t next = (i + 1) % kThreads + 1;
      const int64_t after = (i + 2) % kThreads + 1;
      expected.push_back(i % 2 == 0 ? 100 * after + next : next);
    }
  }
  CHECK_EQ(read(memory, 2 * kThreads), expected);
}

TEST(what_cannot_be_launched_is_refused_at_once_and_says_why) {
  const Zeros memory(8);
  int64_t host = 0;
  const auto refuse = [](auto launch, const char* words) {
    CHECK_EQ(driver().launch_values(0, nullptr, &launch.args), BRINGUP_INVALID);
    CHECK(last_error().find(words) != std::string::npos);
  };
  auto launch = adding(memory.get());
  launch.args.fn = nullptr;
  refuse(launch, "without a function");
  launch = adding(memory.get());
  launch.args.struct_size = 8;
  refuse(launch, "struct_size");
  launch = adding(memory.get());
  launch.args.block.y = 0;
  refuse(launch, "0 threads a block in y");
  launch = adding(memory.get());
  launch.args.work_items = {5, 1, 1};  // of 2 x 3
  refuse(launch, "work items that are not its blocks times their threads");
  launch.args.work_items = {6, 0, 1};
  refuse(launch, "work items that are not its blocks times their threads");
  launch.args.work_items = {6, 1, 1};
  launch.args.shared_bytes = 8;
  refuse(launch, "work items and shared memory");
  for (const bool clusters : {true, false}) {
    launch = adding(memory.get());
    if (clusters) launch.args.cluster = {1, 1, 1};
    if (!clusters) launch.args.flags = BRINGUP_VALUES_COOPERATIVE;
    CHECK_EQ(driver().launch_values(0, nullptr, &launch.args), BRINGUP_UNSUPPORTED);
    CHECK(last_error().find("in clusters, cooperative") != std::string::npos);
  }
  launch = adding(memory.get());
  launch.args.nvalues = 65;
  refuse(launch, "65 values");
  refuse(adding(&host), "value 0 of a launch is an address outside this device's allocations");
  refuse(adding(memory.get()).integer(1, 3), "value 4 of a launch is an integer of 3 bytes");
  refuse(adding(memory.get()).put({BRINGUP_VALUE_FLOAT, 2, {}}), "floating-point number of 2");
  refuse(adding(memory.get()).put({BRINGUP_VALUE_ADDRESS, 4, {}}), "an address of 4 bytes");
  refuse(adding(memory.get()).put({9, 4, {}}), "value 4 of a launch is of kind 9");
  CHECK_EQ(read(memory, 8), std::vector<int64_t>(8, 0));
}

TEST(a_kernel_that_throws_fails_its_stream_and_the_next_one_runs) {
  const Stream stream;
  const Zeros memory(6);
  Launch failing(&fail, {4, 1, 1}, {16, 1, 1});
  CHECK_EQ(driver().launch_values(0, stream.get(), &failing.args), BRINGUP_OK);
  CHECK_EQ(driver().stream_synchronize(0, stream.get()), BRINGUP_KERNEL_FAILED);
  CHECK(last_error().find("operator 'test::values' failed in stream") != std::string::npos);
  CHECK(last_error().find("the kernel threw: always") != std::string::npos);
  Launch wrong(&wrong_barrier, {1, 1, 1}, {2, 1, 1});
  driver().launch_values(0, stream.get(), &wrong.args);
  CHECK_EQ(driver().stream_synchronize(0, stream.get()), BRINGUP_KERNEL_FAILED);
  CHECK(last_error().find("another position") != std::string::npos);
  auto launch = adding(memory.get());
  driver().launch_values(0, stream.get(), &launch.args);
  CHECK_EQ(read(memory, 6, stream.get()), std::vector<int64_t>(6, 65525));
}

TEST(launches_of_a_graph_run_with_the_values_that_they_began_with) {
  const Stream stream;
  const Zeros memory(12);
  Gate gate;
  auto launch = adding(memory.get(), -1);
  bringup_graph graph = nullptr;
  REQUIRE(driver().graph_create(0, &graph) == BRINGUP_OK);
  driver().graph_add_host_func(graph, Gate::wait, &gate);
  CHECK_EQ(driver().graph_add_values(graph, &launch.args), BRINGUP_OK);
  driver().graph_launch(graph, stream.get());  // adds 2 + 65535 to 6
  launch = adding(memory.get(), -50, {4, 1, 1});
  CHECK_EQ(driver().graph_update_values(graph, 0, &launch.args), BRINGUP_OK);
  driver().graph_launch(graph, stream.get());  // 100 + 65535 to 12
  launch = adding(memory.get(), -1000);
  gate.release();
  std::vector<int64_t> expected(12, 65635);
  for (size_t i = 0; i < 6; ++i) expected[i] += 65537;
  CHECK_EQ(read(memory, 12, stream.get()), expected);
  CHECK_EQ(driver().graph_update_values(graph, 1, &launch.args), BRINGUP_INVALID);
  launch = adding(&gate);
  CHECK_EQ(driver().graph_add_values(graph, &launch.args), BRINGUP_INVALID);
  driver().graph_destroy(graph);
}

int32_t nothing(void**, int32_t, const bringup_ctx*) { return 0; }

TEST(a_kernel_of_a_graph_is_updated_in_the_form_it_was_added_in) {
  const Zeros memory(6);
  auto values = adding(memory.get());
  bringup_launch plain{};
  plain.struct_size = sizeof plain;
  plain.fn = nothing;
  plain.grid = 1;
  bringup_graph graph = nullptr;
  REQUIRE(driver().graph_create(0, &graph) == BRINGUP_OK);
  plain.work_items = 1;
  CHECK_EQ(driver().graph_add_kernel(graph, &plain), BRINGUP_OK);
  plain.grid = 2;
  CHECK_EQ(driver().graph_add_kernel(graph, &plain), BRINGUP_INVALID);
  CHECK(last_error().find("of more blocks than work items") != std::string::npos);
  CHECK_EQ(driver().graph_update_kernel(graph, 0, &plain), BRINGUP_INVALID);
  plain.grid = 1;
  driver().graph_add_values(graph, &values.args);
  CHECK_EQ(driver().graph_update_values(graph, 0, &values.args), BRINGUP_INVALID);
  CHECK(last_error().find("kernel 0 of the graph was added in the other form") !=
        std::string::npos);
  CHECK_EQ(driver().graph_update_kernel(graph, 1, &plain), BRINGUP_INVALID);
  CHECK_EQ(driver().graph_update_values(graph, 1, &values.args), BRINGUP_OK);
  driver().graph_launch(graph, nullptr);
  CHECK_EQ(read(memory, 6), std::vector<int64_t>(6, 65525));
  driver().graph_destroy(graph);
}

TEST(a_launch_is_recorded_under_its_operator) {
  const Zeros memory(6);
  auto launch = adding(memory.get());
  REQUIRE(driver().profiler_start(0) == BRINGUP_OK);
  driver().launch_values(0, nullptr, &launch.args);
  driver().stream_synchronize(0, nullptr);
  driver().profiler_stop(0);
  bringup_record record{};
  record.struct_size = sizeof record;
  int32_t count = 0;
  uint64_t lost = 0;
  CHECK_EQ(driver().profiler_read(0, &record, 1, &count, &lost), BRINGUP_OK);
  REQUIRE(count == 1);
  CHECK_EQ(record.kind, static_cast<int32_t>(BRINGUP_RECORD_KERNEL));
  CHECK_EQ(std::string(record.name), "test::values");
  CHECK(record.end >= record.begin);
}

}  // namespace
