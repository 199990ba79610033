#include "sim/capability_functions.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <string>

#include "sim/handles.h"
#include "sim/host_ranges.h"
#include "sim/simulator.h"

namespace bringup::sim {
namespace {

std::chrono::steady_clock::time_point deadline_after(int64_t nanoseconds) {
  // A limit of years would overflow the clock.
  constexpr int64_t kLongest = int64_t{1} << 60;
  return std::chrono::steady_clock::now() +
         std::chrono::nanoseconds(std::clamp<int64_t>(nanoseconds, 0, kLongest));
}

template <size_t kSize>
void copy_text(char (&target)[kSize], const std::string& text) {
  std::strncpy(target, text.c_str(), kSize - 1);
  target[kSize - 1] = '\0';
}

// Writes as much as the caller knows.
template <class Struct>
void fill_in(Struct* target, Struct filled) {
  const uint32_t known = target->struct_size;
  filled.struct_size = known;
  std::memcpy(target, &filled, std::min<size_t>(known, sizeof filled));
}

}  // namespace

// --- LIFECYCLE

void init() { simulator(); }

void shutdown() { simulator().shut_down(); }

// --- ERROR_DETAIL

int32_t error_detail(bringup_error_detail* detail) {
  const ErrorDetail& last = last_error_detail();
  bringup_error_detail filled{};
  filled.code = last.code;
  filled.device = last.device;
  filled.stream = static_cast<bringup_stream>(last.stream);
  copy_text(filled.kernel, last.kernel);
  copy_text(filled.text, last.text);
  fill_in(detail, filled);
  return BRINGUP_OK;
}

// --- TIMED_WAITS

int32_t stream_wait_for(int32_t device, bringup_stream stream, int64_t nanoseconds) {
  may_wait();
  const bool over =
      simulator().stream(device, stream)->synchronize_until(deadline_after(nanoseconds));
  return over ? BRINGUP_OK : BRINGUP_TIMEOUT;
}

int32_t event_wait_for(bringup_event event, int64_t nanoseconds) {
  may_wait();
  simulator();
  const auto record = event_of(event)->last();
  if (record == nullptr) return BRINGUP_OK;
  if (!record->wait_until(deadline_after(nanoseconds))) return BRINGUP_TIMEOUT;
  if (auto stream = record->stream()) stream->raise_failure();
  return BRINGUP_OK;
}

// --- RESET

void device_reset(int32_t device) {
  may_wait();
  simulator().reset(device);
}

// --- HOST_MEMORY, POINTERS

void host_register(void* address, size_t bytes) {
  simulator();
  require(address != nullptr && bytes > 0, "a range of 0 bytes was registered");
  require(host_ranges().add(address, bytes, true),
          "a range was registered that overlaps pinned or registered memory");
}

void host_unregister(void* address) {
  simulator();
  require(host_ranges().remove(address, true),
          "an address was unregistered where no registered range begins");
}

void pointer_info(const void* address, bringup_pointer_info* info) {
  bringup_pointer_info found{};
  found.device = -1;
  for (int32_t device = 0; device < kDeviceCount; ++device) {
    const auto allocation = simulator().memory(device).allocation_of(address);
    if (!allocation) continue;
    found.kind = BRINGUP_POINTER_DEVICE;
    found.device = device;
    found.base = allocation->first;
    found.bytes = allocation->second;
  }
  if (const auto range = host_ranges().find(address)) {
    found.kind = BRINGUP_POINTER_HOST;
    found.base = range->first;
    found.bytes = range->second;
  }
  fill_in(info, found);
}

// --- LAUNCH_VALUES

void launch_values(int32_t device, bringup_stream stream,
                   const bringup_launch_values_args* launch) {
  const std::shared_ptr<Stream> queue = simulator().stream(device, stream);
  queue->enqueue(
      std::make_unique<const ValuesLaunch>(*launch, simulator().memory(queue->device())));
}

void graph_add_values(bringup_graph graph, const bringup_launch_values_args* launch) {
  const DeviceMemory& memory = simulator().memory(graph_of(graph)->device());
  graph_of(graph)->add(ValuesLaunch(*launch, memory));
}

void graph_update_values(bringup_graph graph, int32_t kernel,
                         const bringup_launch_values_args* launch) {
  const DeviceMemory& memory = simulator().memory(graph_of(graph)->device());
  graph_of(graph)->update(kernel, ValuesLaunch(*launch, memory));
}

// --- NATIVE. The simulator's own objects, which no code can call: code that asks for them is
// tested by their being what they stand for.

void native_handle(int32_t device, bringup_stream stream, int32_t kind, void** handle) {
  const DeviceMemory& memory = simulator().memory(device);
  switch (kind) {
    case BRINGUP_NATIVE_CONTEXT:
      *handle = &simulator();
      return;
    case BRINGUP_NATIVE_DEVICE:
      *handle = reinterpret_cast<void*>(static_cast<intptr_t>(device));
      return;
    case BRINGUP_NATIVE_QUEUE:
      *handle = simulator().stream(device, stream).get();
      return;
    case BRINGUP_NATIVE_MEMORY:
      if (const auto allocation = memory.allocation_of(*handle)) {
        *handle = allocation->first;
        return;
      }
      throw SimError(BRINGUP_UNSUPPORTED, "the address lies in no allocation of that device");
    default:
      refuse(BRINGUP_UNSUPPORTED, "the simulated NPU has no object of kind ", kind);
  }
}

// --- STREAM_CAPTURE

void stream_capture_begin(int32_t device, bringup_stream stream) {
  require(stream != nullptr, "the default stream cannot be captured");
  simulator().stream(device, stream)->begin_capture();
}

void stream_capture_end(int32_t device, bringup_stream stream, bringup_graph graph) {
  const std::shared_ptr<Stream> queue = simulator().stream(device, stream);
  auto captured = queue->end_capture();
  require(graph_of(graph)->device() == device, "a graph of another device than the stream's");
  graph_of(graph)->add(std::move(captured));
}

void stream_capture_abort(int32_t device, bringup_stream stream) {
  simulator().stream(device, stream)->abort_capture();
}

void stream_capture_query(int32_t device, bringup_stream stream, int32_t* state) {
  *state = simulator().stream(device, stream)->capture_state();
}

// --- IPC

void ipc_export(int32_t device, void* address, bringup_ipc_handle* handle) {
  *handle = simulator().memory(device).describe(address);
}

void ipc_open(int32_t device, const bringup_ipc_handle* handle, void** address) {
  *address = simulator().memory(device).open(*handle);
}

void ipc_close(int32_t device, void* address) { simulator().memory(device).close(address); }

// --- CONDITIONAL

void graph_add_conditional(bringup_graph graph, int32_t kind, const void* predicate,
                           bringup_graph* first, bringup_graph* second) {
  require(kind == BRINGUP_CONDITIONAL_IF || kind == BRINGUP_CONDITIONAL_WHILE,
          "a conditional node of an unknown kind");
  const void* byte =
      Simulator::instance().range(predicate, 1, "the predicate of a conditional node");
  const auto parts = graph_of(graph)->add(static_cast<bringup_conditional>(kind),
                                          static_cast<const uint8_t*>(byte));
  *first = reinterpret_cast<bringup_graph>(parts.first);
  *second = reinterpret_cast<bringup_graph>(parts.second);
}

}  // namespace bringup::sim
