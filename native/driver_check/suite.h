// The checks: what each of them is about, and all of them in order.
#pragma once

#include <string>
#include <vector>

#include "driver_check/context.h"

namespace bringup::driver_check {

struct Check {
  const char* name;      // "copies.both_ways": its group and what it does
  const char* function;  // whose rule it is
  const char* rule;      // as driver.h says it
  void (*run)(Context& context);
  const char* needs =
      "";  // functions without which it is skipped, separated by spaces; "a|b": either
};

// In the order in which they are made and shown.
const std::vector<Check>& suite();
// The checks that are made before an unknown driver is loaded.
std::vector<std::string> probe();

// Of suite(), one group each.
std::vector<Check> table_checks();
std::vector<Check> memory_checks();
std::vector<Check> copy_checks();
std::vector<Check> stream_checks();
std::vector<Check> event_checks();
std::vector<Check> ordering_checks();
std::vector<Check> thread_checks();
std::vector<Check> host_checks();
std::vector<Check> module_checks();
std::vector<Check> values_checks();
std::vector<Check> graph_checks();
std::vector<Check> error_checks();
std::vector<Check> extension_checks();
std::vector<Check> profiler_checks();
std::vector<Check> native_checks();
std::vector<Check> capture_checks();
std::vector<Check> ipc_checks();
std::vector<Check> collective_checks();
std::vector<Check> process_checks();

}  // namespace bringup::driver_check
