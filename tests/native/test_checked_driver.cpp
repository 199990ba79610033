// Drivers that lie, one way each, and the sentence that each lie gets; limits for waits.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <limits>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "driver/checked.h"
#include "driver/time_limits.h"
#include "driver/work_numbers.h"

namespace {

namespace driver = bringup::driver;

// What the driver below answers; each test changes one answer.
struct Answers {
  int32_t status = BRINGUP_OK;
  void* address = reinterpret_cast<void*>(0x10000);
  void* handle = reinterpret_cast<void*>(0x40);
  size_t free_bytes = 10;
  size_t total = 100;
  double milliseconds = 1;
  const char* words = "the driver's own words";
  std::function<void(bringup_device_props*)> props;
  std::vector<bringup_record> records;
  int32_t record_count = -1;  // to say another number than there is
  std::atomic<bool> pending{false};
  std::atomic<int> hang_milliseconds{0};
};

Answers& answers() {
  static Answers one;
  return one;
}

int32_t hung_status() {
  const int milliseconds = answers().hang_milliseconds;
  if (milliseconds > 0) std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
  return answers().status;
}

template <class Handle>
int32_t give(Handle* handle) {
  *handle = static_cast<Handle>(answers().handle);
  return answers().status;
}

int32_t query() { return answers().pending ? BRINGUP_NOT_READY : answers().status; }

bringup_driver lying() {
  bringup_driver table{};
  table.struct_size = sizeof table;
  table.abi_version = BRINGUP_DRIVER_ABI;
  table.device_count = [](int32_t* count) { return *count = 1, answers().status; };
  table.device_props = [](int32_t, bringup_device_props* props) {
    std::strcpy(props->name, "Board");
    std::strcpy(props->arch, "b-1");
    props->total_memory = 100;
    if (answers().props) answers().props(props);
    return answers().status;
  };
  table.device_synchronize = [](int32_t) { return answers().status; };
  table.mem_alloc = [](int32_t, size_t, void** address) {
    return *address = answers().address, answers().status;
  };
  table.mem_free = [](int32_t, void*) { return answers().status; };
  table.mem_info = [](int32_t, size_t* free_bytes, size_t* total) {
    *free_bytes = answers().free_bytes;
    *total = answers().total;
    return answers().status;
  };
  table.copy_async = [](bringup_copy_kind, int32_t, void*, int32_t, const void*, size_t,
                        bringup_stream) { return hung_status(); };
  table.fill_async = [](int32_t, void*, uint8_t, size_t, bringup_stream) {
    return answers().status;
  };
  table.stream_create = [](int32_t, int32_t, bringup_stream* stream) {
    *stream = static_cast<bringup_stream>(answers().handle);
    return answers().status;
  };
  table.stream_destroy = [](bringup_stream) { return answers().status; };
  table.stream_synchronize = [](int32_t, bringup_stream) { return answers().status; };
  table.stream_query = [](int32_t, bringup_stream) { return query(); };
  table.event_create = [](int32_t, int32_t, bringup_event* event) {
    *event = static_cast<bringup_event>(answers().handle);
    return answers().status;
  };
  table.event_destroy = [](bringup_event) { return answers().status; };
  table.event_record = [](bringup_event, int32_t, bringup_stream) { return answers().status; };
  table.event_wait = [](bringup_event, int32_t, bringup_stream) { return answers().status; };
  table.event_query = [](bringup_event) { return query(); };
  table.event_synchronize = [](bringup_event) { return answers().status; };
  table.event_elapsed = [](bringup_event, bringup_event, double* milliseconds) {
    return *milliseconds = answers().milliseconds, answers().status;
  };
  table.last_error = [] { return answers().words; };
  table.host_alloc = [](size_t, void** address) {
    return *address = answers().address, answers().status;
  };
  table.host_free = [](void*) { return answers().status; };
  table.host_view = [](int32_t, const void*, void** address) {
    return *address = answers().address, answers().status;
  };
  table.host_func = [](int32_t, bringup_stream, void (*)(void*), void*) {
    return answers().status;
  };
  table.module_load = [](int32_t, const char*, void** module) { return give(module); };
  table.module_unload = [](void*) { return answers().status; };
  table.get_function = [](void*, const char*, bringup_kernel_fn* fn) {
    *fn = reinterpret_cast<bringup_kernel_fn>(answers().handle);
    return answers().status;
  };
  table.launch = [](int32_t, bringup_stream, const bringup_launch*) { return hung_status(); };
  table.graph_create = [](int32_t, bringup_graph* graph) {
    *graph = static_cast<bringup_graph>(answers().handle);
    return answers().status;
  };
  table.capabilities = BRINGUP_HAS_COPY_2D | BRINGUP_HAS_WIDE_FILL;
  table.copy_2d_async = [](bringup_copy_kind, int32_t, void*, size_t, int32_t, const void*, size_t,
                           size_t, size_t, bringup_stream) { return answers().status; };
  table.fill_wide_async = [](int32_t, void*, const void*, uint32_t, size_t, bringup_stream) {
    return answers().status;
  };
  table.capabilities |= BRINGUP_HAS_MODULE_DATA | BRINGUP_HAS_PROFILER | BRINGUP_HAS_NATIVE |
                        BRINGUP_HAS_STREAM_CAPTURE;
  table.module_load_data = [](int32_t, const void*, size_t, void** module) { return give(module); };
  table.profiler_start = [](int32_t) { return answers().status; };
  table.profiler_stop = [](int32_t) { return answers().status; };
  table.native_handle = [](int32_t, bringup_stream, int32_t, void** handle) {
    return *handle = answers().handle, answers().status;
  };
  table.stream_capture_query = [](int32_t, bringup_stream, int32_t* state) {
    return *state = answers().record_count, answers().status;
  };
  table.profiler_read = [](int32_t, bringup_record* records, int32_t capacity, int32_t* count,
                           uint64_t* lost) {
    const auto& all = answers().records;
    *count = std::min(capacity, static_cast<int32_t>(all.size()));
    std::copy_n(all.begin(), *count, records);
    if (answers().record_count >= 0) *count = answers().record_count;
    *lost = 3;
    return answers().status;
  };
  table.graph_destroy = [](bringup_graph) { return answers().status; };
  table.graph_launch = [](bringup_graph, bringup_stream) { return answers().status; };
  return table;
}

// A checked table over fresh answers.
const bringup_driver& table() {
  static const bringup_driver one = driver::checked(lying());
  return one;
}

void reset() {
  Answers& all = answers();
  all.status = BRINGUP_OK;
  all.address = reinterpret_cast<void*>(0x10000);
  all.handle = reinterpret_cast<void*>(0x40);
  all.free_bytes = 10;
  all.milliseconds = 1;
  all.words = "the driver's own words";
  all.props = nullptr;
  all.records.clear();
  all.record_count = -1;
  all.pending = false;
  all.hang_milliseconds = 0;
}

void* at(uintptr_t address) { return reinterpret_cast<void*>(address); }
bringup_stream stream_at(uintptr_t handle) { return static_cast<bringup_stream>(at(handle)); }

// Calls, expects a failure, and gives the words for it.
template <class Call>
std::string refused(Call&& call) {
  CHECK(call() == BRINGUP_ERROR);
  return table().last_error();
}

void expect(const std::string& said, const std::string& part) {
  if (said.find(part) == std::string::npos) {
    check::fail(__FILE__, __LINE__, "got: " + said + "; expected: " + part);
  }
}

int32_t allocate(int32_t device, size_t bytes) {
  void* address = nullptr;
  return table().mem_alloc(device, bytes, &address);
}

TEST(memory_that_cannot_be_what_was_asked_for) {
  reset();
  const auto refused_at = [&](uintptr_t address, size_t bytes) {
    answers().address = at(address);
    return refused([&] { return allocate(0, bytes); });
  };
  expect(refused_at(0, 64), "mem_alloc returned BRINGUP_OK and no address");
  expect(refused_at(0x10008, 64),
         "mem_alloc gave the address 0x10008, which is not 64-byte aligned");
  expect(refused_at(std::numeric_limits<uintptr_t>::max() - 63, 640),
         "behind which there are no 640 bytes");
  answers().address = at(0x20000);
  CHECK(allocate(0, 0x1000) == BRINGUP_OK);
  for (const uintptr_t address : {0x20000, 0x20fc0, 0x1ffc0}) {
    expect(refused_at(address, 0x80),
           "which overlap the 4096 bytes at 0x20000 that are still in use");
  }
  answers().address = at(0x20000);
  CHECK(allocate(1, 0x1000) == BRINGUP_OK);  // of another device
  for (const uintptr_t address : {0x21000, 0x1ff80}) {
    answers().address = at(address);
    CHECK(allocate(0, 0x80) == BRINGUP_OK);  // right beside it
  }
  CHECK(table().mem_free(0, at(0x20000)) == BRINGUP_OK);
  answers().address = at(0x20400);
  CHECK(allocate(0, 0x80) == BRINGUP_OK);
}

TEST(native_objects_and_captures_that_cannot_be) {
  reset();
  void* handle = nullptr;
  const auto handle_of = [&](int32_t kind) {
    return table().native_handle(0, nullptr, kind, &handle);
  };
  answers().handle = nullptr;
  expect(refused([&] { return handle_of(BRINGUP_NATIVE_QUEUE); }),
         "native_handle returned BRINGUP_OK and no handle");
  CHECK_EQ(handle_of(BRINGUP_NATIVE_DEVICE), BRINGUP_OK);  // may be the number 0
  int32_t state = 0;
  answers().record_count = 3;
  expect(refused([&] { return table().stream_capture_query(0, stream_at(0x40), &state); }),
         "stream_capture_query gave the state 3, which there is not");
}

TEST(a_driver_that_cannot_say_what_is_free_has_no_more_than_its_total) {
  reset();
  bringup_driver silent = lying();
  silent.mem_info = nullptr;
  const bringup_driver checked = driver::checked(silent);
  bringup_device_props props{};
  props.struct_size = sizeof props;
  CHECK_EQ(checked.device_props(0, &props), BRINGUP_OK);
  void* address = nullptr;
  answers().address = at(0x7000000);
  const int32_t more = checked.mem_alloc(0, 1 << 20, &address);
  CHECK_EQ(more, BRINGUP_OUT_OF_MEMORY);
  expect(checked.last_error(), "beyond the total_memory of device 0");
  driver::checked(lying());  // the process has one driver
}

TEST(memory_that_was_not_freed_is_still_in_use) {
  reset();
  answers().address = at(0x40000);
  CHECK(allocate(0, 0x1000) == BRINGUP_OK);
  answers().status = BRINGUP_ERROR;
  CHECK(table().mem_free(0, at(0x40000)) == BRINGUP_ERROR);
  CHECK(table().mem_free(0, at(0xb0000)) == BRINGUP_ERROR);  // of which nobody knows
  answers().status = BRINGUP_OK;
  expect(refused([&] { return allocate(0, 0x80); }),
         "which overlap the 4096 bytes at 0x40000 that are still in use");
  answers().address = at(0xb0000);
  CHECK(allocate(0, 0x80) == BRINGUP_OK);
  CHECK(table().mem_free(0, at(0x40000)) == BRINGUP_OK);
  answers().address = at(0x40000);
  CHECK(allocate(0, 0x80) == BRINGUP_OK);
}

TEST(handles_that_are_none_or_somebody_else_s) {
  reset();
  answers().handle = nullptr;
  bringup_stream stream{};
  bringup_event event{};
  bringup_graph graph{};
  void* module = nullptr;
  bringup_kernel_fn fn = nullptr;
  expect(refused([&] { return table().stream_create(0, 0, &stream); }),
         "stream_create returned BRINGUP_OK and no handle");
  expect(refused([&] { return table().event_create(0, 0, &event); }),
         "event_create returned BRINGUP_OK and no handle");
  expect(refused([&] { return table().graph_create(0, &graph); }),
         "graph_create returned BRINGUP_OK and no handle");
  expect(refused([&] { return table().module_load(0, "x", &module); }),
         "module_load returned BRINGUP_OK and no module");
  expect(refused([&] { return table().module_load_data(0, "x", 1, &module); }),
         "module_load_data returned BRINGUP_OK and no module");
  expect(refused([&] { return table().get_function(module, "f", &fn); }),
         "get_function returned BRINGUP_OK and no function");
  answers().handle = at(0x80);
  CHECK(table().stream_create(0, 0, &stream) == BRINGUP_OK);
  CHECK(table().event_create(0, 0, &event) == BRINGUP_OK);
  CHECK(table().graph_create(0, &graph) == BRINGUP_OK);
  expect(refused([&] { return table().stream_create(1, 0, &stream); }),
         "stream_create gave a handle that is still in use");
  expect(refused([&] { return table().event_create(0, 0, &event); }),
         "event_create gave a handle that is still in use");
  expect(refused([&] { return table().graph_create(0, &graph); }),
         "graph_create gave a handle that is still in use");
  CHECK(table().stream_destroy(stream_at(0x80)) == BRINGUP_OK);
  CHECK(table().event_destroy(static_cast<bringup_event>(at(0x80))) == BRINGUP_OK);
  CHECK(table().graph_destroy(static_cast<bringup_graph>(at(0x80))) == BRINGUP_OK);
  CHECK(table().stream_create(0, 0, &stream) == BRINGUP_OK);
  CHECK(table().event_create(0, 0, &event) == BRINGUP_OK);
  CHECK(table().graph_create(0, &graph) == BRINGUP_OK);
  table().stream_destroy(stream);
}

TEST(facts_about_a_device) {
  reset();
  bringup_device_props props{};
  props.struct_size = sizeof props;
  const auto refused_with = [&](std::function<void(bringup_device_props*)> lie) {
    answers().props = std::move(lie);
    return refused([&] { return table().device_props(0, &props); });
  };
  expect(refused_with([](auto* p) { std::memset(p->name, 'x', sizeof p->name); }),
         "device_props gave a name without an end");
  expect(refused_with([](auto* p) { std::memset(p->arch, 'x', sizeof p->arch); }),
         "device_props gave an arch without an end");
  expect(refused_with([](auto* p) { p->max_allocation = 101; }),
         "says that one allocation has up to 101 bytes, more than the 100 of the device");
  expect(refused_with([](auto* p) { p->total_memory = 0; }),
         "device_props says that the device has no memory");
  expect(refused_with([](auto* p) { std::memset(reinterpret_cast<char*>(p) + sizeof *p, 1, 8); }),
         "device_props wrote behind the structure that it was given");
  answers().props = nullptr;
  struct {  // of a kit that knows fewer facts: nothing behind them is written
    bringup_device_props props;
  } small{};
  small.props.struct_size = offsetof(bringup_device_props, core_count);
  small.props.core_count = 77;
  CHECK(table().device_props(0, &small.props) == BRINGUP_OK);
  CHECK_EQ(std::string(small.props.name), "Board");
  CHECK_EQ(small.props.core_count, 77u);
  size_t free_bytes = 0;
  size_t total = 0;
  answers().free_bytes = 101;
  expect(refused([&] { return table().mem_info(0, &free_bytes, &total); }),
         "mem_info says that 101 bytes of 100 are free");
}

TEST(statuses) {
  reset();
  for (const int32_t status : {-1, 8, 57}) {
    answers().status = status;
    expect(refused([] { return table().fill_async(0, nullptr, 0, 1, nullptr); }),
           "fill_async returned the status " + std::to_string(status) + ", which there is not");
    expect(refused([] { return table().event_query(nullptr); }), "event_query returned the status");
  }
  answers().status = BRINGUP_NOT_READY;
  CHECK(table().stream_query(0, nullptr) == BRINGUP_NOT_READY);
  CHECK(table().event_query(nullptr) == BRINGUP_NOT_READY);
  const std::vector<std::pair<const char*, std::function<int32_t()>>> no_queries = {
      {"device_synchronize", [] { return table().device_synchronize(0); }},
      {"mem_free", [] { return table().mem_free(0, nullptr); }},
      {"stream_synchronize", [] { return table().stream_synchronize(0, nullptr); }},
      {"event_record", [] { return table().event_record(nullptr, 0, nullptr); }},
      {"event_wait", [] { return table().event_wait(nullptr, 0, nullptr); }},
      {"event_synchronize", [] { return table().event_synchronize(nullptr); }},
      {"host_free", [] { return table().host_free(nullptr); }},
      {"host_func", [] { return table().host_func(0, nullptr, nullptr, nullptr); }},
      {"module_unload", [] { return table().module_unload(nullptr); }},
      {"graph_launch", [] { return table().graph_launch(nullptr, nullptr); }},
      {"copy_2d_async",
       [] {
         return table().copy_2d_async(BRINGUP_HOST_TO_DEVICE, 0, nullptr, 1, 0, nullptr, 1, 1, 1,
                                      nullptr);
       }},
      {"fill_wide_async",
       [] { return table().fill_wide_async(0, nullptr, nullptr, 8, 1, nullptr); }},
  };
  for (const auto& [name, call] : no_queries) {
    expect(refused(call),
           std::string(name) + " returned BRINGUP_NOT_READY, which only queries may");
  }
}

TEST(the_driver_s_own_words_and_text_that_does_not_end) {
  reset();
  answers().status = BRINGUP_INVALID;
  CHECK(table().fill_async(0, nullptr, 0, 1, nullptr) == BRINGUP_INVALID);
  CHECK_EQ(std::string(table().last_error()), "the driver's own words");
  answers().status = 99;
  refused([] { return table().fill_async(0, nullptr, 0, 1, nullptr); });
  answers().status = BRINGUP_ERROR;  // the next call's words are its own
  table().fill_async(0, nullptr, 0, 1, nullptr);
  CHECK_EQ(std::string(table().last_error()), "the driver's own words");
  const std::string endless(5000, 'x');
  answers().words = endless.c_str();
  expect(table().last_error(), "xxx... (the text of last_error() does not end)");
  answers().words = nullptr;
  CHECK_EQ(std::string(table().last_error()), "");
}

TEST(addresses_of_the_host_and_times) {
  reset();
  void* address = nullptr;
  double milliseconds = 0;
  for (const double wrong :
       {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    answers().milliseconds = wrong;
    expect(refused([&] { return table().event_elapsed(nullptr, nullptr, &milliseconds); }),
           "event_elapsed gave no finite number of milliseconds");
  }
  answers().address = nullptr;
  expect(refused([&] { return table().host_alloc(64, &address); }),
         "host_alloc returned BRINGUP_OK and no address");
  expect(refused([&] { return table().host_view(0, at(0x40), &address); }),
         "host_view returned BRINGUP_OK and no address");
}

TEST(records_that_cannot_be) {
  reset();
  bringup_record good{};
  good.kind = BRINGUP_RECORD_KERNEL;
  good.begin = 5;
  good.end = 5;
  std::vector<bringup_record> records(2);
  int32_t count = 0;
  uint64_t lost = 0;
  const auto read = [&] { return table().profiler_read(0, records.data(), 2, &count, &lost); };
  answers().records = {good};
  CHECK(read() == BRINGUP_OK);
  CHECK_EQ(count, 1);
  CHECK_EQ(lost, 3u);
  for (const int32_t wrong : {3, 1000}) {
    answers().record_count = wrong;
    expect(refused(read),
           "profiler_read gave " + std::to_string(wrong) + " records where there is room for 2");
    CHECK_EQ(count, 0);
  }
  answers().record_count = -1;
  const auto refused_with = [&](const std::function<void(bringup_record&)>& lie) {
    answers().records = {good, good};
    lie(answers().records[1]);
    return refused(read);
  };
  expect(refused_with([](bringup_record& record) { record.kind = 0; }),
         "profiler_read gave a record of kind 0, which there is not");
  expect(refused_with([](bringup_record& record) { record.kind = 5; }),
         "profiler_read gave a record of kind 5, which there is not");
  expect(refused_with([](bringup_record& record) { record.device = 1; }),
         "profiler_read gave a record of device 1");
  expect(refused_with([](bringup_record& record) { record.end = 4; }),
         "profiler_read gave a record of work that ended before it began");
  expect(refused_with(
             [](bringup_record& record) { std::memset(record.name, 'x', sizeof record.name); }),
         "profiler_read gave a record with a name without an end");
  CHECK_EQ(count, 0);
}

int32_t give_fill(int32_t device, bringup_stream stream) {
  return table().fill_async(device, nullptr, 0, 1, stream);
}

TEST(work_is_numbered_for_each_stream_while_its_device_records) {
  reset();
  const auto number = [](int32_t device, bringup_stream stream) {
    driver::forget_last_work();
    give_fill(device, stream);
    const auto work = driver::last_work();
    CHECK(!work || (work->device == device && work->stream == stream));
    return work ? static_cast<int>(work->number) : -1;
  };
  CHECK_EQ(number(0, nullptr), -1);
  CHECK(table().profiler_start(0) == BRINGUP_OK);
  CHECK_EQ(number(0, nullptr), 0);
  CHECK_EQ(number(0, nullptr), 1);
  CHECK_EQ(number(0, stream_at(0x900)), 0);
  CHECK_EQ(number(1, nullptr), -1);  // another device
  answers().status = BRINGUP_INVALID;
  CHECK_EQ(number(0, nullptr), -1);  // what is refused has no number
  answers().status = BRINGUP_OK;
  CHECK_EQ(number(0, nullptr), 2);
  table().copy_async(BRINGUP_HOST_TO_DEVICE, 0, nullptr, 1, nullptr, 1, nullptr);
  table().copy_async(BRINGUP_DEVICE_TO_DEVICE, 1, nullptr, 0, nullptr, 1, nullptr);
  table().fill_wide_async(0, nullptr, nullptr, 8, 1, nullptr);
  CHECK_EQ(number(0, nullptr), 6);
  CHECK(table().profiler_stop(0) == BRINGUP_OK);
  CHECK_EQ(number(0, nullptr), -1);
  CHECK(table().profiler_start(0) == BRINGUP_OK);
  CHECK_EQ(number(0, nullptr), 0);  // counted anew
  table().profiler_stop(0);
}

TEST(threads_that_give_work_to_one_stream_get_different_numbers) {
  reset();
  table().profiler_start(0);
  constexpr size_t kEach = 500;
  std::vector<std::vector<uint64_t>> numbers(4);
  std::vector<std::jthread> threads;
  for (auto& own : numbers) {
    threads.emplace_back([&own] {
      for (size_t i = 0; i < kEach; ++i) {
        give_fill(0, nullptr);
        own.push_back(driver::last_work()->number);
      }
    });
  }
  threads.clear();
  table().profiler_stop(0);
  std::set<uint64_t> all;
  for (const auto& own : numbers) {
    CHECK(std::is_sorted(own.begin(), own.end()));
    all.insert(own.begin(), own.end());
  }
  CHECK_EQ(all.size(), 4 * kEach);
  CHECK_EQ(*all.rbegin(), 4 * kEach - 1);
}

TEST(what_a_driver_has_not_is_not_there_and_what_it_has_goes_through) {
  reset();
  CHECK(table().graph_update_kernel == nullptr);
  CHECK(table().graph_add_copy == nullptr);
  int32_t count = 0;
  CHECK(table().device_count(&count) == BRINGUP_OK);
  CHECK_EQ(count, 1);
  answers().status = BRINGUP_OUT_OF_MEMORY;
  CHECK(allocate(0, 64) == BRINGUP_OUT_OF_MEMORY);  // an honest failure is no live memory
  answers().status = BRINGUP_OK;
  answers().address = at(0x90000);
  CHECK(allocate(0, 64) == BRINGUP_OK);
}

TEST(waits_end_with_an_error_when_their_time_is_over) {
  reset();
  driver::set_wait_limit(0.05, false);
  answers().pending = true;
  expect(refused([] { return table().stream_synchronize(0, stream_at(0x40)); }),
         "stream_synchronize: work of stream 0x40 of device 0 has not ended after 0.1 s");
  expect(refused([] { return table().event_synchronize(nullptr); }),
         "event_synchronize: what the event was recorded after has not ended");
  expect(refused([] { return table().device_synchronize(0); }),
         "device_synchronize: work of stream");
  answers().pending = false;
  CHECK(table().stream_synchronize(0, nullptr) == BRINGUP_OK);
  CHECK(table().device_synchronize(0) == BRINGUP_OK);
  answers().pending = true;  // work that ends in time
  std::thread ending([] {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    answers().pending = false;
  });
  CHECK(table().event_synchronize(nullptr) == BRINGUP_OK);
  ending.join();
  driver::set_wait_limit(0, false);
}

TEST(threads_call_at_once_watched_and_not) {
  reset();
  for (const double limit : {0.0, 5.0}) {
    driver::set_wait_limit(limit, false);
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([] {
        for (int i = 0; i < 2000; ++i) {
          table().copy_async(BRINGUP_HOST_TO_DEVICE, 0, nullptr, 0, nullptr, 1, nullptr);
          table().stream_query(0, nullptr);
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  driver::set_wait_limit(0, false);
}

}  // namespace
