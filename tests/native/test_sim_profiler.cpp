// The simulated NPU's records of its work, and modules from memory.
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>

#include "check.h"
#include "sim_driver.h"

using namespace sim_test;

namespace {

const bool few_records = setenv("BRINGUP_SIM_RECORDS", "20", 1) == 0;

struct Read {
  std::vector<bringup_record> records;
  uint64_t lost = 0;
};

Read read_all(int32_t device = 0, int32_t at_once = 3) {
  Read read;
  for (;;) {
    std::vector<bringup_record> some(static_cast<size_t>(at_once));
    for (bringup_record& record : some) record.struct_size = sizeof record;
    int32_t count = 0;
    if (driver().profiler_read(device, some.data(), at_once, &count, &read.lost) != BRINGUP_OK) {
      throw std::runtime_error(last_error());
    }
    if (count == 0) return read;
    read.records.insert(read.records.end(), some.begin(), some.begin() + count);
  }
}

int64_t wall_time() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

constexpr int64_t kNap = 20'000'000;

int32_t nap(void**, int32_t, const bringup_ctx*) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::nanoseconds(kNap);
  while (std::chrono::steady_clock::now() < until) {
  }
  return 0;
}

TEST(each_piece_of_work_has_a_record_with_its_number_time_and_name) {
  REQUIRE(few_records);
  const Memory memory(1 << 12);
  const Memory other(1 << 12);  // of the other stream, which nothing orders with the default one
  std::vector<std::byte> host(1 << 12);
  const Stream stream;
  Launch launch(&nap, memory.get(), 8, 1);
  driver().fill_async(0, memory.get(), 1, 64, nullptr);  // before: no record
  REQUIRE(driver().profiler_start(0) == BRINGUP_OK);
  const int64_t before = wall_time();
  driver().fill_async(0, memory.get(), 1, 100, nullptr);
  driver().host_func(0, nullptr, [](void*) {}, nullptr);  // no work of the device
  REQUIRE(driver().launch(0, nullptr, &launch.launch) == BRINGUP_OK);
  const int64_t pattern = 4;
  driver().fill_wide_async(0, other.get(), &pattern, 8, 4, stream.get());
  driver().copy_async(BRINGUP_DEVICE_TO_HOST, 0, host.data(), 0, other.get(), 200, stream.get());
  driver().copy_2d_async(BRINGUP_DEVICE_TO_HOST, 0, host.data(), 64, 0, other.get(), 64, 16, 5,
                         stream.get());
  REQUIRE(driver().device_synchronize(0) == BRINGUP_OK);
  const int64_t after = wall_time();
  REQUIRE(driver().profiler_stop(0) == BRINGUP_OK);
  driver().fill_async(0, memory.get(), 1, 64, nullptr);  // after: no record
  driver().device_synchronize(0);

  std::map<std::pair<bringup_stream, uint64_t>, bringup_record> by_number;
  const Read read = read_all();
  CHECK_EQ(read.lost, 0u);
  REQUIRE(read.records.size() == 5);
  for (const bringup_record& record : read.records) {
    by_number[{record.stream, record.number}] = record;
    CHECK_EQ(record.device, 0);
    CHECK_EQ(record.struct_size, sizeof(bringup_record));
    CHECK(before <= record.begin && record.begin <= record.end && record.end <= after);
  }
  const auto is = [&](bringup_stream of, uint64_t number, int32_t kind, uint64_t bytes) {
    const auto found = by_number.find({of, number});
    CHECK(found != by_number.end() && found->second.kind == kind && found->second.bytes == bytes);
    return found->second;
  };
  is(nullptr, 0, BRINGUP_RECORD_FILL, 100);
  const bringup_record kernel = is(nullptr, 1, BRINGUP_RECORD_KERNEL, 0);
  CHECK_EQ(std::string(kernel.name), "test::kernel");
  CHECK(kernel.end - kernel.begin >= kNap);
  is(stream.get(), 0, BRINGUP_RECORD_FILL, 32);
  is(stream.get(), 1, BRINGUP_RECORD_COPY, 200);
  is(stream.get(), 2, BRINGUP_RECORD_COPY, 80);
}

TEST(a_graph_is_one_record) {
  const Memory memory(64);
  Launch launch(&add_number, memory.get(), 1, 1);
  bringup_graph graph = nullptr;
  driver().graph_create(0, &graph);
  driver().graph_add_kernel(graph, &launch.launch);
  driver().profiler_start(0);
  driver().graph_launch(graph, nullptr);
  driver().device_synchronize(0);
  driver().profiler_stop(0);
  driver().graph_destroy(graph);
  const Read read = read_all();
  REQUIRE(read.records.size() == 1);
  CHECK_EQ(read.records[0].kind, BRINGUP_RECORD_GRAPH);
}

TEST(records_without_room_are_counted) {
  const Memory memory(64);
  driver().profiler_start(0);
  for (int i = 0; i < 25; ++i) driver().fill_async(0, memory.get(), 1, 64, nullptr);
  driver().device_synchronize(0);
  driver().profiler_stop(0);
  const Read read = read_all();
  CHECK_EQ(read.records.size(), 20u);
  CHECK_EQ(read.lost, 5u);
  driver().profiler_start(0);  // forgets the former recording
  driver().profiler_stop(0);
  CHECK_EQ(read_all().records.size(), 0u);
  CHECK_EQ(read_all().lost, 0u);
}

TEST(a_device_records_for_itself) {
  const Memory here(64);
  const Memory there(64, 1);
  driver().profiler_start(1);
  driver().fill_async(0, here.get(), 1, 64, nullptr);
  driver().fill_async(1, there.get(), 1, 64, nullptr);
  driver().device_synchronize(0);
  driver().device_synchronize(1);
  driver().profiler_stop(1);
  CHECK_EQ(read_all(0).records.size(), 0u);
  CHECK_EQ(read_all(1).records.size(), 1u);
}

TEST(start_and_stop_come_in_turn) {
  CHECK_EQ(driver().profiler_stop(0), BRINGUP_INVALID);
  CHECK_EQ(last_error(), "the device does not record its work");
  CHECK_EQ(driver().profiler_start(0), BRINGUP_OK);
  CHECK_EQ(driver().profiler_start(0), BRINGUP_INVALID);
  CHECK_EQ(last_error(), "the device records its work already");
  CHECK_EQ(driver().profiler_stop(0), BRINGUP_OK);
  CHECK_EQ(driver().profiler_start(7), BRINGUP_INVALID);
}

TEST(a_record_is_written_no_further_than_its_struct_size) {
  const Memory memory(64);
  driver().profiler_start(0);
  driver().fill_async(0, memory.get(), 1, 64, nullptr);
  driver().fill_async(0, memory.get(), 1, 32, nullptr);
  driver().device_synchronize(0);
  driver().profiler_stop(0);
  constexpr uint32_t kKnown = offsetof(bringup_record, name);  // of an older kit
  std::vector<std::byte> room(3 * sizeof(bringup_record), std::byte{0x5a});
  for (size_t i = 0; i < 2; ++i) std::memcpy(&room[i * kKnown], &kKnown, sizeof kKnown);
  int32_t count = 0;
  uint64_t lost = 0;
  driver().profiler_read(0, reinterpret_cast<bringup_record*>(room.data()), 2, &count, &lost);
  CHECK_EQ(count, 2);
  uint64_t bytes = 0;
  std::memcpy(&bytes, &room[kKnown + offsetof(bringup_record, bytes)], sizeof bytes);
  CHECK_EQ(bytes, 32u);
  CHECK(room[2 * kKnown] == std::byte{0x5a});
}

std::string content_of(const char* path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

TEST(a_module_is_loaded_from_memory) {
  const std::string content = content_of(TEST_KERNELS "/add_one.so");
  void* module = nullptr;
  REQUIRE(driver().module_load_data(0, content.data(), content.size(), &module) == BRINGUP_OK);
  bringup_kernel_fn fn = nullptr;
  REQUIRE(driver().get_function(module, "run", &fn) == BRINGUP_OK);
  int64_t value = 41;
  void* args[] = {&value};
  CHECK_EQ(fn(args, 1, nullptr), 0);
  CHECK_EQ(value, 42);
  CHECK_EQ(driver().get_function(module, "walk", &fn), BRINGUP_INVALID);
  CHECK_EQ(driver().module_unload(module), BRINGUP_OK);
}

// A loader that goes by the file's name would give the first module again.
TEST(each_module_from_memory_is_its_own) {
  const std::string adds = content_of(TEST_KERNELS "/add_one.so");
  const std::string other = content_of(TEST_KERNELS "/future_abi.so");
  bringup_kernel_fn fns[3] = {};
  void* modules[3] = {};
  int i = 0;
  for (const std::string* content : {&adds, &other, &adds}) {
    REQUIRE(driver().module_load_data(0, content->data(), content->size(), &modules[i]) ==
            BRINGUP_OK);
    REQUIRE(driver().get_function(modules[i], "run", &fns[i]) == BRINGUP_OK);
    ++i;
  }
  CHECK_EQ(fns[1](nullptr, 9, nullptr), 9);
  CHECK(fns[0] != fns[2]);
  for (void* module : modules) driver().module_unload(module);
}

TEST(what_is_no_module_is_refused) {
  void* module = nullptr;
  const std::string text = "no library";
  CHECK_EQ(driver().module_load_data(0, text.data(), text.size(), &module), BRINGUP_INVALID);
  CHECK(!last_error().empty());
  const std::string unresolved = content_of(TEST_KERNELS "/unresolved.so");
  CHECK_EQ(driver().module_load_data(0, unresolved.data(), unresolved.size(), &module),
           BRINGUP_INVALID);
  CHECK(last_error().find("nobody_defines_this") != std::string::npos);
  CHECK_EQ(driver().module_load_data(9, text.data(), text.size(), &module), BRINGUP_INVALID);
}

}  // namespace
