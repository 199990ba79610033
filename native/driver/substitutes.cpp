// What stands where a driver has no function for something that the required functions can do too.
#include <array>
#include <cstring>
#include <map>

#include "driver/call.h"
#include "driver/functions.h"
#include "engine/util/forever.h"

namespace bringup::driver {
namespace {

int32_t device_synchronize(int32_t device) {
  std::vector<const void*> all = state().streams.of(device);
  all.push_back(nullptr);
  int32_t first = BRINGUP_OK;  // every stream is waited for, whatever another one did
  for (const void* stream : all) {
    const int32_t status =
        real().stream_synchronize(device, static_cast<bringup_stream>(const_cast<void*>(stream)));
    if (status == BRINGUP_OK || first != BRINGUP_OK) continue;
    first = status;
    keep_words();
  }
  return first;
}

int32_t mem_info(int32_t device, size_t* free_bytes, size_t* total_bytes) {
  Given<bringup_device_props> props;
  const int32_t status = real().device_props(device, &props.value);
  if (status != BRINGUP_OK) return status;
  const size_t used = state().segments.live_bytes(device);
  *total_bytes = props.value.total_memory;
  *free_bytes = *total_bytes - std::min(*total_bytes, used);
  return BRINGUP_OK;
}

// Host memory that holds one value and never changes or ends, so that a copy of it may be pending
// for as long as it likes.
constexpr size_t kPatternBytes = size_t{64} << 10;
const unsigned char* pattern_of(uint8_t value) {
  struct Patterns {
    std::mutex mutex;
    std::array<std::unique_ptr<unsigned char[]>, 256> of;
  };
  static auto* patterns = new Patterns;
  const std::lock_guard lock(patterns->mutex);
  std::unique_ptr<unsigned char[]>& pattern = patterns->of[value];
  if (pattern == nullptr) {
    pattern = std::make_unique<unsigned char[]>(kPatternBytes);
    std::memset(pattern.get(), value, kPatternBytes);
  }
  return pattern.get();
}

// The beginning comes from the host; what is filled is then copied behind itself.
int32_t fill_async(int32_t device, void* dst, uint8_t value, size_t bytes, bringup_stream stream) {
  auto* begin = static_cast<unsigned char*>(dst);
  size_t done = std::min(bytes, kPatternBytes);
  int32_t status =
      real().copy_async(BRINGUP_HOST_TO_DEVICE, device, dst, 0, pattern_of(value), done, stream);
  while (status == BRINGUP_OK && done < bytes) {
    const size_t next = std::min(done, bytes - done);
    status = real().copy_async(BRINGUP_DEVICE_TO_DEVICE, device, begin + done, device, begin, next,
                               stream);
    done += next;
  }
  return status;
}

int32_t stream_destroy(bringup_stream) { return BRINGUP_OK; }

// An event for each stream that was asked for, recorded anew where work came since.
struct Mark {
  bringup_event event = nullptr;
  bool recorded = false;
  uint64_t given = 0;   // pieces of work
  uint64_t marked = 0;  // how many of them the event stands for
};
struct Marks {
  std::mutex mutex;
  std::map<std::pair<int32_t, bringup_stream>, Mark> of;
};
Marks& marks() { return forever<Marks>(); }

int32_t stream_query(int32_t device, bringup_stream stream) {
  const std::lock_guard lock(marks().mutex);
  Mark& mark = marks().of[{device, stream}];
  if (mark.event == nullptr) {
    const int32_t status = real().event_create(device, 0, &mark.event);
    if (status != BRINGUP_OK) return status;
    if (mark.event == nullptr) return broken("event_create", "returned BRINGUP_OK and no handle");
  }
  if (mark.recorded) {
    const int32_t status = real().event_query(mark.event);
    if (status != BRINGUP_OK || mark.marked == mark.given) return status;
  }
  mark.recorded = false;
  mark.marked = mark.given;
  const int32_t status = real().event_record(mark.event, device, stream);
  if (status != BRINGUP_OK) return status;
  mark.recorded = true;
  return real().event_query(mark.event);
}

int32_t event_synchronize(bringup_event event) {
  int32_t status = BRINGUP_OK;
  int asked = 0;
  while ((status = real().event_query(event)) == BRINGUP_NOT_READY) pause_between_queries(asked);
  return status;
}

int32_t event_elapsed(bringup_event, bringup_event, double*) {
  return fail(BRINGUP_UNSUPPORTED, "the driver has no event_elapsed, so no time between events");
}

template <class Function>
void fill_in(Function& function, Function substitute) {
  if (function == nullptr) function = substitute;
}

// --- after shutdown

int32_t refuse_stopped() {
  return fail(BRINGUP_ERROR, "the driver was shut down: the process is ending");
}

template <class... Arguments>
void refuse(int32_t (*&function)(Arguments...)) {
  if (function != nullptr) function = [](Arguments...) { return refuse_stopped(); };
}

// What is freed or destroyed ends with the process.
template <class... Arguments>
void ignore(int32_t (*&function)(Arguments...)) {
  if (function != nullptr) function = [](Arguments...) -> int32_t { return BRINGUP_OK; };
}

int32_t release_refused(const bringup_launch* launch) {
  if (launch->release != nullptr) launch->release(launch->owner);
  return refuse_stopped();
}

}  // namespace

void count_work(int32_t device, bringup_stream stream) {
  const std::lock_guard lock(marks().mutex);
  ++marks().of[{device, stream}].given;
}

void complete(bringup_driver& driver) {
  fill_in(driver.device_synchronize, &device_synchronize);
  fill_in(driver.mem_info, &mem_info);
  fill_in(driver.fill_async, &fill_async);
  fill_in(driver.stream_destroy, &stream_destroy);
  fill_in(driver.stream_query, &stream_query);
  fill_in(driver.event_synchronize, &event_synchronize);
  fill_in(driver.event_elapsed, &event_elapsed);
}

bringup_driver stopped(const bringup_driver& driver) {
  bringup_driver table = driver;
#define BRINGUP_REFUSE(name, ...) refuse(table.name);
  BRINGUP_DRIVER_FUNCTIONS(BRINGUP_REFUSE)
#undef BRINGUP_REFUSE
  table.last_error = nullptr;
  ignore(table.mem_free);
  ignore(table.host_free);
  ignore(table.stream_destroy);
  ignore(table.event_destroy);
  ignore(table.graph_destroy);
  ignore(table.module_unload);
  ignore(table.host_unregister);
  ignore(table.shutdown);
  if (table.launch != nullptr) {
    table.launch = [](int32_t, bringup_stream, const bringup_launch* launch) {
      return release_refused(launch);
    };
  }
  if (table.graph_add_kernel != nullptr) {
    table.graph_add_kernel = [](bringup_graph, const bringup_launch* launch) {
      return release_refused(launch);
    };
  }
  return table;
}

}  // namespace bringup::driver
