// The profiler's records, and modules from memory.
#include <algorithm>
#include <chrono>
#include <fstream>
#include <iterator>
#include <map>

#include "driver_check/launches.h"
#include "driver_check/suite.h"

namespace bringup::driver_check {
namespace {

constexpr size_t kBytes = 1 << 16;
constexpr int64_t kSlack = 50'000'000;  // nanoseconds that the clocks may differ by

int64_t wall_clock() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

// All records that there are, read `capacity` at a time.
std::vector<bringup_record> read_all(Context& context, int32_t capacity) {
  std::vector<bringup_record> all;
  while (true) {
    std::vector<bringup_record> some(static_cast<size_t>(capacity) + 1);
    for (bringup_record& record : some) record.struct_size = sizeof record;
    some.back().kind = 12345;  // behind what may be written
    int32_t count = -1;
    uint64_t lost = 0;
    context.must<&D::profiler_read>(0, some.data(), capacity, &count, &lost);
    expect(count >= 0 && count <= capacity,
           concat("profiler_read gave ", count, " records where there was room for ", capacity),
           concat("at most ", capacity), count);
    expect(some.back().kind == 12345, "profiler_read wrote behind `capacity` records",
           "nothing there", "a record");
    expect(lost == 0, "profiler_read lost records of a few copies", "0", lost);
    if (count == 0) return all;
    all.insert(all.end(), some.begin(), some.begin() + count);
  }
}

void expect_record(const bringup_record& record, int64_t from, int64_t to) {
  expect(strnlen(record.name, sizeof record.name) < sizeof record.name,
         "profiler_read: the name of a record does not end", "NUL-terminated text", "no end");
  const std::string times = std::to_string(record.begin) + " to " + std::to_string(record.end);
  expect(record.begin <= record.end, "profiler_read: a record ends before it begins",
         "begin <= end", times);
  expect(record.begin >= from - kSlack && record.end <= to + kSlack,
         "profiler_read: a record lies outside of the time of its work",
         concat("from ", from, " to ", to, " (CLOCK_REALTIME)"), times);
}

void records(Context& context) {
  const Memory memory(context, 0, kBytes);
  const Bytes content = pattern(kBytes, 1);
  const Stream first(context);
  const Stream second(context);
  context.must<&D::profiler_start>(0);
  const int64_t from = wall_clock();
  for (int i = 0; i < 3; ++i) memory.upload(content, first);
  context.download(0, memory.data(), kBytes, second);
  const int64_t to = wall_clock();
  context.must<&D::profiler_stop>(0);
  memory.upload(content, first);  // behind the stop: no record
  std::map<bringup_stream, uint64_t> numbers;
  const std::vector<bringup_record> all = read_all(context, 2);
  for (const bringup_record& record : all) {
    expect_record(record, from, to);
    expect(record.kind == BRINGUP_RECORD_COPY && record.device == 0 && record.bytes == kBytes,
           concat("profiler_read: a record is not that of a copy of ", kBytes, " bytes"),
           concat("kind ", BRINGUP_RECORD_COPY),
           concat("kind ", record.kind, ", ", record.bytes, " bytes"));
    uint64_t& number = numbers[record.stream];
    expect(record.number == number, "profiler_read: the records of a stream are not counted from 0",
           number, record.number);
    ++number;
  }
  const auto of = [&](bringup_stream stream) { return numbers[stream]; };
  expect(of(first) == 3 && of(second) == 1,
         concat("profiler_read gave ", of(first), " and ", of(second),
                " records of two streams with 3 copies and 1"),
         "3 and 1", concat(of(first), " and ", of(second)));
}

std::vector<char> content_of(const char* path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

void module_data(Context& context) {
  require_kernels(context);
  constexpr size_t kCount = 100;
  std::vector<char> data = content_of(context.kernels());
  {
    Module module(context, data);
    std::fill(data.begin(), data.end(), '\0');  // the driver copied what it needs
    const Bytes sums = integers(kCount, 5, 1);
    const Bytes values = integers(kCount, -7, 2);
    const Arrays on(context, sums, values);
    const Work work(context, module, on.out.data(), on.x.data(), kCount, 3);
    work.launch(on.stream);
    expect_bytes(on.result(), accumulated(sums, values, 3),
                 "launch of a kernel of module_load_data");
  }
  void* module = nullptr;
  std::vector<char> nonsense(4096, 'x');
  context.must_fail<&D::module_load_data>("for 4096 bytes of nonsense", 0, nonsense.data(),
                                          nonsense.size(), &module);
}

}  // namespace

std::vector<Check> profiler_checks() {
  return {
      {"profiler.records", "profiler_read",
       "Between start and stop the device keeps a record of each piece of work; profiler_read "
       "moves "
       "up to `capacity` of them, oldest first.",
       records, "profiler_start profiler_stop profiler_read"},
      {"modules.data", "module_load_data",
       "module_load from memory, which the driver copies as far as it needs it.", module_data,
       "module_load_data get_function module_unload launch|launch_values"},
  };
}

}  // namespace bringup::driver_check
