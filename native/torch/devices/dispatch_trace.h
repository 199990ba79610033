// Observes the operators that are called in this process, with the dispatch keys that each call
// goes by. Nothing is registered with torch while no trace runs, so a process without one pays
// nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

namespace bringup::torch_ext {

struct TracedCall {
  uint32_t op = 0;           // an index of DispatchTrace::names
  uint32_t node = 0;         // the same for the autograd node that called it; 0: none
  uint64_t keys = 0;         // of arguments and thread, as DispatchKeySet::raw_repr()
  uint64_t thread = 0;       // as torch's profilers number threads
  uint16_t factory_key = 0;  // of the device and layout that a factory is asked for; 0: none
  uint16_t depth = 0;        // how many observed calls it is made by
};

// What was observed between start_dispatch_trace and stop_dispatch_trace.
struct DispatchTrace {
  std::vector<std::string> names{""};
  std::vector<TracedCall> calls;
  size_t lost = 0;  // calls beyond the limit
};

// One trace that runs; any thread may add to it.
class DispatchTracer {
 public:
  explicit DispatchTracer(size_t limit) : limit_(limit) {}

  void add(const std::string& op, const std::string& node, TracedCall call);
  DispatchTrace take();

 private:
  uint32_t index_of(const std::string& name);

  std::mutex mutex_;
  size_t limit_;
  DispatchTrace trace_;
  std::unordered_map<std::string, uint32_t> indices_;
};

// Observes all threads from here on; several traces may run at a time. `limit`: of calls kept.
std::shared_ptr<DispatchTracer> start_dispatch_trace(size_t limit);
// Ends it and gives what it has. A trace that has ended gives nothing more.
DispatchTrace stop_dispatch_trace(const std::shared_ptr<DispatchTracer>& tracer);

}  // namespace bringup::torch_ext
