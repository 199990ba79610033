// What bringup.devices sees of the native side.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>
#include <torch/csrc/Generator.h>

#include <algorithm>
#include <cstring>

#include "driver/time_limits.h"
#include "driver/traced.h"
#include "torch/common/tensor_caster.h"
#include "torch/devices/allocator.h"
#include "torch/devices/dispatch_trace.h"
#include "torch/devices/dtypes.h"
#include "torch/devices/fallback.h"
#include "torch/devices/fallback_policy.h"
#include "torch/devices/generator.h"
#include "torch/devices/host_allocator.h"
#include "torch/devices/memory_history.h"
#include "torch/devices/metadata.h"
#include "torch/devices/registration.h"
#include "torch/devices/shared_memory.h"
#include "torch/devices/state.h"
#include "torch/devices/stream_observer.h"
#include "torch/module.h"

namespace nb = nanobind;

namespace bringup::torch_ext {
namespace {

nb::dict facts_dict(const DriverFacts& facts) {
  nb::dict dict;
  dict["path"] = facts.path;
  dict["device_name"] = facts.device_name;
  dict["description"] = facts.description;
  dict["driver_version"] = facts.driver_version;
  dict["device_count"] = facts.device_count;
  dict["host_visible"] = facts.host_visible;
  dict["host_visible_memory"] = facts.host_visible_memory;
  dict["functions"] = facts.functions;
  dict["takes_plain_values"] = facts.takes_plain_values;
  return dict;
}

nb::dict props_dict(c10::DeviceIndex device) {
  const bringup_device_props props = device_props(checked_device(device));
  nb::dict dict;
  dict["name"] = nb::str(props.name);
  dict["arch"] = nb::str(props.arch);
  dict["total_memory"] = props.total_memory;
  dict["core_count"] = props.core_count;
  dict["supports_float64"] = props.supports_float64 != 0;
  dict["supports_int64"] = props.supports_int64 != 0;
  dict["host_visible_memory"] = props.host_visible_memory != 0;
  dict["dtypes"] = dtype_names(props);
  dict["alignment"] = std::max<uint32_t>(props.alignment, 64);
  dict["uuid"] = nb::bytes(reinterpret_cast<const char*>(props.uuid), sizeof props.uuid);
  dict["driver_version"] = nb::str(props.driver_version);
  dict["least_priority"] = props.least_priority;
  dict["greatest_priority"] = props.greatest_priority;
  dict["max_grid"] = nb::make_tuple(props.max_grid[0], props.max_grid[1], props.max_grid[2]);
  dict["max_block"] = nb::make_tuple(props.max_block[0], props.max_block[1], props.max_block[2]);
  dict["max_block_threads"] = props.max_block_threads;
  dict["max_shared_bytes"] = props.max_shared_bytes;
  dict["max_allocation"] = props.max_allocation;
  return dict;
}

// A status and the driver's words for it, so that Python can raise the class that fits.
std::pair<int32_t, std::string> with_text(int32_t status) {
  return {status, status == BRINGUP_OK ? "" : driver_error_text(status)};
}

nb::tuple native_handle_with_text(c10::DeviceIndex device, uintptr_t stream, int32_t kind,
                                  uintptr_t address) {
  auto* handle = reinterpret_cast<void*>(address);
  const int32_t status = native_handle(checked_device(device),
                                       reinterpret_cast<bringup_stream>(stream), kind, &handle);
  return nb::make_tuple(status, with_text(status).second, reinterpret_cast<uintptr_t>(handle));
}

std::pair<int32_t, std::string> reset_with_text(c10::DeviceIndex device) {
  if (StreamObserver* observer = stream_observer()) observer->on_host_wait("reset_device()");
  const nb::gil_scoped_release no_gil;
  return with_text(reset_device(device));
}

// The driver's handle and where in its allocation the tensor's storage begins.
nb::tuple exported_memory(const at::Tensor& tensor) {
  const auto [handle, offset] = export_memory(tensor);
  return nb::make_tuple(nb::bytes(reinterpret_cast<const char*>(handle.bytes), sizeof handle.bytes),
                        offset);
}

uintptr_t opened_memory(c10::DeviceIndex device, const nb::bytes& given) {
  bringup_ipc_handle handle{};
  std::memcpy(handle.bytes, given.c_str(), std::min(given.size(), sizeof handle.bytes));
  return reinterpret_cast<uintptr_t>(open_memory(device, handle));
}

// Kind, device, base, bytes; None where the driver cannot say.
nb::object pointer_info(uintptr_t address) {
  const auto info = driver_pointer_info(reinterpret_cast<const void*>(address));
  if (!info) return nb::none();
  return nb::make_tuple(info->kind, info->device, reinterpret_cast<uintptr_t>(info->base),
                        info->bytes);
}

// The status and the driver's message, so that Python can raise the class that fits.
std::pair<int32_t, std::string> synchronize_device(c10::DeviceIndex device) {
  if (StreamObserver* observer = stream_observer()) observer->on_host_wait("synchronize()");
  const int32_t status = wait_for_device(checked_device(device));
  if (status == BRINGUP_OK) {
    std::string failure = take_host_failure(checked_device(device));
    return {failure.empty() ? BRINGUP_OK : BRINGUP_KERNEL_FAILED, std::move(failure)};
  }
  return {status, driver_error_text(status)};
}

const char* state_name(driver::BlockState state) {
  switch (state) {
    case driver::BlockState::kLive:
      return "active_allocated";
    case driver::BlockState::kPending:
      return "active_pending_free";
    default:
      return "inactive";
  }
}

// In the form of torch.cuda.memory_snapshot().
nb::dict segment_dict(const driver::SegmentSnapshot& segment, c10::DeviceIndex device) {
  size_t allocated = 0;
  size_t active = 0;
  size_t requested = 0;
  nb::list blocks;
  for (const driver::BlockSnapshot& block : segment.blocks) {
    if (block.state == driver::BlockState::kLive) allocated += block.bytes;
    if (block.state != driver::BlockState::kFree) active += block.bytes;
    requested += block.requested;
    nb::dict dict;
    dict["address"] = reinterpret_cast<uintptr_t>(block.address);
    dict["size"] = block.bytes;
    dict["requested_size"] = block.requested;
    dict["state"] = state_name(block.state);
    dict["frames"] = nb::list();
    blocks.append(dict);
  }
  nb::dict dict;
  dict["device"] = static_cast<int>(device);
  dict["address"] = reinterpret_cast<uintptr_t>(segment.address);
  dict["total_size"] = segment.bytes;
  dict["allocated_size"] = allocated;
  dict["active_size"] = active;
  dict["requested_size"] = requested;
  dict["stream"] = segment.stream;
  dict["segment_type"] = segment.kind == driver::PoolKind::kSmall ? "small" : "large";
  dict["segment_pool_id"] = nb::make_tuple(0, segment.pool);
  dict["is_expandable"] = false;
  dict["frames"] = nb::list();
  dict["blocks"] = blocks;
  return dict;
}

// In torch.cuda's form, of pinned memory.
nb::dict host_memory_stats() {
  const at::HostStats stats = host_allocator().get_stats();
  nb::dict dict;
  const auto add = [&](const std::string& name, const auto& stat) {
    dict[nb::str((name + ".current").c_str())] = stat.current;
    dict[nb::str((name + ".peak").c_str())] = stat.peak;
    dict[nb::str((name + ".allocated").c_str())] = stat.allocated;
    dict[nb::str((name + ".freed").c_str())] = stat.freed;
  };
  add("active_requests", stats.active_requests);
  add("active_bytes", stats.active_bytes);
  add("allocations", stats.allocations);
  add("allocated_bytes", stats.allocated_bytes);
  dict["num_host_alloc"] = stats.num_host_alloc;
  dict["num_host_free"] = stats.num_host_free;
  return dict;
}

// In the form of torch.cuda.memory._snapshot(): a list for each device.
nb::list device_traces() {
  std::vector<nb::list> traces(static_cast<size_t>(driver_facts().device_count));
  for (const MemoryEvent& event : memory_history()) {
    nb::dict dict;
    dict["action"] = event.is_allocation ? "alloc" : "free_completed";
    dict["addr"] = reinterpret_cast<uintptr_t>(event.address);
    dict["size"] = event.bytes;
    dict["stream"] = event.stream;
    dict["time_us"] = event.microseconds;
    dict["frames"] = nb::list();
    traces[static_cast<size_t>(event.device)].append(dict);
  }
  nb::list all;
  for (const nb::list& trace : traces) all.append(trace);
  return all;
}

nb::list memory_snapshot() {
  nb::list segments;
  for (int32_t index = 0; index < driver_facts().device_count; ++index) {
    const auto device = static_cast<c10::DeviceIndex>(index);
    for (const driver::SegmentSnapshot& segment : device_memory_snapshot(device)) {
      segments.append(segment_dict(segment, device));
    }
  }
  return segments;
}

// Names, (operator, node, keys, factory key, thread, depth) of each call, calls that were lost.
nb::tuple dispatch_trace(const std::shared_ptr<DispatchTracer>& tracer) {
  DispatchTrace trace;
  {
    const nb::gil_scoped_release no_gil;
    trace = stop_dispatch_trace(tracer);
  }
  nb::list calls;
  for (const TracedCall& call : trace.calls) {
    const char* factory =
        call.factory_key == 0 ? "" : c10::toString(static_cast<c10::DispatchKey>(call.factory_key));
    calls.append(nb::make_tuple(call.op, call.node, call.keys, factory, call.thread, call.depth));
  }
  return nb::make_tuple(trace.names, calls, trace.lost);
}

}  // namespace

void bind_devices(nb::module_& module) {
  using Release = nb::call_guard<nb::gil_scoped_release>;
  module.attr("KERNEL_FAILED") = static_cast<int>(BRINGUP_KERNEL_FAILED);
  module.def("open_driver", [](const std::string& path) { return facts_dict(open_driver(path)); });
  module.def("open_driver_table", [](uintptr_t table, const std::string& path) {
    return facts_dict(open_driver_table(table, path));
  });
  module.def("close_driver", &close_driver);
  module.def("restore_kit_kernels", &restore_kit_kernels);
  module.def("install_driver", &install_driver, Release());
  module.def("shut_down_driver", [] {
    const nb::gil_scoped_release no_gil;
    return with_text(shut_down_driver());
  });
  module.def("reset_device", &reset_with_text);
  module.def("native_handle", &native_handle_with_text, nb::arg("device"), nb::arg("stream"),
             nb::arg("kind"), nb::arg("address"));
  module.def("waits_in_place_of_events",
             [] { return reinterpret_cast<uintptr_t>(&waits_in_place_of_events); });
  module.def("driver_table", [] { return reinterpret_cast<uintptr_t>(active_driver()); });
  module.def("host_sees_memory", [] { return driver_facts().host_visible; });
  module.def("pointer_info", &pointer_info);
  module.def("device_of_address", [](uintptr_t address) {
    return device_of_address(reinterpret_cast<const void*>(address));
  });
  module.def("register_host_memory", [](uintptr_t address, size_t bytes) {
    register_host_memory(reinterpret_cast<void*>(address), bytes);
  });
  module.def("unregister_host_memory",
             [](uintptr_t address) { unregister_host_memory(reinterpret_cast<void*>(address)); });
  module.def("shares_memory", [] { return active_driver()->ipc_export != nullptr; });
  module.def("export_memory", &exported_memory);
  module.def("open_memory", &opened_memory);
  module.def("wait_to_close", &wait_to_close, Release());
  module.def(
      "close_memory",
      [](c10::DeviceIndex device, uintptr_t address) {
        return close_memory(device, reinterpret_cast<void*>(address));
      },
      Release());
  module.def("tensor_in_opened",
             [](uintptr_t address, size_t bytes, c10::DeviceIndex device, uint64_t number) {
               return tensor_in_opened(reinterpret_cast<void*>(address), bytes, device, number);
             });
  module.def("next_ended_memory", &next_ended_memory, Release());
  module.def("metadata_of", &metadata_of);
  module.def("set_metadata", &set_metadata);
  module.def("keep_metadata", [](const at::Tensor& source, at::Tensor result) {
    with_metadata_of(source, std::move(result));
  });
  module.def("set_launch_blocking", &set_launch_blocking);
  module.def("open_cuda_launcher", &open_cuda_launcher, nb::arg("path"));
  module.def("set_wait_limit", &driver::set_wait_limit);
  module.def("set_driver_trace", &set_driver_trace);
  module.def("driver_trace_path", &driver::trace_path);
  module.def("in_forked_child", &in_forked_child);
  module.def("device_count", [] { return driver_facts().device_count; });
  module.def("default_generator", [](c10::DeviceIndex device) {
    return nb::steal<nb::object>(THPGenerator_initDefaultGenerator(default_generator(device)));
  });
  module.def("device_props", &props_dict);
  module.def("hands_to_out_form", [](const std::string& name, const std::string& overload) {
    const auto op = c10::Dispatcher::singleton().findSchema({name, overload});
    return op.has_value() && hands_to_out_form(*op);
  });
  nb::class_<DispatchTracer>(module, "DispatchTracer");
  module.def("start_dispatch_trace", &start_dispatch_trace, Release());
  module.def("stop_dispatch_trace", &dispatch_trace);
  module.def("memory_snapshot", &memory_snapshot);
  module.def("set_memory_limit", &set_memory_limit, nb::arg("device"), nb::arg("bytes"));
  module.def("set_memory_pool", &set_memory_pool, nb::arg("device"), nb::arg("pool"));
  module.def("release_memory_pool", &release_memory_pool, nb::arg("pool"));
  module.def("record_memory_history", &record_memory_history, nb::arg("most").none());
  module.def("device_traces", &device_traces);
  module.def("host_memory_stats", &host_memory_stats);
  module.def("reset_peak_host_memory_stats", [] { host_allocator().reset_peak_stats(); });
  module.def("reset_accumulated_host_memory_stats",
             [] { host_allocator().reset_accumulated_stats(); });
  module.def("launches_values", &launches_values);
  module.def("synchronize", &synchronize_device);
  nb::enum_<Float64Policy>(module, "Float64Policy")
      .value("error", Float64Policy::kError)
      .value("warn", Float64Policy::kWarn)
      .value("cpu", Float64Policy::kCpu);
  module.def("set_float64_policy", &set_float64_policy);
  nb::enum_<FallbackAction>(module, "FallbackAction")
      .value("allow", FallbackAction::kAllow)
      .value("warn", FallbackAction::kWarn)
      .value("forbid", FallbackAction::kForbid);
  module.def("set_fallback_policy", &set_fallback_policy);
  module.def("native_counts", &native_counts);
  module.def("fallback_counts", [](bool reset) {
    nb::list rows;
    for (const FallbackCount& count : fallback_counts(reset)) {
      rows.append(nb::make_tuple(count.name, count.calls, count.nanoseconds, count.bytes_to_host,
                                 count.bytes_to_device));
    }
    return rows;
  });
}

}  // namespace bringup::torch_ext
