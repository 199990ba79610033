// Reading a driver's table: what is refused, what an older or newer driver's table becomes, and the
// functions that stand where a driver has none.
#include <cstddef>
#include <cstring>
#include <string>
#include <vector>

#include "check.h"
#include "driver/checked.h"
#include "driver/functions.h"
#include "driver/table.h"

namespace {

namespace driver = bringup::driver;

// --- a driver of the required functions only, on ordinary memory, that counts what it is asked

struct Board {
  int ready_after = 0;  // event_query says NOT_READY that often
  int records = 0;
  int queries = 0;
  int copies = 0;
  int calls_after_shutdown = 0;
  bool is_shut_down = false;
  std::vector<bringup_stream> synchronized;
  bringup_stream failing_stream = nullptr;
  std::string words;
};
Board& board() {
  static Board one;
  return one;
}

int32_t asked() {
  if (board().is_shut_down) ++board().calls_after_shutdown;
  return BRINGUP_OK;
}

int32_t copy_async(bringup_copy_kind, int32_t, void* dst, int32_t, const void* src, size_t bytes,
                   bringup_stream) {
  ++board().copies;
  std::memcpy(dst, src, bytes);
  return asked();
}

template <class Handle>
int32_t make(Handle* handle) {
  static uintptr_t next = 0x1000;
  *handle = reinterpret_cast<Handle>(next += 16);
  return asked();
}

bringup_driver required_only() {
  bringup_driver table{};
  table.struct_size = offsetof(bringup_driver, event_query) + sizeof table.event_query;
  table.abi_version = BRINGUP_DRIVER_ABI;
  table.device_name = "board";
  table.device_count = [](int32_t* count) { return *count = 2, asked(); };
  table.device_props = [](int32_t, bringup_device_props* props) {
    std::strcpy(props->name, "Board");
    std::strcpy(props->arch, "b-1");
    props->total_memory = 4096;
    props->alignment = 256;
    return asked();
  };
  table.mem_alloc = [](int32_t, size_t, void** address) {
    static uintptr_t next = 0x100000;
    *address = reinterpret_cast<void*>(next += 0x10000);
    return asked();
  };
  table.mem_free = [](int32_t, void*) { return asked(); };
  table.copy_async = &copy_async;
  table.stream_create = [](int32_t, int32_t, bringup_stream* stream) { return make(stream); };
  table.stream_synchronize = [](int32_t, bringup_stream stream) -> int32_t {
    board().synchronized.push_back(stream);
    if (stream != board().failing_stream || stream == nullptr) return BRINGUP_OK;
    board().words = "the stream failed";
    return BRINGUP_KERNEL_FAILED;
  };
  table.event_create = [](int32_t, int32_t, bringup_event* event) { return make(event); };
  table.event_destroy = [](bringup_event) { return asked(); };
  table.event_record = [](bringup_event, int32_t, bringup_stream) {
    ++board().records;
    return asked();
  };
  table.event_wait = [](bringup_event, int32_t, bringup_stream) { return asked(); };
  table.event_query = [](bringup_event) -> int32_t {
    ++board().queries;
    if (board().ready_after == 0) return BRINGUP_OK;
    --board().ready_after;
    return BRINGUP_NOT_READY;
  };
  return table;
}

bringup_driver& given() {
  static bringup_driver table;
  return table;
}
const bringup_driver* get(uint32_t) { return &given(); }

// The whole of the header, with last_error.
bringup_driver of_today() {
  bringup_driver table = required_only();
  table.struct_size = sizeof table;
  table.last_error = [] { return board().words.c_str(); };
  return table;
}

bringup_driver checked(const bringup_driver& table) {
  board() = Board{};
  given() = table;
  return driver::checked(driver::read_table(&get));
}

std::string refusal(const bringup_driver& table) {
  given() = table;
  try {
    driver::read_table(&get);
  } catch (const driver::Refused& why) {
    return why.what();
  }
  return "";
}

// --- reading

TEST(twelve_functions_are_enough) { CHECK_EQ(refusal(required_only()), ""); }

TEST(each_of_the_twelve_is_named_when_it_is_missing) {
  int missing = 0;
#define WITHOUT(name, ...)                                                                      \
  {                                                                                             \
    bringup_driver table = required_only();                                                     \
    table.name = nullptr;                                                                       \
    CHECK_EQ(refusal(table), "its required function '" #name                                    \
                             "' is NULL (bringup/driver.h says which functions are required)"); \
    ++missing;                                                                                  \
  }
  BRINGUP_DRIVER_REQUIRED(WITHOUT)
#undef WITHOUT
  CHECK_EQ(missing, 12);
}

TEST(a_library_without_the_function_another_version_and_a_table_that_is_too_small) {
  CHECK_THROWS(driver::read_table(bringup_driver_get_fn{}), driver::Refused,
               "exports no function 'bringup_driver_get'");
  bringup_driver table = required_only();
  table.abi_version = 7;
  CHECK_EQ(refusal(table), "it is written for driver ABI 7, this is driver ABI 1");
  table = required_only();
  table.struct_size -= 1;
  CHECK(refusal(table).find("its function table is too small: ") == 0);
}

TEST(what_lies_behind_the_table_s_size_is_not_read) {
  bringup_driver table = of_today();
  table.struct_size = offsetof(bringup_driver, last_error);
  table.capabilities = ~UINT64_C(0);
  given() = table;
  const bringup_driver read = driver::read_table(&get);
  CHECK(read.last_error == nullptr);
  CHECK_EQ(read.capabilities, 0u);
}

TEST(an_announced_group_has_all_its_functions){
#define WITHOUT(name, parameters, group)                                      \
  {                                                                           \
    bringup_driver table = of_today();                                        \
    table.capabilities = BRINGUP_HAS_##group;                                 \
    CHECK(refusal(table).find("its capabilities announce BRINGUP_HAS_" #group \
                              ", but its function '") == 0);                  \
  }
    BRINGUP_DRIVER_GROUPED(WITHOUT)
#undef WITHOUT
}

TEST(a_function_whose_bit_is_not_set_is_not_there) {
  bringup_driver table = of_today();
  table.device_reset = [](int32_t) -> int32_t { return BRINGUP_OK; };
  given() = table;
  CHECK(driver::read_table(&get).device_reset == nullptr);
  given().capabilities = BRINGUP_HAS_RESET;
  CHECK(driver::read_table(&get).device_reset != nullptr);
}

TEST(bits_of_a_later_header_and_of_functions_beyond_the_table_are_dropped) {
  bringup_driver table = of_today();
  table.device_reset = [](int32_t) -> int32_t { return BRINGUP_OK; };
  table.capabilities = BRINGUP_HAS_RESET | BRINGUP_HAS_PROFILER | UINT64_C(1) << 60;
  table.struct_size = offsetof(bringup_driver, host_register);
  given() = table;
  CHECK_EQ(driver::read_table(&get).capabilities, BRINGUP_HAS_RESET);
}

TEST(every_function_of_the_header_is_listed_once) {
  size_t functions = 1;  // last_error
#define COUNT(...) ++functions;
  BRINGUP_DRIVER_FUNCTIONS(COUNT)
#undef COUNT
  // struct_size and abi_version share a word; two texts; capabilities.
  CHECK_EQ(functions + 1 + 2 + 1, sizeof(bringup_driver) / sizeof(void*));
}

// --- what stands where a driver has no function

TEST(memory_is_counted_where_the_driver_does_not_count) {
  const bringup_driver table = checked(required_only());
  size_t free_bytes = 0;
  size_t total = 0;
  void* address = nullptr;
  CHECK_EQ(table.mem_info(1, &free_bytes, &total), BRINGUP_OK);
  CHECK_EQ(free_bytes, 4096u);
  CHECK_EQ(table.mem_alloc(1, 1000, &address), BRINGUP_OK);
  CHECK_EQ(table.mem_info(1, &free_bytes, &total), BRINGUP_OK);
  CHECK_EQ(free_bytes, 3096u);
  CHECK_EQ(total, 4096u);
  CHECK_EQ(table.mem_info(0, &free_bytes, &total), BRINGUP_OK);
  CHECK_EQ(free_bytes, 4096u);  // another device
  CHECK_EQ(table.mem_free(1, address), BRINGUP_OK);
  CHECK_EQ(table.mem_info(1, &free_bytes, &total), BRINGUP_OK);
  CHECK_EQ(free_bytes, 4096u);
}

TEST(a_fill_is_made_of_copies_and_touches_no_byte_beside_it) {
  const bringup_driver table = checked(required_only());
  constexpr size_t kRoom = 400'000;
  for (const size_t bytes : {size_t{1}, size_t{65536}, size_t{65537}, size_t{300'001}}) {
    std::vector<unsigned char> memory(kRoom, 7);
    CHECK_EQ(table.fill_async(0, memory.data() + 1, 0xa5, bytes, nullptr), BRINGUP_OK);
    std::vector<unsigned char> expected(kRoom, 7);
    std::fill_n(expected.begin() + 1, bytes, static_cast<unsigned char>(0xa5));
    CHECK(memory == expected);
  }
}

TEST(a_device_is_waited_for_stream_by_stream_and_the_first_failure_is_told) {
  const bringup_driver table = checked(of_today());
  bringup_stream mine = nullptr;
  bringup_stream failing = nullptr;
  bringup_stream other_device = nullptr;
  table.stream_create(0, 0, &mine);
  table.stream_create(0, 0, &failing);
  table.stream_create(1, 0, &other_device);
  board().failing_stream = failing;
  CHECK_EQ(table.device_synchronize(0), BRINGUP_KERNEL_FAILED);
  CHECK_EQ(std::string(table.last_error()), "the stream failed");
  CHECK_EQ(board().synchronized.size(), 3u);
  for (const bringup_stream stream : board().synchronized) CHECK(stream != other_device);
  CHECK_EQ(table.stream_destroy(mine), BRINGUP_OK);
  CHECK_EQ(table.stream_destroy(failing), BRINGUP_OK);
  CHECK_EQ(table.stream_destroy(other_device), BRINGUP_OK);
}

TEST(a_stream_is_asked_by_an_event_that_is_recorded_anew_only_after_new_work) {
  const bringup_driver table = checked(required_only());
  char byte = 0;
  const auto work = [&] {
    return table.copy_async(BRINGUP_HOST_TO_DEVICE, 0, &byte, 0, "x", 1, nullptr);
  };
  board().ready_after = 2;
  work();
  CHECK_EQ(table.stream_query(0, nullptr), BRINGUP_NOT_READY);
  work();  // comes too late for the event that is pending
  CHECK_EQ(table.stream_query(0, nullptr), BRINGUP_NOT_READY);
  CHECK_EQ(board().records, 1);
  CHECK_EQ(table.stream_query(0, nullptr), BRINGUP_OK);
  CHECK_EQ(board().records, 2);
  CHECK_EQ(table.stream_query(0, nullptr), BRINGUP_OK);
  CHECK_EQ(board().records, 2);  // nothing new
}

TEST(an_event_is_asked_until_it_is_done) {
  const bringup_driver table = checked(required_only());
  bringup_event event = nullptr;
  CHECK_EQ(table.event_create(0, 0, &event), BRINGUP_OK);
  board().ready_after = 5;
  CHECK_EQ(table.event_synchronize(event), BRINGUP_OK);
  CHECK_EQ(board().queries, 6);
}

TEST(without_event_elapsed_events_with_timing_are_refused) {
  const bringup_driver table = checked(required_only());
  bringup_event event = nullptr;
  double milliseconds = 7;
  CHECK_EQ(table.event_create(0, 1, &event), BRINGUP_UNSUPPORTED);
  CHECK(std::string(table.last_error()).find("without enable_timing=True") != std::string::npos);
  CHECK_EQ(table.event_elapsed(nullptr, nullptr, &milliseconds), BRINGUP_UNSUPPORTED);
}

TEST(addresses_are_aligned_as_the_properties_say) {
  bringup_driver lying = required_only();
  lying.mem_alloc = [](int32_t, size_t, void** address) -> int32_t {
    return *address = reinterpret_cast<void*>(0x10080), BRINGUP_OK;
  };
  const bringup_driver table = checked(lying);
  bringup_device_props props{};
  props.struct_size = sizeof props;
  CHECK_EQ(table.device_props(0, &props), BRINGUP_OK);
  void* address = nullptr;
  CHECK_EQ(table.mem_alloc(0, 64, &address), BRINGUP_ERROR);
  CHECK(std::string(table.last_error()).find("0x10080, which is not 256-byte aligned") !=
        std::string::npos);
}

// --- the beginning and the end

TEST(after_shutdown_no_call_reaches_the_driver) {
  bringup_driver whole = of_today();
  whole.capabilities = BRINGUP_HAS_LIFECYCLE;
  whole.init = []() -> int32_t { return BRINGUP_OK; };
  whole.shutdown = []() -> int32_t { return board().is_shut_down = true, BRINGUP_OK; };
  static int released;
  released = 0;
  whole.launch = [](int32_t, bringup_stream, const bringup_launch*) { return asked(); };
  const bringup_driver table = checked(whole);
  void* address = nullptr;
  CHECK_EQ(table.mem_alloc(0, 64, &address), BRINGUP_OK);
  CHECK_EQ(table.shutdown(), BRINGUP_OK);
  CHECK_EQ(table.mem_free(0, address), BRINGUP_OK);
  CHECK_EQ(table.mem_alloc(0, 64, &address), BRINGUP_ERROR);
  CHECK_EQ(std::string(table.last_error()), "the driver was shut down: the process is ending");
  bringup_launch launch{};
  launch.struct_size = sizeof launch;
  launch.release = [](void*) { ++released; };
  CHECK_EQ(table.launch(0, nullptr, &launch), BRINGUP_ERROR);
  CHECK_EQ(released, 1);
  CHECK_EQ(table.shutdown(), BRINGUP_OK);
  CHECK_EQ(board().calls_after_shutdown, 0);
}

// What is destroyed and unloaded, in order, and the end; `pending`: of a stream, until then.
struct End {
  std::vector<std::string> calls;
  bringup_stream pending = nullptr;
  int32_t destroyed = BRINGUP_OK;
};
End& end() {
  static End one;
  return one;
}

bringup_driver that_ends() {
  end() = {};
  bringup_driver whole = of_today();
  whole.capabilities = BRINGUP_HAS_LIFECYCLE;
  whole.init = []() -> int32_t { return BRINGUP_OK; };
  whole.shutdown = []() -> int32_t { return end().calls.push_back("shutdown"), BRINGUP_OK; };
  whole.stream_query = [](int32_t, bringup_stream stream) -> int32_t {
    return stream != nullptr && stream == end().pending ? BRINGUP_NOT_READY : BRINGUP_OK;
  };
  whole.stream_destroy = [](bringup_stream) -> int32_t {
    return end().calls.push_back("stream_destroy"), end().destroyed;
  };
  whole.module_load = [](int32_t, const char*, void** module) -> int32_t {
    return *module = &end(), BRINGUP_OK;  // one handle for both loads of a file
  };
  whole.module_unload = [](void*) -> int32_t {
    return end().calls.push_back("module_unload"), BRINGUP_OK;
  };
  return whole;
}

struct Left {
  explicit Left(const bringup_driver& table) {
    driver::start(table, 64);
    table.stream_create(0, 0, &gone);
    table.stream_create(0, 0, &stream);
    table.stream_destroy(gone);
    for (int i = 0; i < 3; ++i) table.module_load(0, "kernels.so", &module);
    table.module_unload(module);
    end().calls.clear();
  }
  bringup_stream gone = nullptr;
  bringup_stream stream = nullptr;
  void* module = nullptr;
};

TEST(streams_and_modules_that_are_left_go_before_shutdown) {
  const bringup_driver table = checked(that_ends());
  const Left left(table);
  CHECK_EQ(table.shutdown(), BRINGUP_OK);
  CHECK_EQ(end().calls, (std::vector<std::string>{"stream_destroy", "module_unload",
                                                  "module_unload", "shutdown"}));
}

TEST(what_has_pending_work_is_not_destroyed_at_the_end) {
  const bringup_driver table = checked(that_ends());
  const Left left(table);
  end().pending = left.stream;
  CHECK_EQ(table.shutdown(), BRINGUP_OK);
  CHECK_EQ(end().calls, std::vector<std::string>{"shutdown"});
}

TEST(a_stream_that_is_not_destroyed_at_the_end_is_told) {
  const bringup_driver table = checked(that_ends());
  const Left left(table);
  end().destroyed = BRINGUP_DEVICE_LOST;
  CHECK_EQ(table.shutdown(), BRINGUP_DEVICE_LOST);
  CHECK_EQ(std::string(table.last_error()), "stream_destroy failed at the driver's end");
  CHECK_EQ(end().calls.back(), "shutdown");
}

TEST(init_comes_first_and_its_failure_refuses_the_driver) {
  bringup_driver whole = of_today();
  whole.capabilities = BRINGUP_HAS_LIFECYCLE;
  whole.init = []() -> int32_t {
    board().words = "no board is plugged in";
    return BRINGUP_DEVICE_LOST;
  };
  whole.shutdown = []() -> int32_t { return BRINGUP_OK; };
  whole.device_count = [](int32_t*) -> int32_t { throw std::logic_error("called before init"); };
  CHECK_THROWS(driver::start(checked(whole), 64), driver::Refused, "init: no board is plugged in");
}

TEST(a_driver_says_what_it_is) {
  const driver::Description found = driver::start(checked(required_only()), 64);
  CHECK_EQ(found.device_name, "board");
  CHECK_EQ(found.description, "");
  CHECK_EQ(found.devices.size(), 2u);
  CHECK_EQ(found.devices[1].alignment, 256u);
}

TEST(error_detail_is_added_to_the_words) {
  bringup_driver whole = of_today();
  whole.capabilities = BRINGUP_HAS_ERROR_DETAIL;
  whole.error_detail = [](bringup_error_detail* detail) -> int32_t {
    detail->code = 507;
    detail->device = 1;
    std::strcpy(detail->kernel, "gelu");
    std::strcpy(detail->text, "pc 0x40");
    return BRINGUP_OK;
  };
  const bringup_driver table = checked(whole);
  board().words = "the vector unit stopped";
  CHECK_EQ(driver::error_text(table, BRINGUP_ERROR),
           "the vector unit stopped [driver's detail: code 507, device 1, in 'gelu', pc 0x40]");
  bringup_event event = nullptr;
  whole.event_create = [](int32_t, int32_t, bringup_event*) -> int32_t { return 99; };
  CHECK_EQ(checked(whole).event_create(0, 0, &event), BRINGUP_ERROR);
  CHECK_EQ(driver::error_text(table, BRINGUP_ERROR),
           "the driver breaks the contract of bringup/driver.h: event_create returned the status "
           "99, which there is not");
}

}  // namespace
