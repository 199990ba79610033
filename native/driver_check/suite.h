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

// Of suite(), in its order, a group each.
// clang-format off
#define BRINGUP_CHECK_GROUPS(V) \
  V(table) V(memory) V(copy) V(stream) V(event) V(ordering) V(thread) V(host) V(module) V(values) \
  V(graph) V(error) V(extension) V(profiler) V(native) V(capture) V(ipc) V(collective) V(process)
#define BRINGUP_CHECK_GROUP(group) std::vector<Check> group##_checks();
BRINGUP_CHECK_GROUPS(BRINGUP_CHECK_GROUP)
#undef BRINGUP_CHECK_GROUP
// clang-format on

}  // namespace bringup::driver_check
