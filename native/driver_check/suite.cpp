#include "driver_check/suite.h"

namespace bringup::driver_check {

const std::vector<Check>& suite() {
  static const std::vector<Check> all = [] {
    std::vector<Check> found;
    for (const auto& group :
         {table_checks(), memory_checks(), copy_checks(), stream_checks(), event_checks(),
          ordering_checks(), thread_checks(), host_checks(), module_checks(), values_checks(),
          graph_checks(), error_checks(), extension_checks(), profiler_checks(), native_checks(),
          capture_checks(), ipc_checks(), collective_checks(), process_checks()}) {
      found.insert(found.end(), group.begin(), group.end());
    }
    return found;
  }();
  return all;
}

// Little of everything, in 0.3 s: these find what would be a wrong number or a crash later.
std::vector<std::string> probe() {
  return {"table.functions",
          "device.count",
          "device.properties",
          "memory.addresses",
          "memory.info",
          "copies.both_ways",
          "copies.on_the_device",
          "fills.bytes",
          "streams.handles",
          "streams.synchronize",
          "events.never_recorded",
          "events.follow_a_copy",
          "events.follow_a_function",
          "events.hold_a_copy",
          "events.hold_a_stream",
          "events.elapsed",
          "host.pinned_memory",
          "host.view",
          "graphs.handles"};
}

}  // namespace bringup::driver_check
