#include "sim/faulty_driver.h"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <string>
#include <tuple>
#include <utility>

#include "sim/faults.h"
#include "sim/handles.h"
#include "sim/simulator.h"
#include "sim/status.h"

namespace bringup::sim {
namespace {

const bringup_driver* g_real = nullptr;

// --- the device of a call, by what the function takes; -1: it takes none

int32_t device_of_work(int32_t device, bringup_stream stream) {
  return stream != nullptr ? reinterpret_cast<Stream*>(stream)->device() : device;
}

template <class... Rest>
int32_t device_of(int32_t device, Rest...) {
  return device;
}
int32_t device_of(bringup_copy_kind kind, int32_t to, void*, int32_t from, const void*, size_t,
                  bringup_stream stream) {
  return device_of_work(kind == BRINGUP_HOST_TO_DEVICE ? to : from, stream);
}
int32_t device_of(bringup_copy_kind kind, int32_t to, void*, size_t, int32_t from, const void*,
                  size_t, size_t, size_t, bringup_stream stream) {
  return device_of_work(kind == BRINGUP_HOST_TO_DEVICE ? to : from, stream);
}
int32_t device_of(bringup_event, int32_t device, bringup_stream) { return device; }
template <class... Rest>
int32_t device_of(bringup_event event, Rest...) {
  const auto record = event_of(event)->last();
  const auto stream = record != nullptr ? record->stream() : nullptr;
  return stream != nullptr ? stream->device() : -1;
}
template <class... Rest>
int32_t device_of(bringup_graph graph, Rest...) {
  return graph_of(graph)->device();
}
template <class... Rest>
int32_t device_of(bringup_comm comm, Rest...) {
  return comm_of(comm)->device();
}
int32_t device_of(bringup_comm_id*) { return -1; }
int32_t device_of(bringup_stream stream) { return device_of_work(-1, stream); }
int32_t device_of(size_t, void**) { return -1; }
int32_t device_of(void*) { return -1; }
int32_t device_of(void*, size_t) { return -1; }
int32_t device_of(const void*, bringup_pointer_info*) { return -1; }
int32_t device_of(void*, const char*, bringup_kernel_fn*) { return -1; }

// --- the operator that it launches

template <class... Arguments>
const char* operator_of(Arguments... arguments) {
  const char* name = "";
  const auto look = [&](auto argument) {
    if constexpr (std::is_same_v<decltype(argument), const bringup_launch*> ||
                  std::is_same_v<decltype(argument), const bringup_launch_values_args*>) {
      if (argument->name != nullptr) name = argument->name;
    }
  };
  (look(arguments), ...);
  return name;
}

// --- a launch is released exactly once, also when it is refused

template <class... Arguments>
void release_refused(Arguments... arguments) {
  const auto release = [](auto argument) {
    if constexpr (std::is_same_v<decltype(argument), const bringup_launch*>) {
      const OwnedLaunch owned(*argument);
    }
  };
  (release(arguments), ...);
}

// --- work that fails when its stream comes to it

std::string failed_in_stream(const std::string& what, const Stream& stream) {
  return what + " failed in stream " + std::to_string(stream.number()) + " of device " +
         std::to_string(stream.device()) + ": injected failure";
}

void enqueue_failure(bringup_record_kind kind, const std::string& what, int32_t device,
                     bringup_stream stream, const char* operator_name = "") {
  const auto queue = simulator().stream(device, stream);
  ErrorDetail detail{0, queue->device(), stream, operator_name, "injected failure"};
  queue->enqueue(FailTask{{failed_in_stream(what, *queue), std::move(detail)}, kind});
}

template <class Launch>
void fail_kernel(int32_t device, bringup_stream stream, const Launch* launch) {
  enqueue_failure(BRINGUP_RECORD_KERNEL, "operator '" + std::string(operator_of(launch)) + "'",
                  device, stream, operator_of(launch));
}
void fail_later(int32_t device, bringup_stream stream, const bringup_launch* launch) {
  const OwnedLaunch owned(*launch);
  fail_kernel(device, stream, launch);
}
void fail_later(int32_t device, bringup_stream stream, const bringup_launch_values_args* launch) {
  fail_kernel(device, stream, launch);
}
void fail_later(bringup_copy_kind kind, int32_t to, void* target, int32_t from, const void* source,
                size_t bytes, bringup_stream stream) {
  enqueue_failure(BRINGUP_RECORD_COPY, "a copy of " + std::to_string(bytes) + " bytes",
                  device_of(kind, to, target, from, source, bytes, stream), stream);
}
void fail_later(bringup_copy_kind kind, int32_t to, void* target, size_t target_pitch, int32_t from,
                const void* source, size_t source_pitch, size_t width, size_t height,
                bringup_stream stream) {
  enqueue_failure(
      BRINGUP_RECORD_COPY,
      "a copy of " + std::to_string(height) + " rows of " + std::to_string(width) + " bytes",
      device_of(kind, to, target, target_pitch, from, source, source_pitch, width, height, stream),
      stream);
}
void fail_later(int32_t device, void*, uint8_t, size_t bytes, bringup_stream stream) {
  enqueue_failure(BRINGUP_RECORD_FILL, "a fill of " + std::to_string(bytes) + " bytes", device,
                  stream);
}
void fail_later(int32_t device, void*, const void*, uint32_t size, size_t count,
                bringup_stream stream) {
  enqueue_failure(BRINGUP_RECORD_FILL, "a fill of " + std::to_string(size * count) + " bytes",
                  device, stream);
}
void fail_later(bringup_graph graph, bringup_stream stream) {
  enqueue_failure(BRINGUP_RECORD_GRAPH, "a graph", graph_of(graph)->device(), stream);
}
// Its peers see that it is gone.
template <class... Rest>
  requires(sizeof...(Rest) > 0)
void fail_later(bringup_comm comm, Rest... rest) {
  const bringup_stream stream = std::get<sizeof...(rest) - 1>(std::tuple(rest...));
  const auto& shared = comm_of(comm);
  simulator()
      .stream(shared->device(), stream)
      ->enqueue(CommTask{shared, std::make_shared<const CommTask::Operation>("injected failure")});
}
template <class... Arguments>
void fail_later(Arguments...) {
  throw SimError(BRINGUP_ERROR, "injected failure");  // the plan's reader lets nothing come here
}

// --- the call itself

template <Function kFunction, auto kMember, class Type>
struct Wrapper;

template <Function kFunction, auto kMember, class... Arguments>
struct Wrapper<kFunction, kMember, int32_t (*)(Arguments...)> {
  static int32_t call(Arguments... arguments) {
    if (!Faults::active()) return (g_real->*kMember)(arguments...);
    return guarded([&] { return faulty(arguments...); });
  }

 private:
  static int32_t faulty(Arguments... arguments) {
    DriverCall call{kFunction, device_of(arguments...), operator_of(arguments...)};
    if constexpr (kFunction == Function::mem_alloc) call.bytes = bytes_of(arguments...);
    std::shared_ptr<FaultSet> lost_by;
    Verdict verdict;
    try {
      verdict = Faults::instance().enter(call, lost_by);
      check_memory_limit(call);
    } catch (...) {
      release_refused(arguments...);
      throw;
    }
    if (verdict.fails_later) {
      fail_later(arguments...);
      return BRINGUP_OK;
    }
    if constexpr (kFunction == Function::event_record) {
      if (verdict.loses_event) return lose(*lost_by, arguments...);
    }
    const int32_t status = (g_real->*kMember)(arguments...);
    if constexpr (kFunction == Function::mem_info) limit_memory(status, arguments...);
    if constexpr (is_wait()) {
      if (call.device >= 0 && Faults::instance().lost(call.device)) {
        refuse(BRINGUP_DEVICE_LOST, "device ", call.device, " was lost (injected) during the wait");
      }
    }
    return status;
  }

  static constexpr bool is_wait() {
    return kFunction == Function::stream_synchronize || kFunction == Function::event_synchronize ||
           kFunction == Function::stream_wait_for || kFunction == Function::event_wait_for ||
           kFunction == Function::device_synchronize;
  }

  static size_t bytes_of(int32_t, size_t bytes, void**) { return bytes; }

  static void check_memory_limit(const DriverCall& call) {
    if (kFunction != Function::mem_alloc) return;
    const uint64_t limit = Faults::instance().memory_limit(call.device);
    if (limit == FaultPlan::kNone) return;
    const DeviceMemory& memory = simulator().memory(call.device);
    const size_t used = memory.capacity() - memory.free_bytes();
    if (used + call.bytes <= limit) return;
    refuse(BRINGUP_OUT_OF_MEMORY, "device ", call.device, " has no range of ", call.bytes,
           " bytes free (", used, " of ", limit, " bytes are in use)");
  }

  static void limit_memory(int32_t status, int32_t device, size_t* free_bytes, size_t* total) {
    const uint64_t limit = Faults::instance().memory_limit(device);
    if (status != BRINGUP_OK || limit >= *total) return;
    const size_t used = *total - *free_bytes;
    *free_bytes = used < limit ? limit - used : 0;
    *total = limit;
  }

  static int32_t lose(FaultSet& lost_by, bringup_event handle, int32_t device,
                      bringup_stream stream) {
    const auto queue = simulator().stream(device, stream);
    lost_by.keep_lost(event_of(handle)->issue(queue), device);
    return BRINGUP_OK;
  }
};

constexpr uint64_t kAllDtypes = (BRINGUP_DTYPE_FLOAT4_E2M1FN_X2 << 1) - 1;

template <class Field>
bool reaches(const bringup_device_props& props, const Field& field) {
  const auto offset =
      reinterpret_cast<const std::byte*>(&field) - reinterpret_cast<const std::byte*>(&props);
  return static_cast<size_t>(offset) + sizeof(field) <= props.struct_size;
}

int32_t limited_props(int32_t device, bringup_device_props* props) {
  const int32_t status = g_real->device_props(device, props);
  if (status != BRINGUP_OK || !Faults::active()) return status;
  const uint64_t hidden = Faults::instance().hidden_dtypes(device);
  const uint64_t limit = Faults::instance().memory_limit(device);
  if (reaches(*props, props->total_memory)) {
    props->total_memory = std::min(props->total_memory, limit);
  }
  if (reaches(*props, props->max_allocation)) {
    props->max_allocation = std::min(props->max_allocation, limit);
  }
  if (hidden == 0) return status;
  if (reaches(*props, props->supports_float64) && (hidden & BRINGUP_DTYPE_FLOAT64) != 0) {
    props->supports_float64 = 0;
  }
  if (reaches(*props, props->dtypes)) {
    props->dtypes = (props->dtypes == 0 ? kAllDtypes : props->dtypes) & ~hidden;
  }
  return status;
}

}  // namespace

bringup_driver with_faults(const bringup_driver& real) {
  g_real = &real;
  bringup_driver table = real;
#define BRINGUP_SIM_WRAP(name) \
  table.name = &Wrapper<Function::name, &bringup_driver::name, decltype(table.name)>::call;
  BRINGUP_SIM_RELEASES(BRINGUP_SIM_WRAP)
  BRINGUP_SIM_CALLS(BRINGUP_SIM_WRAP)
#undef BRINGUP_SIM_WRAP
  table.device_props = &limited_props;
  return table;
}

}  // namespace bringup::sim
